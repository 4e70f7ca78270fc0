"""Guarantees of single places: with a public order every place has its own; the certificate is the worst of them."""

import math
from dataclasses import dataclass, replace

import numpy as np

from fedveil.accounting.last_iterate import evaluators
from fedveil.core.errors import require
from fedveil.core.values import number, whole
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.numerics import REPORTED_DELTA, check_delta, check_epsilon, smallest_epsilon

_ONE_EPSILON = "A secret order has one epsilon, and so has one in which every record draws its own rounds."
_TOLERANCE = 1e-7
_SLOW = ("linear-contraction", "nonlinear-contraction")  # they go through all rounds for every epsilon
_FEW_ROUNDS = 400  # most rounds for which they are tried although the block bound, which is no worse, is available


@dataclass(frozen=True, slots=True)
class PlaceCurve:
    """Epsilon at each examined place (round, counted from 1); ``others`` bounds all the rest.

    >>> PlaceCurve(places=(1, 10), epsilons=(0.5, 1.5)).worst
    1.5
    """

    places: tuple[int, ...]
    epsilons: tuple[float, ...]
    others: float = 0.0

    @property
    def worst(self) -> float:
        """The certificate: the largest epsilon, including places that were not examined."""
        return max(*self.epsilons, self.others)

    @property
    def mean(self) -> float:
        """The mean epsilon, for a person at a random but public place."""
        return math.fsum(self.epsilons) / len(self.epsilons)


@dataclass(frozen=True, slots=True)
class PlaceDeltas:
    """Delta at each examined place (round, counted from 1); ``others`` bounds all the rest."""

    places: tuple[int, ...]
    deltas: tuple[float, ...]
    others: float = 0.0

    @property
    def worst(self) -> float:
        """The certificate: the largest delta, including places that were not examined."""
        return max(*self.deltas, self.others)

    @property
    def mean(self) -> float:
        """The mean delta, for a person at a random but public place."""
        return math.fsum(self.deltas) / len(self.deltas)


def place_curve(run: LastIterate, *, delta: float, most: int = 200) -> PlaceCurve:
    """Return the certified epsilon of each place; with more than ``most`` rounds, of that many places.

    The first and the last are always among them.

    >>> run = LastIterate(rounds=4, step_size=0.5, lipschitz=1.0, smoothness=0.5, noise_std=2.0)
    >>> [round(e, 3) for e in place_curve(run, delta=1e-5).epsilons]  # mu = 1/sqrt(rounds from here on)
    [1.993, 2.341, 2.943, 4.377]
    """
    require(isinstance(run, LastIterate), "place_curve", "be asked for a hidden run", run)
    check_delta(delta := number("delta", delta))
    require(run.order == "public", "place_curve", "be asked for a public order", run.order, _ONE_EPSILON)
    places = _examined(run, most)
    epsilons = tuple(_least(replace(run, place=place), delta) for place in places)
    others = _least(replace(run, place=None), delta) if len(places) < run.rounds else 0.0
    return PlaceCurve(places, epsilons, others)


def place_deltas(run: LastIterate, *, epsilon: float, most: int = 200) -> PlaceDeltas:
    """Return the certified delta of each place at this epsilon; with more than ``most`` rounds, of that many places.

    >>> run = LastIterate(rounds=4, step_size=0.5, lipschitz=1.0, smoothness=0.5, noise_std=2.0)
    >>> [float(f"{d:.2g}") for d in place_deltas(run, epsilon=2.0).deltas]
    [9.4e-06, 0.0001, 0.0013, 0.021]
    """
    require(isinstance(run, LastIterate), "place_deltas", "be asked for a hidden run", run)
    check_epsilon(epsilon := number("epsilon", epsilon))
    require(run.order == "public", "place_deltas", "be asked for a public order", run.order, _ONE_EPSILON)
    places = _examined(run, most)
    deltas = tuple(_least_delta(replace(run, place=place), epsilon) for place in places)
    others = _least_delta(replace(run, place=None), epsilon) if len(places) < run.rounds else 0.0
    return PlaceDeltas(places, deltas, others)


def _least_delta(run: LastIterate, epsilon: float) -> float:
    certified = [e.log_delta for e in evaluators(run) if e.status == "certified" and e.log_delta is not None]
    return min(1.0, max(math.exp(min(bound(epsilon) for bound in certified)), REPORTED_DELTA))


def _examined(run: LastIterate, most: int) -> tuple[int, ...]:
    """Return the places to look at, the first and the last among them."""
    most = whole("most", most)
    require(most >= 2, "most", "be at least 2", most)
    return tuple(sorted({int(p) for p in np.linspace(1, run.rounds, min(run.rounds, most)).round()}))


def _least(run: LastIterate, delta: float) -> float:
    """Return the least certified epsilon at this place, over the same bounds as ``account``.

    A bound is inverted only if it beats the best one before it, which one evaluation shows. Transport withdraws if many
    rounds follow, so it is computed for the last few places only. In long runs, contraction round by round is left out
    if blocks of rounds are followed, which is at least as good and a hundred times faster.
    """
    able = {e.name: e.log_delta for e in evaluators(run) if e.status == "certified" and e.log_delta is not None}
    quick = [bound for name, bound in able.items() if name not in _SLOW]
    slow = [able[name] for name in _SLOW if name in able and (run.total <= _FEW_ROUNDS or "block" not in able)]
    best, target = math.inf, math.log(delta)
    for log_delta in [*quick, *slow]:
        if best == math.inf or log_delta(best * (1 - _TOLERANCE)) <= target:
            best = min(best, smallest_epsilon(log_delta, delta, tolerance=_TOLERANCE))
    return best
