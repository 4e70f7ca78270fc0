"""Exact laws against closed forms, forty digits, simulation, and a second way with no code in common."""

import math
from dataclasses import replace

import chains
import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from fedveil.audit.exact import NODES, Chain, Instance, Line, Step, exact, panel_error, panels, released, single
from fedveil.audit.oracle import Design, Shape, instance_of, setting
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.divergence import gaussian_delta, laplace_delta
from fedveil.theory.numerics import smallest_epsilon

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])


def straight(half: float, slope: float, offset: float) -> Line:
    return Line((-half, half), (-half * slope + offset, half * slope + offset))


def affine(slopes: list[float], gaps: list[float], noises: list[float], half: float = 30.0) -> Instance:
    """No projection that matters: slope w +- gap / 2."""
    rounds = list(zip(slopes, gaps, noises, strict=True))
    first, second = (tuple(Step(straight(half, c, sign * g / 2), s) for c, g, s in rounds) for sign in (1, -1))
    return Instance(lo=-half, hi=half, start=0.3, first=single(first), second=single(second), projected=False)


@pytest.mark.parametrize(
    ("slopes", "gaps", "noises"),
    [
        ([1.0], [1.0], [1.0]),
        ([1.0, 1.0, 1.0, 1.0], [2.0, 0.0, 0.0, 0.0], [1.0, 0.7, 1.3, 1.0]),
        ([0.5, 0.9, -0.7], [1.0, -1.0, 1.5], [1.0, 0.4, 1.0]),
        ([0.0, 1.0], [1.0, 0.5], [0.5, 1.0]),
    ],
)
def test_without_projection_the_interval_holds_theta_tightly(
    slopes: list[float], gaps: list[float], noises: list[float]
) -> None:
    instance, mu = affine(slopes, gaps, noises), chains.gaussian_pair(slopes, gaps, noises)
    found = exact(instance, EPSILONS)
    truth = np.array([gaussian_delta(float(e), mu) for e in EPSILONS])
    assert np.all(found.lower <= truth * (1 + 1e-10))
    assert np.all(truth <= found.upper * (1 + 1e-10))
    np.testing.assert_allclose(found.lower, truth, rtol=2e-4, atol=1e-15)
    np.testing.assert_allclose(found.upper, truth, rtol=2e-2, atol=1e-12)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_epsilon_at_small_delta_is_exact_to_many_digits(mu: float, delta: float) -> None:
    truth = smallest_epsilon(lambda e: math.log(gaussian_delta(e, mu)), delta, tolerance=1e-12)
    found = released(affine([1.0, 1.0], [mu * math.sqrt(2), 0.0], [1.0, 1.0]))
    assert truth * (1 - 1e-5) <= found.epsilon_lower(delta) <= truth * (1 + 1e-9)
    assert truth * (1 - 1e-9) <= found.epsilon_upper(delta) <= truth * (1 + 1e-3)


def test_one_laplace_round_is_its_closed_form() -> None:
    first, second = ((Step(straight(20.0, 1.0, sign), 1.0),) for sign in (1.0, -1.0))
    instance = Instance(lo=-20, hi=20, start=0.0, first=single(first), second=single(second), noise="laplace")
    found = exact(instance, EPSILONS)
    truth = np.array([laplace_delta(float(e), 2.0) for e in EPSILONS])
    assert np.all((found.lower <= truth + 1e-10) & (truth <= found.upper + 1e-10))
    np.testing.assert_allclose(found.lower, truth, atol=1e-3)


def translated(chain: chains.Instance, noise: str) -> Instance:
    """The second way's instance in our words: the maps are the same broken lines."""

    def line(psi: chains.Map) -> Line:
        kinks = [k for k in getattr(psi, "kinks", ()) if chain.lo < k < chain.hi]
        knots = np.unique(np.array([chain.lo, *kinks, chain.hi]))
        return Line(tuple(knots.tolist()), tuple(psi(knots).tolist()))

    sides = [
        tuple(Step(line(pair[side]), sigma) for pair, sigma in zip(chain.rounds, chain.sigmas, strict=True))
        for side in (0, 1)
    ]
    return Instance(
        lo=chain.lo,
        hi=chain.hi,
        start=chain.start,
        first=single(sides[0]),
        second=single(sides[1]),
        noise=noise,  # type: ignore[arg-type]
    )


