"""The judge is judged first: exact laws against closed forms, symmetries, and plain simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest
from chains import (
    CELLS,
    FLOOR,
    Broken,
    Deltas,
    Instance,
    Loss,
    Partition,
    Step,
    Vector,
    adversaries,
    arrangements,
    exact_laws,
    exact_pair,
    gaussian_pair,
    random_instances,
    random_partition_pair,
    theta,
)

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0])
WIDE = 30.0  # an interval that no chain below leaves


def linear(gradients: list[tuple[float, float]], sigmas: tuple[float, ...], half: float = WIDE) -> Instance:
    """Linear losses: gradients on the two data sets, round by round, step size 1, started in the middle."""
    rounds = tuple((Step((Loss(offset=p),), 1.0), Step((Loss(offset=q),), 1.0)) for p, q in gradients)
    return Instance(rounds=rounds, sigmas=sigmas, lo=-half, hi=half, start=0.0)


def assert_is(found: Deltas, expected: Vector, absolute: float = 3e-4) -> None:
    """Both directions agree with a symmetric truth, but for the cells, and ``lower`` is below it."""
    np.testing.assert_allclose(found.forward, expected, rtol=1e-3, atol=absolute)
    np.testing.assert_allclose(found.backward, expected, rtol=1e-3, atol=absolute)
    assert np.all(found.lower <= expected + FLOOR)
    assert np.all(found.error < 1e-11)


@pytest.mark.parametrize("gap", [0.3, 1.0, 3.0])
def test_one_step_is_theta(gap: float) -> None:
    assert_is(exact_pair(linear([(gap / 2, -gap / 2)], (1.0,), 10.0), EPSILONS), theta(EPSILONS, gap))


def test_one_laplace_step_is_its_closed_form() -> None:
    chain = replace(linear([(1.0, -1.0)], (1.0,)), noise="laplace")
    found = exact_pair(chain, EPSILONS)
    np.testing.assert_allclose(found.forward, np.maximum(1 - np.exp((EPSILONS - 2) / 2), 0), atol=1e-2)
    assert np.all(found.lower <= np.maximum(1 - np.exp((EPSILONS - 2) / 2), 0) + FLOOR)


@pytest.mark.parametrize("slope", [0.5, 0.9, 1.0, -0.7])
@pytest.mark.parametrize("gaps", [(1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.5), (1.0, -1.0, 1.0, 1.0)])
def test_quadratic_losses_without_projection_are_gaussian(slope: float, gaps: tuple[float, ...]) -> None:
    sigmas = (1.0, 0.7, 1.3, 1.0)
    straight = [
        tuple(Step((Loss(lam=1 - slope, offset=sign * gap / 2 + 0.1),), 1.0) for sign in (-1, 1)) for gap in gaps
    ]
    chain = Instance(rounds=tuple((a, b) for a, b in straight), sigmas=sigmas, lo=-15, hi=15, start=0.5)
    mu = gaussian_pair([slope] * 4, gaps, sigmas)
    assert_is(exact_pair(chain, EPSILONS), theta(EPSILONS, mu))


def test_rounds_that_follow_a_linear_leak_add_their_variances() -> None:
    chain = linear([(0.0, 0.0), (0.8, -0.8), (0.3, 0.3), (-1.0, -1.0)], (1.0, 1.0, 1.0, 1.0), 15.0)
    total_variation = 2 * 0.5 * math.erf(1.6 / math.sqrt(4) / 2 / math.sqrt(2))
    assert exact_pair(chain, np.zeros(1)).forward[0] == pytest.approx(total_variation, rel=1e-3)
    assert gaussian_pair([1.0] * 4, chain.gaps, chain.sigmas) == pytest.approx(1.6 / 2)


@pytest.mark.parametrize(("noise", "slack"), [("gaussian", 1e-12), ("laplace", 2e-4)])
def test_no_mass_is_lost_and_the_grids_agree(noise: str, slack: float) -> None:
    for chain in random_instances(seed=3, count=20, noise=noise):
        assert [law.sum() for law in exact_laws(chain)] == pytest.approx([1.0, 1.0], abs=slack)
        assert np.all(exact_pair(chain, EPSILONS).error < slack)


def test_a_third_grid_is_no_further_off() -> None:
    for chain in random_instances(seed=4, count=10):
        for twice, thrice in zip(exact_laws(chain, 1), exact_laws(chain, 2), strict=True):
            np.testing.assert_allclose(twice, thrice, atol=1e-13)


def test_reflection_changes_nothing() -> None:
    chain = replace(linear([(1.0, -0.5), (0.4, 0.4), (-0.7, 0.2)], (1.0, 0.8, 1.1), 1.5), start=-0.6)
    mirrored = replace(linear([(-1.0, 0.5), (-0.4, -0.4), (0.7, -0.2)], (1.0, 0.8, 1.1), 1.5), start=0.6)
    for law, image in zip(exact_laws(chain), exact_laws(mirrored), strict=True):
        np.testing.assert_allclose(law, image[::-1], atol=1e-14)


def simulate(chain: Instance, side: int, count: int, rng: np.random.Generator) -> Vector:
    state = np.full(count, chain.start)
    for pair, sigma in zip(chain.rounds, chain.sigmas, strict=True):
        state = np.clip(pair[side](state) + sigma * rng.standard_normal(count), chain.lo, chain.hi)
    return state


def test_simulation_agrees() -> None:
    """Dvoretzky-Kiefer-Wolfowitz-Massart: 2 exp(-2 n x^2) = 2e-7 for each law; a false alarm has 4e-7."""
    count = 400_000
    slack = math.sqrt(math.log(2 / 2e-7) / (2 * count))
    huber = Step((Loss(extra=2.0, reach=0.5, centre=0.3),), 0.4)
    leak = Step((Loss(offset=1.0),), 0.4), Step((Loss(offset=-1.0),), 0.4)
    rounds = ((huber, huber), leak, (huber, huber), leak, (huber, huber))
    chain = Instance(rounds=rounds, sigmas=(0.3, 0.4, 0.3, 0.2, 0.3), lo=-0.5, hi=0.6, start=0.1)
    edges = np.linspace(chain.lo, chain.hi, CELLS + 1)
    for side, law in enumerate(exact_laws(chain)):
        sample = np.sort(simulate(chain, side, count, np.random.default_rng(side)))
        found = np.searchsorted(sample, edges[:-1], side="right") / count  # atoms at lo belong below
        assert np.max(np.abs(found - np.cumsum(law)[:-2])) < slack


def test_constants_are_those_of_the_maps() -> None:
    for chain in adversaries((1.0, 0.0, 0.5), (1.0, 2.0, 1.0), (0.9, 1.0, 0.3), 3.0):
        assert chain.gaps == pytest.approx((1.0, 0.0, 0.5))
        assert chain.contractions == pytest.approx((0.9, 1.0, 0.3))
        assert chain.diameter == 3.0
    for chain in random_instances(seed=5, count=50):
        assert max(chain.gaps) <= 2 * chain.carry * (1 + 1e-12)
        assert max(chain.contractions) <= 1 + 1e-12
    assert random_instances(seed=5, count=9) == random_instances(seed=5, count=9)


def test_arrangements_are_counted() -> None:
    assert sum(ways for ways, _ in arrangements((1, 2, 1), (1, 1, 1, 1))) == 24
    assert sum(ways for ways, _ in arrangements((1, 3), (2, 2))) == 6
    assert sum(ways for ways, _ in arrangements((1, 4), (2, 2))) == 30  # one record is left over


def partition(others: tuple[float, ...], sizes: tuple[int, ...], passes: int = 1) -> Partition:
    rounds = len(sizes) * passes
    return Partition(
        victim=Loss(offset=1.0),
        other=Loss(offset=-1.0),
        others=tuple(Loss(offset=g) for g in others),
        sizes=sizes,
        etas=(1.0,) * rounds,
        sigmas=(1.0,) * rounds,
        lo=-2.0,
        hi=2.0,
        start=0.0,
        passes=passes,
    )


def test_one_batch_is_no_secret() -> None:
    alone = exact_pair(linear([(2 / 3, 0.0)], (1.0,), 2.0), EPSILONS)
    mixed = random_partition_pair(partition((0.0, 1.0), (3,)), EPSILONS)
    np.testing.assert_allclose(mixed.forward, alone.forward, atol=1e-12)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_partition_is_the_mean_of_its_arrangements(passes: int) -> None:
    case = partition((1.0,), (1, 1), passes)
    orders = [((1.0, 1.0), (-1.0, 1.0)), ((1.0, 1.0), (1.0, -1.0))]
    chains = [linear(list(zip(p * passes, q * passes, strict=True)), case.sigmas, 2.0) for p, q in orders]
    p, q = (sum(laws) / 2 for laws in zip(*(exact_laws(chain) for chain in chains), strict=True))
    expected = [np.maximum(p - math.exp(epsilon) * q, 0).sum() for epsilon in EPSILONS]
    np.testing.assert_allclose(random_partition_pair(case, EPSILONS).forward, expected, atol=1e-12)


def test_secrecy_of_the_place_helps() -> None:
    hidden = random_partition_pair(partition((1.0, 0.0, -1.0, 1.0, -1.0), (1,) * 6), EPSILONS)
    last = exact_pair(linear([(0.0, 0.0)] * 5 + [(1.0, -1.0)], (1.0,) * 6, 2.0), EPSILONS)
    assert np.all(hidden.forward < last.forward)
    assert np.all(hidden.lower[:3] > 0)


def test_a_grid_beyond_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="points: more than"):
        exact_pair(linear([(1.0, -1.0)], (1e-3,)), EPSILONS)


def test_any_callable_is_a_map() -> None:
    bent = Broken((-2.0, 0.0, 2.0), (-1.0, 0.0, 2.0))
    plain = Instance(rounds=((np.sin, np.cos), (bent, bent)), sigmas=(1.0, 1.0), lo=-2, hi=2, start=0.0)
    assert np.all(exact_pair(plain, EPSILONS).error < 1e-12)
