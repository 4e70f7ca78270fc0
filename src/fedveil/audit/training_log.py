"""Check what somebody claims about a training against a log of the training itself.

The log states what was meant (sampler, rate, clipping norm, noise multiplier, neighbours) and what happened in each
round: who was in the batch, how long the clipped gradients were, what the sum was divided by, and the noise that was
added. From the statement the accountant works out an epsilon; from the rounds exact tests say whether they are those of
the statement. Page: docs/audit-others.md (format of the log).
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaln

from fedveil.accounting.compare import account_for
from fedveil.audit.claim import Claim
from fedveil.audit.confidence import at_least, at_most, exactly
from fedveil.audit.finding import Finding, Verdict
from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Neighbours
from fedveil.privacy.mechanism import Gaussian, Mechanism, Repeat, SampledGaussian

# Whether a sampler draws what is accounted for: exact tests on who joined which round, and on who stayed silent.
#
# An accountant that counts on secret draws counts on their law: uniform, independent between units, fresh in every
# pass, and with a message in every round. A shuffled loader gives each record a uniform place too, but makes the sizes
# of its batches even, and so ties the records to each other. Every test here is a binomial one whose law is known
# exactly, so that the chance of a false alarm is at most ``alarm`` in all. Theory page: distinguishing-game.md.

Joined = NDArray[np.bool_]
Order = Literal["poisson", "independent"]
Test = tuple[str, float]  # what is looked at, and the chance that the right draws look at least so odd


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawsJudged:
    """``tests``: what was looked at, each with its p-value; ``verdict``: broken where one is too small for chance."""

    verdict: Literal["consistent", "broken"]
    alarm: float
    tests: tuple[Test, ...]
    evidence: str


def judge_draws(
    joined: Joined,
    *,
    order: Order,
    rate: float | None = None,
    alarm: float = 1e-6,
    sent: NDArray[np.bool_] | None = None,
) -> DrawsJudged:
    """Hold draws against the law that is accounted for.

    ``joined``: passes, rounds of a pass, units; ``sent``: passes, rounds: whether a message left in each.

    >>> picked = np.random.default_rng(0).integers(0, 5, (40, 60))
    >>> drawn = picked[:, None, :] == np.arange(5)[None, :, None]
    >>> judge_draws(drawn, order="independent").verdict
    'consistent'
    >>> again = np.repeat(drawn[:1], 40, axis=0)  # the same draws in every pass
    >>> judge_draws(again, order="independent").verdict
    'broken'
    """
    require(joined.ndim == 3 and joined.size > 0, "joined", "have passes, rounds and units", joined.shape)
    require(0 < alarm < 1, "alarm", "lie strictly between 0 and 1", alarm)
    require(order in ("poisson", "independent"), "order", "be poisson or independent", order)
    fits = (rate is not None and 0 < rate < 1) if order == "poisson" else rate is None
    require(fits, "rate", "lie in (0, 1) for poisson, and be left out of independent draws", rate)
    sure = _surely_wrong(joined, order, sent)
    if sure:
        return DrawsJudged(verdict="broken", alarm=alarm, tests=((sure, 0.0),), evidence=f"{sure}: never by chance.")
    tests = tuple(_independent(joined) if order == "independent" else _poisson(joined, rate or 0.0))
    name, least = min(tests, key=lambda test: test[1])
    broken = least * len(tests) <= alarm
    how = f"{name} would look like this with chance {least:.2g}"
    evidence = f"{how}: these are NOT the draws that are accounted for." if broken else f"At the oddest, {how}."
    return DrawsJudged(verdict="broken" if broken else "consistent", alarm=alarm, tests=tests, evidence=evidence)


def _surely_wrong(joined: Joined, order: Order, sent: NDArray[np.bool_] | None) -> str:
    if sent is not None:
        require(sent.shape == joined.shape[:2], "sent", f"have the shape {joined.shape[:2]}", sent.shape)
        if not bool(sent.all()):
            return f"{int(np.sum(~sent))} rounds stayed silent"
    if order == "independent" and not bool(np.all(joined.sum(axis=1) == 1)):
        return "a record did not take part exactly once in a pass"
    return ""


def _independent(joined: Joined) -> Iterator[Test]:
    passes, rounds, units = joined.shape
    if rounds == 1:
        yield "a pass of one round", 1.0
        return
    picked, share = joined.argmax(axis=1), 1 / rounds
    counts = np.bincount(picked.ravel(), minlength=rounds)
    yield "how often each round was picked", min(1.0, rounds * float(np.min(_either(counts, picked.size, share))))
    together = picked[:, 0 : units - 1 : 2] == picked[:, 1:units:2]
    yield "how often two records met", _either_one(int(together.sum()), together.size, share)
    sizes = joined.sum(axis=2)
    even = int(np.sum((sizes.max(axis=1) - sizes.min(axis=1)) <= 1))
    yield "how often all batches of a pass were even", float(at_least(even, passes, _all_even(units, rounds)))
    for lag in (1, 2):
        before, after = _apart(picked, lag)
        same = before == after
        yield (
            f"how often a record kept its round from {lag} pass before",
            _either_one(int(same.sum()), same.size, share),
        )


def _poisson(joined: Joined, rate: float) -> Iterator[Test]:
    passes, rounds, units = joined.shape
    coins = joined.reshape(passes * rounds, units)
    turns = coins.shape[0]
    yield "how many joined", _either_one(int(coins.sum()), coins.size, rate)
    each = _either(coins.sum(axis=0), turns, rate)
    yield "how often each record joined", min(1.0, units * float(np.min(each)))
    both = coins[:, 0 : units - 1 : 2] & coins[:, 1:units:2]
    yield "how often two records joined together", _either_one(int(both.sum()), both.size, rate * rate)
    same = int(np.bincount(coins.sum(axis=1)).max())
    each_size = at_least(same, turns, exactly(np.arange(units + 1), units, rate))
    yield "how often batches were of one size", min(1.0, float(each_size.sum()))
    for name, rows, lag in (("round", coins, 1), ("pass", joined, 1)):
        before, after = _apart(rows, lag)
        again = np.logical_and(before, after)
        yield f"how often a record joined again a {name} later", _either_one(int(again.sum()), again.size, rate**2)


def _apart(rows: NDArray[np.generic], lag: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Disjoint pairs of entries so far apart: none is used twice, so that all comparisons are independent."""
    first = [k for k in range(rows.shape[0] - lag) if k % (2 * lag) < lag]
    return rows[first], rows[[k + lag for k in first]]


