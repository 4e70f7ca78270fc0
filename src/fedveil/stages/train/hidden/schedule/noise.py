r"""How to spread noise over the rounds: the least risk for the same protection of every place.

Noise in round k adds weight_k * variance_k to the risk; place t is protected to mu_t^2 = the energy of its optimal
shift. Both are convex in the variances; the shapes here are fixed points of the optimality conditions. They are
shapes only: how much noise is enough is always left to the certified bounds. Theory page: schedules.md.
"""

import numpy as np
from scipy.optimize import isotonic_regression

from fedveil.core.values import Indices, Vector

_TURNS = 24
_PLACES = 24  # number of places that are followed; the others lie between them
# no round falls below this share of the mean, because other observers than the final model's reader exist
_FLOOR = 0.02


def watched(rounds: int) -> tuple[Indices, Vector]:
    """Return some places, denser towards the last, and how many places each stands for."""
    if rounds <= _PLACES:
        return np.arange(rounds), np.ones(rounds)
    back = np.unique(np.round(np.geomspace(1, rounds, _PLACES)).astype(np.intp))
    places = (rounds - back)[::-1]
    return places, np.diff(np.append(-1, places)).astype(np.float64)


def energies(
    gaps: Vector, factors: Vector, variance: Vector, rounds: int, *, hidden: bool = True
) -> tuple[Vector, Vector, Vector]:
    """Return mu^2 of the watched places, the slopes of their shifts, and how many places each stands for.

    If the models are seen (not ``hidden``), every gap must be closed in the round that opens it.
    """
    places, stands_for = watched(rounds)
    clock, arriving = factors**2 * variance, factors * gaps
    slopes = np.zeros((places.size, gaps.size))
    for row, place in enumerate(places):
        opened = np.zeros(gaps.size)
        opened[place::rounds] = arriving[place::rounds]
        rates = opened / clock
        slopes[row] = isotonic_regression(rates, weights=clock).x if hidden else rates
    return np.sum(slopes**2 * clock, axis=1), slopes, stands_for


def need(energy: Vector, stands_for: Vector, *, secret: bool) -> float:
    """Return one mu^2 for all places.

    The worst, or the mean for a secret place (a guess, which calibration replaces).
    """
    return float(energy @ stands_for / stands_for.sum()) if secret else float(energy.max())


def spread_noise(
    gaps: Vector, weights: Vector, factors: Vector, rounds: int, *, secret: bool, hidden: bool = True
) -> tuple[Vector, float]:
    """Return variances (up to scale) of least risk for mu = 1, and that risk; ``rounds`` is the number of places."""
    weights = np.maximum(weights, 1e-12 * float(weights.max(initial=1e-300)))  # a step may erase all noise before it
    if rounds == 1:  # every round uses everybody, so closing a gap later gains nothing
        variance = gaps / np.sqrt(weights)
        variance = variance * float(np.sum(gaps**2 / variance))
        return variance, float(weights @ variance)
    variance = gaps / np.sqrt(weights)
    blame = watched(rounds)[1] / rounds
    best, least = variance, np.inf
    for _ in range(_TURNS):
        variance = floored(variance, gaps)
        energy, slopes, stands_for = energies(gaps, factors, variance, rounds, hidden=hidden)
        scale = need(energy, stands_for, secret=secret)
        variance = variance * scale
        risk = float(weights @ variance)
        if risk < least:
            best, least = variance, risk
        if not secret:
            blame = blame * energy / energy.max()
            blame = blame / blame.sum()
        variance = variance * np.sqrt(blame @ slopes**2 / scale**2 * factors**2 / weights)
    return best, least


def floored(variance: Vector, gaps: Vector) -> Vector:
    """Give every round at least a small share of what even noise would give it."""
    even = gaps**2 / np.sum(gaps**2)
    return np.maximum(variance, _FLOOR * float(variance.sum()) * even)
