"""Noise that is correlated between rounds: its factors, its sensitivity, and the factor with the least error.

The released sums are $x + C^{-1}z$ for a lower-triangular Toeplitz matrix $C$ with first column $c$, $c_0 = 1$, and
independent normal $z$: post-processing of $Cx + z$, one Gaussian mechanism. A unit takes part in at most
``participations`` rounds, every two of them at least ``separation`` rounds apart. Theory page: correlated-noise.md.

References:
    Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu. (Amplified) Banded Matrix Factorization. 2023.
    Kalinin, Lampert. Banded Square Root Matrix Factorization for Differentially Private Model Training. 2024.
    Dvijotham, McMahan, Pillutla, Steinke, Thakurta. Efficient and Near-Optimal Noise Generation for Streaming
    Differential Privacy. 2024.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import scipy

from fedveil.core.errors import require
from fedveil.core.values import Vector, number
from fedveil.theory.grid import LARGEST_STATE

# The recursive filter of scipy.signal, which is loaded when it is first called.
#
# Loading it takes longer than all of the rest of a command's start, and few commands filter anything.


def lfilter(above: Vector | Sequence[float], below: Vector | Sequence[float], values: Vector, axis: int = -1) -> Vector:
    """Return the values after the filter with these coefficients of numerator and denominator.

    >>> lfilter([1.0], [1.0, -0.5], np.array([1.0, 0.0, 0.0]))
    array([1.  , 0.5 , 0.25])
    """
    if len(above) == 1 and not np.any(below[1:]):  # without memory; a constant that every process makes is one of these
        return np.asarray(values, dtype=np.float64) * (above[0] / below[0])
    from scipy.signal import lfilter as filtered

    return np.asarray(filtered(above, below, values, axis=axis), dtype=np.float64)


def coefficients_of(column: Sequence[float], rounds: int) -> Vector:
    """Return the first column of a banded matrix, filled up with zeros to the number of rounds."""
    result = np.zeros(rounds)
    result[: min(len(column), rounds)] = column[:rounds]
    return result


def coefficients_of_buffers(scales: Sequence[float], decays: Sequence[float], rounds: int) -> Vector:
    r"""Return the first column of a buffered matrix: $c_0 = 1$, $c_t = \sum_i \alpha_i \lambda_i^{t-1}$."""
    powers = np.power.outer(np.asarray(decays, dtype=np.float64), np.arange(rounds - 1))
    return np.concatenate([[1.0], np.asarray(scales, dtype=np.float64) @ powers])


def inverse_of(coefficients: Vector) -> Vector:
    r"""Return the first column of $C^{-1}$: how independent noise becomes correlated noise.

    >>> inverse_of(np.array([1.0, 0.5, 0.25]))
    array([ 1. , -0.5,  0. ])
    """
    if coefficients.size == 1:  # one round, as of every default: the filter's library takes half a second to load
        return 1.0 / coefficients
    impulse = np.zeros(coefficients.size)
    impulse[0] = 1.0
    with np.errstate(all="ignore"):  # an inverse that grows without bound is refused by whoever uses it
        return np.asarray(lfilter([1.0], _trimmed(coefficients), impulse), dtype=np.float64)


def sensitivity(coefficients: Vector, participations: int, separation: int) -> float:
    r"""Return a bound on $|Cu|$ over all that one unit can contribute, with norm at most 1 in each of its rounds.

    The bound is the norm of the sum of the columns $0, b, 2b, \dots$ of $C$: exact if the coefficients are
    non-negative and do not increase, or if no two columns of a pattern overlap (then the squares of the columns' norms
    are added). Otherwise the coefficients are replaced by $\max_{j\ge t}|c_j|$, which is never smaller. Rounded up.

    >>> round(sensitivity(np.array([1.0, 0.5, 0.0, 0.0]), participations=2, separation=2), 9)  # sqrt(1.25 + 1.25)
    1.58113883
    """
    require(participations >= 1, "participations", "be at least 1", participations)
    require(separation >= 1, "separation", "be at least 1", separation)
    require(bool(np.all(np.isfinite(coefficients))), "coefficients", "be finite", coefficients.tolist()[:3])
    return math.sqrt(sensitivity_squared(coefficients, participations, separation)) * _upwards(coefficients.size)


def sensitivity_squared(coefficients: Vector, participations: int, separation: int) -> float:
    """Return the square of :func:`sensitivity`, not rounded up."""
    rounds = coefficients.size
    count = min(participations, -(-rounds // separation))
    if _trimmed(coefficients).size <= separation:
        squares = np.cumsum(coefficients * coefficients)
        return float(sum(squares[rounds - 1 - a * separation] for a in range(count)))
    return float(np.sum(joined_columns(majorant(coefficients), count, separation) ** 2))


def joined_columns(coefficients: Vector, count: int, separation: int) -> Vector:
    """Return the sum of so many columns of the matrix, each beginning ``separation`` rounds after the one before."""
    total = np.zeros_like(coefficients)
    for start in range(0, count * separation, separation):
        total[start:] += coefficients[: coefficients.size - start]
    return total


def majorant(coefficients: Vector) -> Vector:
    """Return the least non-increasing sequence that is nowhere below the coefficients' absolute values."""
    return np.asarray(np.maximum.accumulate(np.abs(coefficients)[::-1])[::-1], dtype=np.float64)