def _either(counts: NDArray[np.int64], trials: int, share: float) -> NDArray[np.float64]:
    """Twice the smaller tail, for each count."""
    low, high = at_most(counts, trials, share), at_least(counts, trials, share)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(low, high)), dtype=np.float64)


def _either_one(count: int, trials: int, share: float) -> float:
    return float(_either(np.array([count]), trials, share)[0]) if trials else 1.0


def _all_even(units: int, rounds: int) -> float:
    """Return the chance that all batches of a pass differ by at most one: of the multinomial law, exactly."""
    least, more = divmod(units, rounds)
    log = gammaln(units + 1) - more * gammaln(least + 2) - (rounds - more) * gammaln(least + 1)
    log += gammaln(rounds + 1) - gammaln(more + 1) - gammaln(rounds - more + 1) - units * math.log(rounds)
    return min(1.0, math.exp(float(log)) * (1 + 1e-9))


_SLACK = 1e-3  # relative error of norms and of epsilon that is not held against anybody
_TOLD = 4  # entries of noise that are never the same twice by chance, even if they were rounded for the log
_SAMPLERS: Final = ("poisson", "full", "shuffled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a training is accounted as: ``rounds`` noisy sums of gradients of norm at most ``clip``.

    ``rate``: of a record to be in a batch; a shuffled loader uses every record once a pass, which no rate describes.
    """

    sampler: str
    records: int
    rate: float
    clip: float
    noise_multiplier: float
    rounds: int
    neighbours: Neighbours

    def __post_init__(self) -> None:
        require(self.sampler in _SAMPLERS, "log: sampler", f"be one of {', '.join(_SAMPLERS)}", self.sampler)
        for name in ("records", "rounds"):
            require(getattr(self, name) >= 1, f"log: {name}", "be at least 1", getattr(self, name))
        require(0 < self.rate <= 1, "log: rate", "lie in (0, 1]", self.rate)
        for name in ("clip", "noise_multiplier"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"log: {name}", "be finite and positive", value)

    @property
    def uses(self) -> int:
        """How often a record takes part at most; one batch of each pass of a shuffled loader holds it."""
        if self.sampler == "shuffled":
            return max(1, math.ceil(self.rounds * self.rate - 1e-9))
        return self.rounds

    @property
    def mechanism(self) -> Mechanism:
        """What an accountant charges for it."""
        whole = Gaussian(noise_multiplier=self.noise_multiplier, neighbours=self.neighbours)
        if self.sampler != "poisson" or self.rate == 1:
            return Repeat(of=whole, times=self.uses)
        sampled = SampledGaussian(
            sampling="poisson", rate=self.rate, noise_multiplier=self.noise_multiplier, neighbours=self.neighbours
        )
        return Repeat(of=sampled, times=self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """One round as it happened; ``norms`` are those of the clipped gradients, ``noise`` some entries of what was added.

    ``divisor``: what the noisy sum was divided by.
    """

    batch: tuple[int, ...]
    norms: Vector
    divisor: float
    noise: Vector


def read_log(text: str, neighbours: Neighbours | None = None) -> tuple[Statement, tuple[Round, ...]]:
    """Read a log: one JSON object a line, the statement first; ``neighbours`` replaces those that it states."""
    lines = [line for line in text.splitlines() if line.strip()]
    require(len(lines) >= 2, "log", "hold a statement and at least one round", len(lines))
    try:
        stated: dict[str, Any] = {"rounds": len(lines) - 1, "neighbours": "zero-out"}
        stated |= read_object(lines[0], "log, line 1")
        statement = Statement(**stated | ({} if neighbours is None else {"neighbours": neighbours}))
        return statement, tuple(_round(_object(line), number) for number, line in enumerate(lines[1:], start=2))
    except (TypeError, KeyError) as error:
        raise BadValue(f"The log must have the fields that docs/audit-others.md names: {error}.") from error


def _object(line: str) -> Mapping[str, Any]:
    """Read a round; unlike elsewhere it may hold NaN, which the check of clipped norms looks for."""
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise BadValue(f"The log must hold one JSON object a line: {error}.") from error
    require(isinstance(row, dict), "log", "hold one object a line", type(row).__name__)
    return dict(row)


def _round(row: Mapping[str, Any], number: int) -> Round:
    norms = np.array(row.get("norms", ()), dtype=np.float64)
    batch = tuple(int(index) for index in row["batch"])
    require(norms.size in (0, len(batch)), f"log, line {number}", "have a norm for each of its batch", norms.size)
    noise = np.array(row.get("noise", ()), dtype=np.float64)
    return Round(batch=batch, norms=norms, divisor=float(row.get("divisor", math.nan)), noise=noise)


def check_log(
    statement: Statement, rounds: Sequence[Round], claim: Claim, *, delta: float, alarm: float = 1e-6
) -> tuple[Finding, ...]:
    """Return one finding for each thing that can be wrong; right trainings are accused with chance ``alarm`` each."""
    checks = (
        ("accounting", _accounted(statement, claim, delta)),
        ("rounds", _counted(statement, rounds)),
        ("draws of the sampler", _drawn(statement, rounds, alarm)),
        ("clipping", _clipped(statement, rounds)),
        ("averaging", _averaged(statement, rounds)),
        ("noise", _noised(statement, rounds, alarm)),
    )
    certified = claim.epsilon_at(delta)
    return tuple(
        Finding(
            attack=name,
            adversary="every-model",
            kind="lower-bound",
            certified=certified if math.isfinite(certified) else None,
            measured=0.0,
            delta=delta,
            alarm=alarm,
            verdict=verdict,
            evidence=evidence,
        )
        for name, (verdict, evidence) in checks
    )


Judged = tuple[Verdict, str]


def _accounted(statement: Statement, claim: Claim, delta: float) -> Judged:
    certified, proved = claim.epsilon_at(delta), account_for(statement.mechanism, delta=delta).epsilon
    how = f"{statement.rounds} rounds of {statement.sampler} batches, noise {statement.noise_multiplier:g}"
    shown = f"{how}, {statement.neighbours} neighbours: the accountant gives {proved:.4g} at delta {delta:g}"
    if proved <= certified * (1 + _SLACK):
        return "consistent", f"{shown}; claimed is {certified:.4g}."
    return "broken", f"{shown}, and claimed is only {certified:.4g}."


def _counted(statement: Statement, rounds: Sequence[Round]) -> Judged:
    made = len(rounds)
    if made <= statement.rounds:
        return "consistent", f"The log holds {made} of {statement.rounds} rounds that are accounted for."
    return "broken", f"The log holds {made} rounds, and only {statement.rounds} are accounted for."


def _drawn(statement: Statement, rounds: Sequence[Round], alarm: float) -> Judged:
    joined = np.zeros((len(rounds), 1, statement.records), dtype=np.bool_)
    for turn, one in enumerate(rounds):
        require(all(0 <= index < statement.records for index in one.batch), "log: batch", "name records", turn + 1)
        if len(set(one.batch)) < len(one.batch):
            return "broken", f"A record is in the batch of round {turn + 1} more than once: it moves the sum as often."
        joined[turn, 0, list(one.batch)] = True
    if statement.sampler == "poisson" and statement.rate < 1:
        judged = judge_draws(joined, order="poisson", rate=statement.rate, alarm=alarm)
        return judged.verdict, f"{len(rounds)} rounds of {statement.records} records: {judged.evidence}"
    often, most = int(joined.sum(axis=(0, 1)).max()), statement.uses
    if often > most:
        return "broken", f"A record took part {often} times, and {most} are accounted for."
    return "not-judged", f"A {statement.sampler} sampler counts on no secret draws; no record took part too often."


def _clipped(statement: Statement, rounds: Sequence[Round]) -> Judged:
    norms = np.concatenate([one.norms for one in rounds])
    if not norms.size:
        return "not-judged", "The log holds no norms of clipped gradients."
    bad = ~(norms <= statement.clip * (1 + _SLACK))  # NaN fails every comparison
    if not bad.any():
        return "consistent", f"All {norms.size} clipped gradients are no longer than {statement.clip:g}."
    worst = "not a number" if np.isnan(norms[bad]).any() else f"{norms[bad].max():.4g}"
    return "broken", f"{int(bad.sum())} of {norms.size} gradients are longer than {statement.clip:g} ({worst})."


def _averaged(statement: Statement, rounds: Sequence[Round]) -> Judged:
    divisors = np.array([one.divisor for one in rounds])
    if np.isnan(divisors).all():
        return "not-judged", "The log does not say what sums were divided by."
    if np.unique(divisors).size == 1:
        return "consistent", f"Every sum was divided by {divisors[0]:g}, whoever was there."
    sizes = np.array([len(one.batch) for one in rounds])
    own = " the size of its own batch" if bool(np.all(divisors == np.maximum(sizes, 1))) else " its own number"
    return "broken", f"Each sum was divided by{own}, which one record changes: it reaches farther than its own clip."


def _noised(statement: Statement, rounds: Sequence[Round], alarm: float) -> Judged:
    noise, seen = np.concatenate([one.noise for one in rounds]), dict[bytes, int]()
    for turn, one in enumerate(rounds, start=1):
        first = seen.setdefault(one.noise.tobytes(), turn)
        if first < turn and one.noise.size >= _TOLD and one.noise.any():
            return "broken", f"Round {turn} adds the noise of round {first} again: the difference of both bares sums."
    if noise.size < 20:
        return "not-judged", "The log holds too little of the noise that was added."
    planned = statement.noise_multiplier * statement.clip
    square = float(np.sum((noise / planned) ** 2))
    chance = float(gammainc(noise.size / 2, square / 2)) if math.isfinite(square) else 0.0  # of as little or less
    shown = f"{noise.size} entries of noise have a deviation of {math.sqrt(square / noise.size) * planned:.4g}"
    if chance > alarm:
        return "consistent", f"{shown}; planned is {planned:.4g}."
    return "broken", f"{shown}, and planned is {planned:.4g}: the chance of so little is {chance:.1g}."
