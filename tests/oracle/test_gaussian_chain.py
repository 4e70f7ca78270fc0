"""Gaussian chains in many dimensions against closed forms, plain integration, and the line."""

import math

import chains
import numpy as np
import pytest

from fedveil.core.values import Vector
from fedveil.theory.divergence import gaussian_delta
from oracle.gaussian_chain import AffineRound, NormalPair, gaussian_chain, normal_delta


def by_integration(epsilon: float, gap: float, ratio: float) -> float:
    """The definition, by the midpoint rule on a million points."""
    reach = 12 * max(1.0, ratio) + abs(gap)
    z = np.linspace(-reach, reach, 1_000_001)[:-1] + reach / 1_000_000
    p = np.exp(-(((z - gap) / ratio) ** 2) / 2) / ratio
    q = np.exp(epsilon - z * z / 2)
    return float(np.maximum(p - q, 0).sum() * 2 * reach / 1_000_000 / math.sqrt(2 * math.pi))


@pytest.mark.parametrize(
    ("epsilon", "gap", "ratio"), [(0.0, 0.5, 2.0), (1.0, 1.0, 0.6), (2.0, -1.5, 1.3), (0.5, 0.0, 3.0), (1.0, 2.0, 1.0)]
)
def test_two_normals_of_different_variance(epsilon: float, gap: float, ratio: float) -> None:
    truth = by_integration(epsilon, gap, ratio)
    found = normal_delta(epsilon, gap, ratio)
    assert found == pytest.approx(truth, rel=1e-5)
    assert found <= truth * (1 + 1e-5)


@pytest.mark.parametrize("ratio", [1 - 1e-9, 1.0, 1 + 1e-9, 1 + 1e-13])
def test_nearly_equal_variances_are_theta(ratio: float) -> None:
    assert normal_delta(2.0, 1.0, ratio) == pytest.approx(gaussian_delta(2.0, 1.0), rel=1e-6)


def test_a_pair_that_is_one_law_tells_nothing() -> None:
    assert normal_delta(0.0, 0.0, 1.0) == 0.0
    assert normal_delta(1.0, 0.0, 0.9999) == 0.0


def quadratic_rounds(
    curvatures: Vector, steps: list[float], gaps: list[Vector], noises: list[float]
) -> list[AffineRound]:
    """Gradient steps on the same quadratic, pulled apart by +- gap / 2."""
    size = curvatures.size
    made = []
    for step, gap, noise in zip(steps, gaps, noises, strict=True):
        matrix = np.eye(size) - step * np.diag(curvatures)
        made.append(AffineRound((matrix, matrix), (gap / 2, -gap / 2), noise**2 * np.eye(size)))
    return made


def test_a_quadratic_in_many_dimensions_is_a_sum_of_lines() -> None:
    curvatures, steps, noises = np.array([0.1, 0.5, 1.5]), [0.4, 0.8, 0.3], [1.0, 0.7, 1.2]
    gaps = [np.array([1.0, 0.0, 0.2]), np.zeros(3), np.array([0.3, 0.4, 0.0])]
    pair = gaussian_chain(quadratic_rounds(curvatures, steps, gaps, noises), np.array([0.1, 0.2, 0.3]))
    lines = [
        chains.gaussian_pair([1 - s * c for s in steps], [float(g[i]) for g in gaps], noises)
        for i, c in enumerate(curvatures)
    ]
    assert pair.alike
    assert pair.mu == pytest.approx(math.hypot(*lines), rel=1e-12)
    assert pair.delta_lower(1.0) == pytest.approx(gaussian_delta(1.0, pair.mu), rel=1e-8)
    assert pair.delta_lower(1.0) <= gaussian_delta(1.0, pair.mu)


def test_rotating_the_space_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    curvatures = np.array([0.0, 0.2, 0.9, 1.6])
    gaps = [rng.standard_normal(4) for _ in range(3)]
    rounds = quadratic_rounds(curvatures, [0.5] * 3, gaps, [1.0] * 3)
    turned = [
        AffineRound(
            tuple(turn @ m @ turn.T for m in r.matrices),  # type: ignore[arg-type]
            tuple(turn @ b for b in r.offsets),  # type: ignore[arg-type]
            r.covariance,
        )
        for r in rounds
    ]
    assert gaussian_chain(turned, np.zeros(4)).mu == pytest.approx(gaussian_chain(rounds, np.zeros(4)).mu, rel=1e-10)


def curvature_pair(size: int) -> NormalPair:
    """The victim's quadratic has its own curvature along one direction."""
    plain, bent = 0.5 * np.eye(size), 0.5 * np.eye(size)
    bent[0, 0] = 0.1
    leak = AffineRound((plain, bent), (np.full(size, 0.3), np.full(size, -0.3)), np.eye(size))
    quiet = AffineRound((plain, plain), (np.zeros(size), np.zeros(size)), np.eye(size))
    return gaussian_chain([quiet, leak, leak], np.full(size, 2.0))


def test_different_curvature_is_bounded_from_below_by_its_best_direction() -> None:
    """On the line the direction is all there is; in the plane the plane's own integral is above."""
    line = curvature_pair(1)
    assert not line.alike
    s1, s2 = (math.sqrt(float(c[0, 0])) for c in line.covariances)
    gap = float(line.means[0][0] - line.means[1][0])
    truth = max(by_integration(0.5, gap / s2, s1 / s2), by_integration(0.5, -gap / s1, s2 / s1))
    assert line.delta_lower(0.5) == pytest.approx(truth, rel=1e-5)
    plane = curvature_pair(2)
    grid = np.linspace(-8, 10, 401)
    points = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    p, q = (density(points, m, c) for m, c in zip(plane.means, plane.covariances, strict=True))
    cell = (grid[1] - grid[0]) ** 2
    whole = max(np.maximum(p - math.exp(0.5) * q, 0).sum(), np.maximum(q - math.exp(0.5) * p, 0).sum()) * cell
    assert line.delta_lower(0.5) <= plane.delta_lower(0.5) <= whole + 1e-4
    assert plane.delta_lower(0.5) >= 0.9 * whole


def density(points: Vector, mean: Vector, covariance: Vector) -> Vector:
    away = points - mean
    power = np.einsum("...i,ij,...j", away, np.linalg.inv(covariance), away) / 2
    return np.asarray(np.exp(-power) / (2 * math.pi * math.sqrt(float(np.linalg.det(covariance)))))


def test_epsilon_lower_inverts_delta_lower() -> None:
    pair = curvature_pair(3)
    epsilon = pair.epsilon_lower(1e-5)
    assert pair.delta_lower(epsilon * (1 - 1e-6)) >= 1e-5 * (1 - 1e-9)


def test_bad_rounds_are_refused() -> None:
    one, two = np.eye(1), np.eye(2)
    zero = np.zeros(1)
    with pytest.raises(ValueError, match="have matrices and offsets of size 1"):
        AffineRound((one, two), (zero, zero), one)
    with pytest.raises(ValueError, match="be positive"):
        AffineRound((one, one), (zero, zero), np.zeros((1, 1)))
    with pytest.raises(ValueError, match="at least one"):
        gaussian_chain([], zero)
    with pytest.raises(ValueError, match="equal covariances"):
        _ = curvature_pair(1).mu
