"""The closed forms against their definitions: integrals and many-digit arithmetic, sharing no code with us."""

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from fedveil.theory.divergence import (
    gaussian_delta,
    hockey_stick,
    laplace_delta,
    log_gaussian_delta,
    log_laplace,
    log_theta,
)

EPSILONS = [0.0, 1e-300, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 5.0, 30.0, 100.0, 700.0]
DISTANCES = [1e-300, 1e-200, 1e-8, 1e-4, 0.01, 0.1, 0.2499, 0.25, 0.3, 1.0, 2.0, 5.0, 37.0]


def log_delta_exactly(epsilon: float, r: float) -> float:
    """From the two tails, with digits to spare for what cancels between them."""
    depth = (epsilon / r - r / 2) ** 2 / 2 + abs(math.log(r))
    with mpmath.workdps(int(2 * depth / math.log(10)) + 60):
        e, x = mpmath.mpf(epsilon), mpmath.mpf(r)

        def tail(z: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(z / mpmath.sqrt(2)) / 2

        return float(mpmath.log(tail(e / x - x / 2) - mpmath.exp(e) * tail(e / x + x / 2)))


def excess(density: object, epsilon: float, r: float, start: float, width: float) -> float:
    """The integral of max(p - e^epsilon q, 0) from ``start`` on, where p outweighs."""
    with mpmath.workdps(50):
        grid = [mpmath.mpf(start) + mpmath.mpf(width) * k for k in (0, 1, 2, 4, 8, 16, 32, 64)]
        difference = lambda x: density(x - r) - mpmath.exp(epsilon) * density(x)  # type: ignore[operator]  # noqa: E731
        return float(mpmath.quad(difference, [*grid, mpmath.inf]))


@pytest.mark.parametrize("r", DISTANCES)
def test_theta_to_ten_digits(r: float) -> None:
    for epsilon in EPSILONS:
        if epsilon / r < 60:  # below exp(-1800) the digits get expensive
            exact = log_delta_exactly(epsilon, r)
            allowed = 1e-10 if exact > math.log(1e-300) else 1e-12 * abs(exact)
            assert abs(float(log_theta(epsilon, r)) - exact) <= allowed, epsilon


@pytest.mark.parametrize("r", [0.01, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 10.0])
def test_gaussian_delta_is_the_integral(epsilon: float, r: float) -> None:
    start = epsilon / r + r / 2  # where N(r, 1) begins to outweigh e^epsilon N(0, 1)
    expected = excess(mpmath.npdf, epsilon, r, start, 1 / max(start - r, 1))
    assert gaussian_delta(epsilon, r) == pytest.approx(expected, rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("r", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0, 5.0])
def test_laplace_delta_is_the_integral(epsilon: float, r: float) -> None:
    expected = 0.0
    if epsilon < r:
        crossing = (r + epsilon) / 2  # between the means; the density ratio is e^r from r on
        with mpmath.workdps(30):
            grid = [crossing, r, r + 1, r + 8, r + 64]
            inside = lambda x: mpmath.exp(-abs(x - r)) / 2 - mpmath.exp(epsilon - abs(x)) / 2  # noqa: E731
            expected = float(mpmath.quad(inside, grid))
    assert laplace_delta(epsilon, r) == pytest.approx(expected, rel=1e-10)


def test_hockey_stick_of_cells_approaches_the_integral() -> None:
    edges = np.linspace(-12, 13, 20001)
    cells = [np.diff([mpmath_free_cdf(x - shift) for x in edges]) for shift in (1.0, 0.0)]
    p, q = (cell / cell.sum() for cell in cells)
    for epsilon in (0.0, 0.5, 2.0):
        assert hockey_stick(p, q, epsilon) == pytest.approx(gaussian_delta(epsilon, 1.0), rel=1e-5)


def mpmath_free_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def test_hockey_stick_of_disjoint_and_equal_laws() -> None:
    p, q = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert hockey_stick(p, q, 0.0) == hockey_stick(p, q, 800.0) == 1.0
    assert hockey_stick(p, p, 0.0) == 0.0


@pytest.mark.parametrize("form", [log_theta, log_laplace])
@pytest.mark.parametrize(
    ("epsilon", "r"),
    [(math.nan, 1.0), (1.0, math.nan), (1.0, math.inf), (math.inf, math.inf), (-1.0, 1.0), (1.0, -1.0)],
)
def test_doubt_is_delta_one(form: object, epsilon: float, r: float) -> None:
    assert float(form(epsilon, r)) == 0.0  # type: ignore[operator]


@pytest.mark.parametrize("form", [log_theta, log_laplace])
def test_the_ends(form: object) -> None:
    values = form([0.0, 5.0, math.inf, 1.0], [0.0, 0.0, 1.0, 1e308])  # type: ignore[operator]
    assert values.tolist() == [-math.inf, -math.inf, -math.inf, 0.0]


def test_the_least_distance_is_not_nothing() -> None:
    assert float(log_theta(0.0, 5e-324)) == pytest.approx(math.log(5e-324) - math.log(2 * math.pi) / 2)


@pytest.mark.parametrize(("epsilon", "r"), [(-1.0, 1.0), (math.nan, 1.0), (1.0, math.inf), (1.0, -0.1)])
def test_checked_forms_refuse(epsilon: float, r: float) -> None:
    for form in (gaussian_delta, log_gaussian_delta, laplace_delta):
        with pytest.raises(ValueError, match="must be finite and non-negative"):
            form(epsilon, r)


@pytest.mark.parametrize(
    ("p", "q"),
    [([0.5, 0.5], [1.0]), ([0.5, 0.6], [0.5, 0.5]), ([1.5, -0.5], [0.5, 0.5]), ([math.nan], [1.0])],
)
def test_what_is_no_probability_vector_is_refused(p: list[float], q: list[float]) -> None:
    with pytest.raises(ValueError, match="must"):
        hockey_stick(np.array(p), np.array(q), 1.0)
