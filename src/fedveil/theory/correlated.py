r"""Noise that is correlated over rounds: how far one unit moves the release, and how much noise a model is left with.

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

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.theory.filtering import lfilter


def coefficients_of(column: Sequence[float], rounds: int) -> Vector:
    """Return the first column of a banded matrix, filled up with zeros to the number of rounds."""
    found = np.zeros(rounds)
    found[: min(len(column), rounds)] = column[:rounds]
    return found


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