def test_random_chains_agree_with_the_second_way() -> None:
    for chain in chains.random_instances(seed=31, count=30):
        ours, theirs = released(translated(chain, "gaussian")), chains.exact_laws(chain)
        for law, other in zip((ours.first, ours.second), theirs, strict=True):
            assert law.masses[[0, -1]] == pytest.approx(other[[0, -1]], abs=1e-13)
            assert law.masses.sum() == pytest.approx(1.0, abs=1e-12)
            assert law.error < 1e-15
        both = chains.exact_pair(chain, EPSILONS)
        for epsilon, lower in zip(EPSILONS, both.lower, strict=True):
            assert lower <= ours.delta_upper(float(epsilon)) + 1e-12
            assert ours.delta_lower(float(epsilon)) >= lower * (1 - 1e-3) - 1e-6


def test_random_laplace_chains_agree_with_the_second_way() -> None:
    for chain in chains.random_instances(seed=32, count=8, noise="laplace"):
        found = exact(translated(chain, "laplace"), EPSILONS)
        other = chains.exact_pair(chain, EPSILONS)
        assert np.all(other.lower - 1e-3 <= found.upper)
        assert np.all(found.lower <= np.maximum(other.forward, other.backward) + 2e-3)
        assert np.all(found.upper - found.lower < 0.05)