def weights_of_last(steps: Vector, momentum: float) -> Vector:
    r"""Return what the last model owes to the releases, the latest first.

    With steps $\eta_r$ and momentum $m$ the model moves by $\eta_r \sum_{s\le r} m^{r-s} y_s$ in round r, so the last
    one holds release s with weight $\sum_{r\ge s} \eta_r m^{r-s}$.

    >>> weights_of_last(np.array([1.0, 1.0, 1.0]), momentum=0.0), weights_of_last(np.array([1.0, 1.0]), momentum=0.5)
    (array([1., 1., 1.]), array([1. , 1.5]))
    """
    return np.asarray(lfilter([1.0], [1.0, -momentum], steps[::-1]), dtype=np.float64)


def squared_error(coefficients: Vector, weights: Vector, counted: Vector) -> float:
    r"""Return $\sum_j v_j ((c^{-1} * a)_j)^2$, the squared error of models whose releases have the weights $a$.

    With the weights of the last model and ``counted`` all 1 it is the squared error of that model, for noise of
    deviation 1. With weights that depend only on how long ago a release was, and ``counted`` $(T - j)/T$, it is the
    mean over all models.
    """
    return float(np.sum(counted * np.asarray(lfilter([1.0], _trimmed(coefficients), weights)) ** 2))


def _trimmed(coefficients: Vector) -> Vector:
    """Return the coefficients without the zeros at their end."""
    return coefficients[: int(np.flatnonzero(coefficients)[-1]) + 1]


def _upwards(rounds: int) -> float:
    """Return a factor that covers the rounding of powers, sums and squares: each number is one of some 2 rounds."""
    return 1 + (2 * rounds + 64) * 2.0**-50


