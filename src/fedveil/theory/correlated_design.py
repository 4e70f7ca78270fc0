r"""Matrices for correlated noise that leave the models least error at one privacy: banded ones, and ones with buffers.

What is least is error times sensitivity (their squares), which does not change when the matrix is scaled. Nothing here
has to be trusted: whatever matrix is found, its sensitivity is worked out afterwards. Theory page: correlated-noise.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import minimize

from fedveil.core.values import Vector
from fedveil.theory.correlated import (
    coefficients_of_buffers,
    joined_columns,
    sensitivity_squared,
    squared_error,
)
from fedveil.theory.filtering import lfilter

_SLOWEST: Final = 7.0  # a buffer keeps at most 1 - 10**-7 of itself
_WORST: Final = 1e100
_DIGITS: Final = 6  # that a plan holds: so that one machine finds the same as another, at no loss worth naming
_FLATTEST: Final = 1e-9  # ratio of two coefficients; it is divided by


@dataclass(frozen=True, slots=True, eq=False)
class Aim:
    """What is optimised: the models' error (``weights``, ``counted`` as in :func:`squared_error`) for a pattern."""

    weights: Vector
    counted: Vector
    participations: int
    separation: int

    @classmethod
    def last(cls, weights: Vector, participations: int, separation: int) -> "Aim":
        """Return the aim at the last model, which holds the releases with these weights (the latest first)."""
        return cls(weights, np.ones_like(weights), participations, separation)

    @classmethod
    def mean(cls, weights: Vector, participations: int, separation: int) -> "Aim":
        """Return the aim at the mean over all models, for weights that depend on a release's age alone."""
        rounds = weights.size
        return cls(weights, 1 - np.arange(rounds) / rounds, participations, separation)

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return self.weights.size

    def loss(self, coefficients: Vector) -> float:
        """Return squared error times squared sensitivity."""
        return squared_error(coefficients, self.weights, self.counted) * sensitivity_squared(
            coefficients, self.participations, self.separation
        )