def test_atoms_and_an_interval_in_forty_digits() -> None:
    """Two rounds with a kink between them: the chance of each end and of an interval, by adaptive quadrature."""
    bent = Line((-0.8, 0.1, 0.8), (-0.2, 0.1, 0.1))
    steps: Chain = (Step(straight(0.8, 1.0, 0.4), 0.5), Step(bent, 0.3))
    instance = Instance(lo=-0.8, hi=0.8, start=0.2, first=single(steps), second=single(steps))
    law = released(instance).first
    with mpmath.workdps(40):
        centre, wide, thin = mpmath.mpf(0.2 + 0.4), mpmath.mpf(0.5), mpmath.mpf(0.3)

        def bend(w: mpmath.mpf) -> mpmath.mpf:
            return mpmath.mpf(0.1) + min(w - mpmath.mpf(0.1), 0) * mpmath.mpf(0.1 + 0.2) / mpmath.mpf(0.1 + 0.8)

        def chance(above: float) -> mpmath.mpf:
            def tail(w: mpmath.mpf) -> mpmath.mpf:
                return mpmath.ncdf((bend(w) - above) / thin)

            inner = mpmath.quad(lambda w: mpmath.npdf(w, centre, wide) * tail(w), [-0.8, -0.3, 0.1, 0.5, 0.8])
            ends = mpmath.ncdf((-0.8 - centre) / wide), mpmath.ncdf((centre - 0.8) / wide)
            return inner + ends[0] * tail(mpmath.mpf(-0.8)) + ends[1] * tail(mpmath.mpf(0.8))

        middle = law.edges[law.edges.size // 2]
        expected = [float(chance(law.edges[-1])), float(chance(float(middle)))]
    found = [law.masses[-1], law.masses[1 + law.edges.size // 2 :].sum()]
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_panel_bound_is_above_the_panel_error() -> None:
    """Gauss-Legendre on products of Gaussians, against closed forms, on panels far too wide for the target."""
    for half in (2.0, 4.0, 6.0, 8.0):
        x, w = np.polynomial.legendre.leggauss(NODES)
        for centre in (0.0, 0.7 * half, 1.5 * half):
            values = np.exp(-((half * x) ** 2) / 2) * np.exp(-((half * x - centre) ** 2) / 2)
            with mpmath.workdps(30):
                product = lambda z, c=centre: mpmath.exp(-z * z / 2 - (z - c) ** 2 / 2)  # noqa: E731
                truth = mpmath.quad(product, np.linspace(-half, half, 9).tolist())
            error = abs(float(truth) - half * float(values @ w))
            assert error <= half * panel_error(2 * half * half) + 1e-14
    grid = panels(1.0, Step(straight(10.0, 1.0, 0.0), 1.0))
    assert grid.error < 1e-24
    assert grid.points.size < 160


def secret_run(**changes: object) -> LastIterate:
    base = LastIterate(
        rounds=4, order="secret", step_size=0.5, lipschitz=1.0, smoothness=1.0, diameter=2.0, noise_std=1.5
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("curved", [False, True])
def test_a_secret_order_is_the_second_ways_partition(passes: int, curved: bool) -> None:
    run = secret_run(passes=passes, batch=2, records=9)
    shape = Shape(0.0, 0.8, 0.25) if curved else Shape(-0.5)
    found = exact(instance_of(setting(run), Design(place=None, start=0.3, before=shape)), EPSILONS)
    other = chains.Loss(extra=0.8, centre=0.25, reach=1 / 0.8) if curved else chains.Loss(offset=-0.5)
    truth = chains.random_partition_pair(
        chains.Partition(
            victim=chains.Loss(offset=1.0),
            other=chains.Loss(offset=-1.0),
            others=(other,) * 8,
            sizes=(2,) * 4,
            etas=(0.5,) * (4 * passes),
            sigmas=(0.5 * 1.5 / math.sqrt(2),) * (4 * passes),
            lo=-1.0,
            hi=1.0,
            start=0.3,
            passes=passes,
        ),
        EPSILONS,
    )
    np.testing.assert_allclose(found.lower, np.maximum(truth.forward, truth.backward), rtol=2e-3, atol=2e-6)
    assert np.all(truth.lower <= found.upper)


def test_random_stopping_is_the_mean_of_the_laws() -> None:
    run = LastIterate(
        rounds=3, place=2, stopping="random", step_size=0.5, lipschitz=1.0, smoothness=1.0, diameter=2.0, noise_std=1.5
    )
    stopped = released(instance_of(setting(run), Design(place=2, before=Shape(0.5))))
    singles = [
        released(instance_of(setting(replace(run, rounds=r, place=min(r, 2), stopping="end")), Design(place=2)))
        for r in (2, 3)
    ]
    assert stopped.first.masses.sum() == pytest.approx(1.0, abs=1e-12)
    assert 0 < stopped.delta_lower(0.0) < max(pair.delta_lower(0.0) for pair in singles)


def ellipsoid(y: Vector, radius: Vector, a: float, rho: float) -> tuple[Vector, Vector]:
    """First coordinate and distance from the axis of the projection on x1^2/a^2 + |rest|^2/rho^2 <= 1."""

    def excess(t: Vector) -> Vector:
        return (y * a / (a * a + t)) ** 2 + (radius * rho / (rho * rho + t)) ** 2 - 1

    low, high = np.full_like(y, 1e-12), np.full_like(y, 1e6)
    for _ in range(80):
        middle = np.sqrt(low * high)
        outside = excess(middle) > 0
        low, high = np.where(outside, middle, low), np.where(outside, high, middle)
    t = np.where((y / a) ** 2 + (radius / rho) ** 2 <= 1, 0.0, high)
    return y * a * a / (a * a + t), radius * rho * rho / (rho * rho + t)


def test_many_dimensions_come_near_to_a_last_state_unprojected() -> None:
    """1e12 dimensions, simulated exactly through the distance from the axis; a thin ellipsoid of diameter 2.

    Dvoretzky-Kiefer-Wolfowitz-Massart: 2 exp(-2 n x^2) = 2e-7; what is left, 0.004, is for the ellipsoid's thinness.
    """
    count, dimension, kappa, a, sigma = 200_000, 1e12, 1e-3, 1.0, 0.8
    rho = kappa * a * a / (sigma * math.sqrt(dimension))
    rng = np.random.default_rng(5)
    offsets, state, off_axis = (0.5, -0.3), np.full(count, 0.2), np.zeros(count)
    for offset in offsets:
        y = state + offset + sigma * rng.standard_normal(count)
        rest = 2 * rng.gamma((dimension - 2) / 2, size=count) * sigma**2
        radius = np.sqrt((off_axis + sigma * rng.standard_normal(count)) ** 2 + rest)
        state, off_axis = ellipsoid(y, radius, a, rho)
    seen = np.sort(state * (1 + kappa / np.sqrt(1 - (state / a) ** 2)))  # the release, undone: one to one
    steps: Chain = tuple(Step(straight(a, 1.0, offset), sigma) for offset in offsets)
    instance = Instance(lo=-a, hi=a, start=0.2, first=single(steps), second=single(steps), clipped_last=False)
    law = released(instance).first
    found = np.searchsorted(seen, law.edges) / count
    slack = math.sqrt(math.log(2 / 2e-7) / (2 * count))
    assert np.max(np.abs(found - np.cumsum(law.masses)[:-1])) < slack + 0.004
    assert law.edges[-1] > 5  # far beyond the domain, which ends at 1


def test_a_last_state_seen_unprojected_tells_no_less() -> None:
    for chain in chains.random_instances(seed=33, count=10):
        instance = translated(chain, "gaussian")
        open_end = released(replace(instance, clipped_last=False))
        assert released(instance).epsilon_lower(1e-5) <= open_end.epsilon_upper(1e-5) + 1e-9


def test_epsilon_lower_is_where_delta_is_reached() -> None:
    instance = affine([1.0, 1.0], [1.0, 0.0], [1.0, 1.0])
    found = released(instance).epsilon_lower(1e-5)
    pair = released(instance)
    assert pair.delta_lower(found * (1 - 1e-6)) >= 1e-5 >= pair.delta_lower(found * (1 + 1e-6))