# Matrices for correlated noise that leave the models least error at one privacy: banded ones, and ones with buffers.
#
# What is least is error times sensitivity (their squares), which does not change when the matrix is scaled. Nothing
# here has to be trusted: whatever matrix is found, its sensitivity is worked out afterwards. Theory page:
# correlated-noise.md.

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
    found = scipy.optimize.minimize(
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
            start = scipy.optimize.minimize(
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


# The matrix behind correlated noise, as numbers that a plan can hold, and how exactly floats follow it on the grid.
#
# Theory page: correlated-noise.md.

MOST_ROUNDS: Final = 20_000
MOST_BANDS: Final = 4096
MOST_BUFFERS: Final = 16
_UNIT: Final = 2.0**-53
_REACH: Final = 12.25  # deviations beyond which the sampler draws nothing: 12, and a part of one block of its table
_UP: Final = 1.01  # covers products of relative errors, and the rounding of these bounds themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    r"""A lower-triangular Toeplitz matrix $C$ with ones on its diagonal.

    Banded: ``column`` holds $c_0 = 1, \dots, c_{b-1}$. With buffers: ``scales`` and ``decays`` stand for
    $c_t = \sum_i \alpha_i \lambda_i^{t-1}$, and the column is empty. Floats stand for the exact numbers that they are.
    """

    column: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("column", "scales", "decays"):
            given: Any = getattr(self, name)
            require(isinstance(given, list | tuple), f"factor.{name}", "be a list of numbers", given)
            object.__setattr__(self, name, tuple(number(f"factor.{name}", value) for value in given))
        one = bool(self.column) != bool(self.scales)
        require(one, "factor", "be banded or have buffers, one of the two", (self.column, self.scales))
        if self.column:
            fine = self.column[0] == 1 and all(abs(value) <= 1 for value in self.column)
            require(fine, "factor.column", "begin with 1 and lie in [-1, 1]", self.column[:4])
            require(len(self.column) <= MOST_BANDS, "factor.column", f"have at most {MOST_BANDS}", len(self.column))
            require(not self.decays, "factor.decays", "go with scales", self.decays)
            return
        fits = len(self.scales) == len(self.decays) <= MOST_BUFFERS
        require(fits, "factor.decays", f"be as many as scales, at most {MOST_BUFFERS}", len(self.decays))
        fine = all(0 <= value <= 1 for value in self.scales) and math.fsum(self.scales) <= 1
        require(fine, "factor.scales", "be non-negative and sum to at most 1", self.scales)
        fine = all(0 <= value < 1 for value in self.decays)
        require(fine, "factor.decays", "lie in [0, 1)", self.decays)

    @property
    def banded(self) -> bool:
        """True if the matrix is banded; otherwise it has buffers."""
        return bool(self.column)

    @property
    def memory(self) -> int:
        """How many vectors the size of the model the noise of a round has to remember of the rounds before."""
        return len(self.column) - 1 if self.column else len(self.scales)

    def coefficients(self, rounds: int) -> Vector:
        """Return the first column of the matrix for so many rounds."""
        if self.column:
            return coefficients_of(self.column, rounds)
        return coefficients_of_buffers(self.scales, self.decays, rounds)

    def sensitivity(self, rounds: int, participations: int, separation: int) -> float:
        """Return how far one unit can move the release, for contributions of norm at most 1; rounded up."""
        return _sensitivity(self, rounds, participations, separation)

    def spread(self, rounds: int) -> float:
        """Return the sum of all coefficients of a column, in absolute value: how far an error in every round adds up.

        Rounded up.
        """
        return float(np.sum(np.abs(self.coefficients(rounds)))) * _UP

    def of_a_round(self, rounds: int) -> float:
        """Return the deviation of a round's correlated noise over that of independent noise, root mean square."""
        squares = inverse_of(self.coefficients(rounds)) ** 2
        return math.sqrt(float(np.sum(squares * (1 - np.arange(rounds) / rounds))))

    def growth(self, rounds: int) -> float:
        """Return by what the largest correlated number exceeds the largest independent one at most; rounded up."""
        return _growth(self, rounds)

    def largest(self, steps: float, rounds: int) -> float:
        """Return a bound on correlated noise in grid steps, for independent noise of deviation ``steps``.

        Infinite where floats cannot follow the matrix.
        """
        growth, loose = self.growth(rounds), self._relative(rounds)
        if not growth * loose < 0.5:
            return math.inf
        result = growth * (_REACH * steps + 2) / (1 - growth * loose) * _UP
        return result if result <= LARGEST_STATE else math.inf

    def rounding(self, steps: float, rounds: int) -> float:
        """Return how far a round's mean is displaced at most in a coordinate, in grid steps: half a step, and floats.

        Infinite where floats cannot follow the matrix.
        """
        return 0.0 if self.memory == 0 else (0.5 + self._relative(rounds) * self.largest(steps, rounds)) * _UP

    def _relative(self, rounds: int) -> float:
        """Return the error of what a round takes off its independent noise, over the largest correlated number."""
        if self.column:
            return (len(self.column) + 2) * _UNIT * math.fsum(abs(value) for value in self.column[1:]) * _UP
        total = 0.0
        for scale, decay in zip(self.scales, self.decays, strict=True):
            held = min(float(rounds), 1 / (1 - decay))  # what a buffer sums up, in units of the largest number in it
            total += scale * (2 * held * held + (len(self.scales) + 2) * held) * _UNIT
        return total * _UP


@lru_cache(maxsize=256)
def _sensitivity(factor: Factor, rounds: int, participations: int, separation: int) -> float:
    return sensitivity(factor.coefficients(rounds), participations, separation)


@lru_cache(maxsize=256)
def _growth(factor: Factor, rounds: int) -> float:
    total = float(np.sum(np.abs(inverse_of(factor.coefficients(rounds)))))
    return total * _UP if total < math.inf else math.inf