def root_coefficients(count: int) -> Vector:
    r"""Return the first coefficients of $(1 - x)^{-1/2}$, the best full matrix for prefix sums and one participation.

    >>> root_coefficients(4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    ratios = 1 - 0.5 / np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod(ratios)])


def best_bands(aim: Aim, bands: int) -> tuple[float, ...]:
    """Return the coefficients of the banded matrix with the least loss that a local search finds.

    Where participations overlap in the noise, coefficients are searched for as products of ratios of at most 1: they
    then do not increase, which is what the closed form of the sensitivity asks for.
    """
    if bands == 1:
        return (1.0,)
    start = root_coefficients(bands)
    falling = bands > aim.separation
    loss = _falling_loss if falling else _banded_loss
    first = np.asarray(start[1:] / start[:-1] if falling else start[1:], dtype=np.float64)
    least = _FLATTEST if falling else 0.0
    found = minimize(
        loss, first, args=(aim,), jac=True, method="L-BFGS-B", bounds=[(least, 1.0)] * (bands - 1),
        options={"maxiter": 1000, "maxfun": 2000, "ftol": 1e-13, "gtol": 1e-9},
    )  # fmt: skip
    best = found.x if loss(found.x, aim)[0] <= loss(first, aim)[0] else first
    tail = np.cumprod(best) if falling else best
    return (1.0, *(round(float(value), _DIGITS) for value in tail))


def _falling_loss(ratios: Vector, aim: Aim) -> tuple[float, Vector]:
    """Return the logarithm of the loss of the coefficients with these ratios, and its gradient."""
    tail = np.asarray(np.cumprod(ratios), dtype=np.float64)
    value, slope = _banded_loss(tail, aim)
    return value, np.cumsum((slope * tail)[::-1])[::-1] / ratios


def _banded_loss(tail: Vector, aim: Aim) -> tuple[float, Vector]:
    """Return the logarithm of the loss and its gradient with respect to all coefficients but the first."""
    column, rounds, bands = np.concatenate([[1.0], tail]), aim.rounds, tail.size + 1
    with np.errstate(all="ignore"):
        noise = lfilter([1.0], column, aim.weights)
        pulled = lfilter([1.0], column, (aim.counted * noise)[::-1])[::-1]
        error = float(np.sum(aim.counted * noise * noise))
    if not (error < _WORST and np.all(np.isfinite(pulled))):
        return _WORST, np.zeros_like(tail)
    slope = np.array([-2 * float(pulled[lag:] @ noise[: rounds - lag]) for lag in range(bands)])
    square, steeper = _squared_with_slope(column, aim)
    return math.log(error) + math.log(square), (slope / error + steeper / square)[1:]


def _squared_with_slope(column: Vector, aim: Aim) -> tuple[float, Vector]:
    """Return the squared sensitivity of non-increasing coefficients, and its gradient."""
    rounds, bands, apart = aim.rounds, column.size, aim.separation
    count = min(aim.participations, -(-rounds // apart))
    starts = np.arange(count) * apart
    if bands <= apart:
        times = np.array([int(np.count_nonzero(starts < rounds - lag)) for lag in range(bands)])
        return float(times @ (column * column)), 2 * times * column
    whole = np.zeros(rounds)
    whole[:bands] = column
    total = joined_columns(whole, count, apart)
    padded = np.concatenate([total, np.zeros(bands)])
    slope = np.array([2 * float(np.sum(padded[starts + lag])) for lag in range(bands)])
    return float(total @ total), slope


def best_buffers(aim: Aim, buffers: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return scales and decays of the buffered matrix with the least loss that a local search finds.

    The scales are positive and sum to at most 1 and the decays lie in (0, 1), so the coefficients never increase. The
    search begins with buffers whose memories are spread evenly, on a logarithmic scale, up to the number of rounds.
    """
    found: Vector | None = None
    for reach in (1.0, 0.5):
        memory = np.linspace(0.3, max(0.6, reach * math.log10(aim.rounds) + 0.2), buffers)
        start = np.concatenate([np.full(buffers, math.log(0.5 / buffers)) - memory / 2 + 0.5, memory])
        limits = [(-25.0, 0.0)] * buffers + [(1e-3, _SLOWEST)] * buffers
        for _ in range(3):  # a search that is begun again forgets a curvature that was wrong
            start = minimize(
                _buffered_loss, start, args=(aim,), method="L-BFGS-B", bounds=limits,
                options={"maxiter": 500, "maxfun": 20000, "ftol": 1e-14, "gtol": 1e-10},
            ).x  # fmt: skip
        if found is None or _buffered_loss(start, aim) < _buffered_loss(found, aim):
            found = start
    assert found is not None  # noqa: S101  the loop runs twice
    scales, decays = _buffers_at(found)
    order = np.argsort(-decays)
    cut = np.floor(scales[order] * 10.0**_DIGITS) / 10.0**_DIGITS  # downwards: their sum stays at most 1
    return tuple(cut.tolist()), tuple(round(float(value), _DIGITS + 3) for value in decays[order])


def _buffers_at(place: Vector) -> tuple[Vector, Vector]:
    scales, decays = np.exp(place[: place.size // 2]), 1 - 10.0 ** -place[place.size // 2 :]
    return scales / max(1.0, float(scales.sum()) * (1 + 1e-12)), decays


def _buffered_loss(place: Vector, aim: Aim) -> float:
    scales, decays = _buffers_at(place)
    below, above = polynomials(scales.tolist(), decays.tolist())
    column = coefficients_of_buffers(scales.tolist(), decays.tolist(), aim.rounds)
    with np.errstate(all="ignore"):
        noise = lfilter(below, above, aim.weights)
        error = float(np.sum(aim.counted * noise * noise))
    if not error < _WORST:
        return _WORST
    return math.log(error) + math.log(sensitivity_squared(column, aim.participations, aim.separation))


def polynomials(scales: Sequence[float], decays: Sequence[float]) -> tuple[Vector, Vector]:
    r"""Return $Q = \prod_i(1 - \lambda_i x)$ and $P = Q + x\sum_i\alpha_i Q/(1 - \lambda_i x)$, so that $C = P/Q$.

    >>> polynomials((0.5,), (0.5,))
    (array([ 1. , -0.5]), array([1., 0.]))
    """
    whole = np.array([1.0])
    for decay in decays:
        whole = np.convolve(whole, [1.0, -decay])
    other = whole.copy()
    for index, scale in enumerate(scales):
        part = np.array([1.0])
        for place, decay in enumerate(decays):
            part = np.convolve(part, [1.0, -decay]) if place != index else part
        other[1:] += scale * part
    return whole, other
