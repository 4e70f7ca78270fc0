"""Test the accountants: no certified bound may be below the exact privacy loss of an instance of the run."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from fedveil.accounting.compare import account_for
from fedveil.audit.worst import Dimension, Worst, worst_case
from fedveil.privacy.guarantee import Answer, finite_or_none
from fedveil.privacy.mechanism import LastIterate


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A claim that an instance refutes.

    ``claimed_delta`` at ``epsilon``, where ``exact_delta`` is certainly reached.
    """

    bound: str
    epsilon: float
    claimed_delta: float
    exact_delta: float
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What the oracle found: ``ratio`` is the best certified epsilon over the exact lower one, None if that is 0."""

    verdict: Literal["consistent", "broken"]
    delta: float
    epsilon: float
    certified_by: str | None
    worst: Worst
    dimension: Dimension
    evidence: tuple[Evidence, ...]

    @property
    def ratio(self) -> float | None:
        """The certified epsilon over what some instance reaches: at least 1 unless broken."""
        return self.epsilon / self.worst.epsilon_lower if self.worst.epsilon_lower > 0 else None


def check(
    run: LastIterate,
    delta: float,
    *,
    answer: Answer | None = None,
    dimension: Dimension = "any",
    sweeps: int = 6,
) -> Check:
    """Compare each certified bound of ``account_for`` (or of ``answer``, a claim) with the worst instance found.

    >>> run = LastIterate(rounds=2, place=2, step_size=0.5, lipschitz=1.0, smoothness=0.5, diameter=4.0, noise_std=2.0)
    >>> found = check(run, 1e-5, sweeps=1)
    >>> found.verdict, found.certified_by, found.ratio < 1.1
    ('consistent', 'unhidden', True)
    """
    worst = worst_case(run, delta, dimension=dimension, sweeps=sweeps)
    claims = answer if answer is not None else account_for(run, delta=delta)
    evidence = _refuted(claims, worst)
    if answer is None:  # the rest of the curve, where the instance still shows something
        for epsilon in (0.0, worst.epsilon_lower / 2):
            evidence += _refuted(account_for(run, epsilon=epsilon), worst)
    return Check(
        verdict="broken" if evidence else "consistent",
        delta=delta,
        epsilon=claims.epsilon,
        certified_by=claims.certified_by,
        worst=worst,
        dimension=dimension,
        evidence=evidence,
    )


def _refuted(claims: Answer, worst: Worst) -> tuple[Evidence, ...]:
    found = []
    for bound in claims.bounds:
        epsilon, claimed = bound.epsilon, bound.delta if bound.delta is not None else claims.delta
        if bound.status != "certified" or epsilon is None or not epsilon < math.inf:
            continue
        reached = worst.laws.delta_lower(epsilon)
        if not reached <= claimed:
            row = Evidence(
                bound=bound.name,
                epsilon=epsilon,
                claimed_delta=claimed,
                exact_delta=reached,
                instance=worst.instance.label,
            )
            found.append(row)
    return tuple(found)


def as_record(found: Check) -> dict[str, Any]:
    """Return the check as plain values for JSON; an infinite epsilon is null."""
    worst = found.worst
    return {
        "verdict": found.verdict,
        "delta": found.delta,
        "certified": {"epsilon": finite_or_none(found.epsilon), "by": found.certified_by},
        "exact": {
            "dimension": found.dimension,
            "epsilon_lower": worst.epsilon_lower,
            "epsilon_upper": finite_or_none(worst.epsilon_upper),
            "instance": worst.instance.label,
            "interval": [worst.instance.lo, worst.instance.hi],
            "start": worst.instance.start,
            "tried": worst.tried,
        },
        "ratio": finite_or_none(found.ratio),
        "evidence": [
            {
                "bound": row.bound,
                "epsilon": row.epsilon,
                "claimed_delta": row.claimed_delta,
                "exact_delta": row.exact_delta,
                "instance": row.instance,
            }
            for row in found.evidence
        ],
    }
