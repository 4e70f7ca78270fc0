"""Small runs on coarse grids, their laws computed by brute force, against what the grid is said to cost.

The real chain is a matrix: state i goes to the rounding of its (displaced) mean plus a rounded normal. The ideal chain
is Gaussian with linear steps, so that its privacy is known in closed form.
"""

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from fedveil.theory.divergence import hockey_stick, log_theta
from fedveil.theory.grid import Slack, displacement, distance, log_delta_on_grid, slack_of

Vector = NDArray[np.float64]


def rounded(means: Vector, step: float, side: int) -> Vector:
    """Rows: the law on -side .. side (ends hold the tails: the box) of round(mean + N(0, 1)) in steps."""
    edges = (np.arange(-side, side) + 0.5) * step
    below = ndtr(edges[None, :] - means[:, None])
    return np.diff(np.column_stack([np.zeros(len(means)), below, np.ones(len(means))]), axis=1)


def real_law(step: float, side: int, factor: float, shifts: list[float], error: float) -> Vector:
    """The last state's law: each mean is factor * state + shift, computed with an error, rounded before the noise."""
    states = np.arange(-side, side + 1) * step
    law = np.zeros(2 * side + 1)
    law[side] = 1.0
    for turn, shift in enumerate(shifts):
        wrong = error * np.where((np.arange(states.size) + turn) % 2 == 0, 1.0, -1.0)
        means = np.rint((factor * states + shift + wrong) / step) * step
        law = law @ rounded(means, step, side)
    return law / law.sum()


@pytest.mark.parametrize(("factor", "step"), list(product([1.0, 0.7, -0.5, 1.3], [0.5, 0.125, 0.03125])))
def test_the_run_on_the_grid_is_as_private_as_promised(factor: float, step: float) -> None:
    """Three rounds; the first tells the data sets apart by 1, off the grid; every splitting epsilon must hold."""
    gap, rounds, error = 1.0, 3, step / 7
    common = [0.3 * step, 0.45 * step, 0.2]
    other = [common[0] + gap, *common[1:]]
    side = math.ceil(25 / step)
    p, q = (real_law(step, side, factor, shifts, error) for shifts in (common, other))
    spread = math.sqrt(sum(factor ** (2 * k) for k in range(rounds)))
    mu = gap * abs(factor) ** (rounds - 1) / spread  # the ideal run, exactly
    shares = displacement(step, 1, np.full(rounds, abs(factor)), np.full(rounds, error))
    apart = distance(shares, "gaussian")
    for epsilon, e in product([0.0, 0.3, 1.0, 2.0], [0.0, 0.5 * apart, 2 * apart, slack_of(apart, "gaussian").epsilon]):
        slack = Slack(e, float(log_theta(e, apart)))
        bound = math.exp(log_delta_on_grid(epsilon, float(log_theta(epsilon, mu)), slack, 0.0))
        for one, two in ((p, q), (q, p)):
            assert hockey_stick(one, two, epsilon + 2 * e) <= bound + 1e-12


def test_coarse_rounding_does_cost_something() -> None:
    """Without its share the promise would be broken: rounding can pull the data sets apart."""
    step = 0.5
    p = real_law(step, 60, 1.0, [0.24], 0.0)
    q = real_law(step, 60, 1.0, [0.26], 0.0)  # rounded to 0.0 and to 0.5
    assert hockey_stick(p, q, 0.0) > 10 * math.exp(log_theta(0.0, 0.02))


@pytest.mark.parametrize("factor", [1.0, -0.8, 0.3])
@pytest.mark.parametrize("step", [1.0, 0.4])
def test_two_rounds_seen_together(factor: float, step: float) -> None:
    """Both states at once, on one data set: real against the ideal chain rounded, by quadrature over each cell."""
    side = math.ceil(9 / step)
    offsets = (0.49 * step, 0.3 * step)  # nearly the worst rounding of a mean
    nodes, weights = np.polynomial.legendre.leggauss(24)
    cells = np.arange(-side, side + 1) * step
    first_real = rounded(np.array([np.rint(offsets[0] / step) * step]), step, side)[0]
    means = np.rint((factor * cells + offsets[1]) / step) * step
    real = first_real[:, None] * rounded(means, step, side)
    ideal = np.zeros_like(real)
    for node, weight in zip(nodes, weights, strict=True):
        place = cells + node * step / 2
        density = np.exp(-((place - offsets[0]) ** 2) / 2) / math.sqrt(2 * math.pi) * weight * step / 2
        ideal += density[:, None] * rounded(factor * place + offsets[1], step, side)
    assert ideal.sum() == pytest.approx(1, abs=1e-12)
    shares = displacement(step, 1, np.array([0.0, abs(factor)]), np.zeros(2))  # the start lies on the grid
    apart = distance(shares, "gaussian")
    one, two = real.ravel() / real.sum(), ideal.ravel() / ideal.sum()
    assert hockey_stick(one, two, 0.0) > 0.05  # they do differ
    for e in (0.0, 0.1, 0.5, 1.0, 3.0):
        allowed = math.exp(log_theta(e, apart))
        assert max(hockey_stick(one, two, e), hockey_stick(two, one, e)) <= allowed + 1e-12


def test_laplace_means_apart_are_a_pure_epsilon() -> None:
    """Rounded Laplace noise around displaced means, two rounds: the ratio of chances never exceeds exp(distance)."""
    step, scale = 0.25, 1.0
    edges = (np.arange(-200, 200) + 0.5) * step

    def law(mean: float) -> Vector:
        z = (edges - mean) / scale
        below = np.where(z < 0, np.exp(np.minimum(z, 0)) / 2, 1 - np.exp(-np.maximum(z, 0)) / 2)
        return np.diff(below)

    shares = displacement(step, 1, np.zeros(2), np.zeros(2)) / scale
    ideal, real = law(0.12), law(0.0)
    inner = slice(150, 250)  # where differences of chances keep their digits
    ratio = np.max(np.log(np.outer(real[inner], real[inner]) / np.outer(ideal[inner], ideal[inner])))
    assert 0.2 < ratio <= distance(shares, "laplace")
    assert slack_of(0.3, "laplace") == Slack(0.3, -math.inf)
