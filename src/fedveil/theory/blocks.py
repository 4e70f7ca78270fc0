r"""Contraction along a noisy iteration: linear (the papers), nonlinear, in blocks (the default certificate).

Rows are places (rounds, or groups of rounds, in which the victim is used); columns are checkpoints, rounds
after which the state is looked at. All values are logarithms of bounds on $E_\varepsilon$.
Theory page: block-contraction.md.

References:
    [ADC20] Asoodeh, Diaz, Calmon. Privacy Amplification of Iterative Algorithms via Contraction Coefficients.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.core.values import Indices, Vector
from fedveil.theory.divergence import log_theta
from fedveil.theory.rounds import Rounds

LogDivergence = Callable[[Vector, Vector], Vector]  # (epsilon, distance over noise) -> log E_epsilon


def contract(epsilon: float, log_a: Vector, distance: Vector, log_divergence: LogDivergence = log_theta) -> Vector:
    """Return the log of a * eta_{eps~}, one nonlinear contraction step; never above ``log_a``."""
    step = log_divergence(raised_epsilon(epsilon, log_a), distance)
    return np.where(np.isneginf(log_a), log_a, log_a + step)


def block_distances(rounds: Rounds, checkpoints: Indices) -> Vector:
    """Return the distances of blocks: entry (i, j) follows two arbitrary points from checkpoint i to j, in noise units.

    A checkpoint counts the rounds done. The last round alone is a valid bound too; without Lipschitz constants it is
    the only one. ``inf`` if j is not after i.
    """
    before, after = checkpoints[:, None], checkpoints[None, :]
    last = np.maximum(after - 1, 0)
    distance = np.broadcast_to(rounds.reach[last] / rounds.noise[last], (checkpoints.size,) * 2)
    if rounds.contracts and not rounds.deep:
        distance = np.minimum(distance, _followed(rounds, before, after))
    elif rounds.contracts:  # products too small for a float: each column is computed separately
        ends = [_followed(rounds.seen_at(max(int(end), 1)), np.minimum(before, end), end) for end in after[0]]
        distance = np.minimum(distance, np.concatenate(ends, axis=1))
    return np.where((after > before) & ~np.isnan(distance), distance, np.inf)


def _followed(rounds: Rounds, before: Indices, after: Indices) -> Vector:
    inside = np.minimum(before, rounds.count - 1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        distance = rounds.factor[inside] * rounds.reach[inside] / np.sqrt(rounds.span(before, after))
    return np.asarray(np.where(np.isnan(distance), np.inf, distance), dtype=np.float64)


def _hopeless(epsilon: float, log_a: Vector) -> float:
    """Return a distance beyond which no entry of ``log_a`` is contracted by more than a float can show."""
    least = np.min(log_a, initial=0.0, where=np.isfinite(log_a))
    return 8.5 + math.sqrt(72.0 + 2 * float(raised_epsilon(epsilon, np.asarray(least))))  # r/2 - eps~/r = 8.5


def block_contraction(
    epsilon: float, log_start: Vector, distances: Vector, started: NDArray[np.bool_] | None = None
) -> Vector:
    r"""Return $A(j) = \min\{\theta(m_j), \min_{i<j} A(i)\,\theta_{\tilde\varepsilon(A(i))}(b_{ij})\}$, row by row.

    ``log_start``: logarithms of $\theta_\varepsilon(m_j)$. ``started``: whether the victim's last use lies before the
    checkpoint; by default where ``log_start`` is below 0, so put 0 where it does not. Blocks begin only there: a block
    that contains a use is not the same kernel on both data sets. From there on the result does not increase along a row
    (data processing).
    """
    value = np.minimum(log_start, 0.0)
    begun = log_start < 0 if started is None else started
    for j in range(1, value.shape[1]):
        useful = np.flatnonzero(distances[:j, j] < _hopeless(epsilon, value[:, :j]))
        if useful.size:
            earlier = value[:, useful]
            through = contract(epsilon, earlier, np.broadcast_to(distances[useful, j], earlier.shape))
            through = np.where(begun[:, useful], through, 0.0)
            value[:, j] = np.minimum(value[:, j], through.min(axis=1))
        value[:, j] = np.where(begun[:, j - 1], np.minimum(value[:, j], value[:, j - 1]), value[:, j])
    return value


def linear_contraction(
    epsilon: float, log_first: Vector, distances: Vector, log_divergence: LogDivergence = log_theta
) -> Vector:
    """Return the papers' product [ADC20]: entry t is ``log_first[t]`` times the coefficients of later rounds."""
    steps = log_divergence(np.full_like(distances, epsilon), distances)
    later = np.append(np.cumsum(steps[:0:-1])[::-1], 0.0)
    return np.asarray(log_first + later, dtype=np.float64)


def nonlinear_contraction(
    epsilon: float, log_first: Vector, distances: Vector, log_divergence: LogDivergence = log_theta
) -> Vector:
    """Return the product with nonlinear coefficients.

    Entry t starts at ``log_first[t]`` and passes all later rounds.
    """
    value = log_first.copy()
    if np.all(distances == distances[0]) and np.all(log_first == log_first[0]):  # all places share one sequence
        current = log_first[:1]
        for t in range(value.size - 1, -1, -1):
            value[t] = current[0]
            current = contract(epsilon, current, distances[:1], log_divergence)
        return value
    for k in range(1, value.size):
        value[:k] = contract(epsilon, value[:k], np.full(k, distances[k]), log_divergence)
    return value


def raised_epsilon(epsilon: ArrayLike, log_before: ArrayLike) -> Vector:
    r"""$\tilde\varepsilon = \ln(1 + (e^\varepsilon - 1)/a)$ from $\varepsilon$ and $\ln a$; unchecked.

    Element by element. Rounded down by a few units in the last place, never below $\varepsilon$: the safe
    side, for $E_\varepsilon$ does not increase in $\varepsilon$. Nothing overflows.

    >>> float(raised_epsilon(1000.0, -1000.0)), float(raised_epsilon(0.0, -5.0))
    (1999.99999..., 0.0)
    """
    e, log_a = np.asarray(epsilon, dtype=np.float64), np.asarray(log_before, dtype=np.float64)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_gain = np.where(e < 30, np.log(np.expm1(np.minimum(e, 30))), e + np.log1p(-np.exp(-e)))
        raised = np.logaddexp(0.0, log_gain - log_a) * (1 - 1e-15)
    return np.asarray(np.where(e == 0, 0.0, np.maximum(e, raised)), dtype=np.float64)
