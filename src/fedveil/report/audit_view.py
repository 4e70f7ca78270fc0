"""What the page shows of an audit, read from its record and checked: findings, test curves, pictures, hiding."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from fedveil.audit.finding import Finding
from fedveil.audit.record import FILE, Audit
from fedveil.core.errors import BadValue, require
from fedveil.privacy.guarantee import Adversary

Greys = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Roc:
    """A test's true-positive rates over its false-positive rates, next to what the certificate allows.

    ``sure``: points that the test reaches with 95% confidence, all of them together; none where that is not known.
    """

    finding: Finding
    false_positives: tuple[float, ...]
    true_positives: tuple[float, ...]
    allowed: tuple[float, ...]
    sure: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.false_positives), len(self.true_positives), len(self.allowed)}
        require(len(lengths) == 1 and self.allowed, f"{FILE}: roc", "give three lists of one length", sorted(lengths))
        rates = (*self.false_positives, *self.true_positives, *self.allowed, *(v for point in self.sure for v in point))
        require(all(0 <= rate <= 1 for rate in rates), f"{FILE}: roc", "give rates in [0, 1]", "something else")
        rising = all(a <= b for a, b in zip(self.false_positives, self.false_positives[1:], strict=False))
        require(rising, f"{FILE}: roc", "give false-positive rates that rise", "something else")

    def power_at(self, alarms: float) -> tuple[float, float] | None:
        """Return the best true-positive rate at this rate of false alarms, and the largest that is allowed.

        Returns None where it was not measured.
        """
        reached = [i for i, rate in enumerate(self.false_positives) if rate <= alarms]
        if not reached:
            return None
        return max(self.true_positives[i] for i in reached), self.allowed[reached[-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """One attack on what one observer sees, at a multiple of the run's noise."""

    adversary: str
    attack: str
    noise: float
    epsilon: float | None
    records: float
    cosine: float
    psnr: float
    labels_right: float | None
    pictures: Sequence[Greys]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leakage:
    """What attacks read from gradients; ``blind``: cosine and decibels of a guess that looks at nothing."""

    victims: int
    delta: float
    truth: Sequence[Greys]
    blind: tuple[float, float]
    rows: tuple[Leak, ...]

    def strongest(self, adversary: str) -> list[Leak]:
        """Return the observer's best attack at each level of noise, the least noise first."""
        mine = [row for row in self.rows if row.adversary == adversary]
        levels = sorted({row.noise for row in mine})
        return [max((r for r in mine if r.noise == level), key=lambda r: r.psnr) for level in levels]


@dataclass(frozen=True, slots=True)
class Hiding:
    """The same attacker with more or less information: what it sees, what is certified for that, and what it shows."""

    sees: str
    certified: float | None
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """An audit, ready to be shown."""

    findings: tuple[Finding, ...]
    broken: tuple[Finding, ...]
    rocs: tuple[Roc, ...]
    games: tuple[Roc, ...]
    leakage: Leakage | None
    hiding: tuple[Hiding, ...]

    def strongest(self, adversary: str) -> Finding | None:
        """Return the finding that says most about an observer: a broken promise, else the largest lower bound."""
        mine = [f for f in self.findings if f.adversary == adversary and f.kind == "lower-bound"]
        return max(mine, key=lambda f: (f.verdict == "broken", f.measured), default=None)


def audit_view(audit: Audit) -> AuditView:
    """Return the view of an audit; refuse, in one sentence, what cannot be shown."""
    try:
        return AuditView(
            findings=audit.findings,
            broken=audit.broken,
            rocs=tuple(_roc(finding, finding.details["roc"]) for finding in audit.findings if "roc" in finding.details),
            games=tuple(_game(finding) for finding in audit.findings if finding.details.get("region")),
            leakage=None if audit.leakage is None else _leakage(audit.leakage),
            hiding=() if audit.hidden_state is None else _hiding(audit.hidden_state),
        )
    except BadValue:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise BadValue(f"{FILE} must be complete: {error!r}. Audit the run again.") from error


def _roc(finding: Finding, given: Mapping[str, Any]) -> Roc:
    false, true = (tuple(float(v) for v in given[key]) for key in ("false_positives", "true_positives"))
    allowed = given["allowed"]  # absent if nothing was promised: then everything is allowed
    return Roc(finding, false, true, (1.0,) * len(false) if allowed is None else tuple(float(v) for v in allowed))


def _game(finding: Finding) -> Roc:
    """Return the points of a distinguishing game, from the fewest false positives to the most."""
    region = finding.details["region"]
    order = sorted(range(len(region["false_positives"])), key=lambda place: region["false_positives"][place])
    false, true, allowed, least, worst = (
        tuple(float(region[key][place]) for place in order)
        for key in ("false_positives", "true_positives", "allowed", "least", "worst")
    )
    promised = allowed if finding.certified is not None else (1.0,) * len(false)
    return Roc(finding, false, true, promised, tuple(sorted(zip(worst, least, strict=True))))


def _leakage(given: Mapping[str, Any]) -> Leakage:
    blind = given["blind"]
    return Leakage(
        victims=int(given["victims"]),
        delta=float(given["delta"]),
        truth=list(given["truth"]),
        blind=(_finite(blind["cosine"]), _finite(blind["psnr"])),
        rows=tuple(_leak(row) for row in given["rows"]),
    )


def _leak(row: Mapping[str, Any]) -> Leak:
    require(row["adversary"] in get_args(Adversary), f"{FILE}: leakage", "name a known observer", row["adversary"])
    epsilon, labels = row["epsilon"], row["labels_right"]
    return Leak(
        adversary=str(row["adversary"]),
        attack=str(row["attack"]),
        noise=_finite(row["noise"]),
        epsilon=None if epsilon is None else float(epsilon),
        records=_finite(row["records"]),
        cosine=_finite(row["cosine"]),
        psnr=_finite(row["psnr"]),
        labels_right=None if labels is None else _finite(labels),
        pictures=list(row["pictures"]),
    )


def _hiding(given: Mapping[str, Any]) -> tuple[Hiding, ...]:
    rows = given.get("rows", ())
    return tuple(
        Hiding(str(r["sees"]), None if r["certified"] is None else float(r["certified"]), _finite(r["measured"]))
        for r in rows
    )


def _finite(value: Any) -> float:
    number = float(value)
    require(math.isfinite(number), f"{FILE}", "hold finite numbers", value)
    return number
