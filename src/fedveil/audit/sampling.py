r"""Whether a sampler draws what is accounted for: exact tests on who joined which round, and on who stayed silent.

An accountant that counts on secret draws counts on their law: uniform, independent between units, fresh in every pass,
and with a message in every round. A shuffled loader gives each record a uniform place too, but makes the sizes of its
batches even, and so ties the records to each other. Every test here is a binomial one whose law is known exactly, so
that the chance of a false alarm is at most ``alarm`` in all. Theory page: distinguishing-game.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedveil.audit.confidence import at_least, at_most, exactly
from fedveil.core.checks import require

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
    usual = round(units * rate)
    even = int(np.sum(coins.sum(axis=1) == usual))
    yield "how often a batch had its planned size", float(at_least(even, turns, exactly(usual, units, rate)))
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
