"""Per person: with a public order every place has its own guarantee; the certificate is the worst of them."""

import math
from dataclasses import dataclass, replace

import numpy as np

from fedveil.account.last_iterate import evaluators
from fedveil.checks import require
from fedveil.mechanism import LastIterate
from fedveil.theory.numerics import check_delta, smallest_epsilon
from fedveil.values import number, whole

_TOLERANCE = 1e-7
_SLOW = ("linear-contraction", "nonlinear-contraction")  # they walk through all rounds for every epsilon
_FEW_ROUNDS = 400  # rounds up to which they are tried although the block bound, which is no worse, is there


@dataclass(frozen=True, slots=True)
class PlaceCurve:
    """Epsilon at each of the places (rounds, counted from 1) that were looked at; ``others`` bounds all the rest."""

    places: tuple[int, ...]
    epsilons: tuple[float, ...]
    others: float = 0.0

    @property
    def worst(self) -> float:
        """The certificate: the largest, places that were not looked at included."""
        return max(*self.epsilons, self.others)

    @property
    def mean(self) -> float:
        """What a person at a random but public place can expect."""
        return math.fsum(self.epsilons) / len(self.epsilons)


def place_curve(run: LastIterate, *, delta: float, most: int = 200) -> PlaceCurve:
    """Certified epsilon of each place; beyond ``most`` rounds, of that many places, the first and last among them.

    >>> run = LastIterate(rounds=4, step_size=0.5, lipschitz=1.0, smoothness=0.5, noise_std=2.0)
    >>> [round(e, 3) for e in place_curve(run, delta=1e-5).epsilons]  # mu = 1/sqrt(rounds from here on)
    [1.993, 2.341, 2.943, 4.377]
    """
    require(isinstance(run, LastIterate), "place_curve", "be asked for a hidden run", run)
    check_delta(delta := number("delta", delta))
    require(
        run.order == "public",
        "place_curve",
        "be asked for a public order",
        run.order,
        "A secret order has one epsilon, and so has one in which every record draws its own rounds.",
    )
    most = whole("most", most)
    require(most >= 2, "most", "be at least 2", most)
    count = min(run.rounds, most)
    places = sorted({int(p) for p in np.linspace(1, run.rounds, count).round()})
    epsilons = tuple(_least(replace(run, place=place), delta) for place in places)
    others = _least(replace(run, place=None), delta) if len(places) < run.rounds else 0.0
    return PlaceCurve(tuple(places), epsilons, others)


def _least(run: LastIterate, delta: float) -> float:
    """The least certified epsilon at this place, over the same bounds as ``account``.

    A bound is inverted only if it beats the best one before it, which takes one evaluation to see. Transport withdraws
    itself where many rounds follow, so it is worked out for the last few places only. In long runs contraction round by
    round is left out where blocks of rounds are followed: they are at least as good, and a hundred times faster.
    """
    able = {e.name: e.log_delta for e in evaluators(run) if e.status == "certified" and e.log_delta is not None}
    quick = [bound for name, bound in able.items() if name not in _SLOW]
    slow = [able[name] for name in _SLOW if name in able and (run.total <= _FEW_ROUNDS or "block" not in able)]
    best, target = math.inf, math.log(delta)
    for log_delta in [*quick, *slow]:
        if best == math.inf or log_delta(best * (1 - _TOLERANCE)) <= target:
            best = min(best, smallest_epsilon(log_delta, delta, tolerance=_TOLERANCE))
    return best
