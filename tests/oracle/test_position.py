"""Position coupling against the truth: exact mixtures over secret partitions, and families of known laws."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from chains import Loss, Partition, hockey_sticks, random_partition_pair
from scipy.special import ndtr, ndtri

from fedveil.core.values import Indices, Vector
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import smallest_epsilon
from fedveil.theory.position import Program, Star, dual_bound, own_mu, program, star, tangents
from fedveil.theory.rounds import Rounds

EPSILONS = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 2.0])
Setting = tuple[Rounds, Indices, Vector]


def steady(places: int, passes: int, ratio: float, own: float = 1.0) -> Setting:
    """Constant steps and noise, no use of the domain, equal batches; ``own``: gap over swap."""
    one = np.ones(places * passes)
    rounds = Rounds(one, own * ratio * one, ratio * one, one, math.inf * one, math.inf)
    table = np.arange(places)[:, None] + places * np.arange(passes)
    return rounds, table, np.full(places, 1 / places)


@pytest.mark.parametrize(
    ("places", "passes", "ratio", "by_star", "by_program"),
    [
        (10, 1, 0.4216, 0.944, 0.851),
        (5, 1, 0.2981, 0.740, 0.739),
        (20, 1, 0.5, 0.913, 0.777),
        (30, 1, 0.3, 0.377, 0.348),
        (10, 3, 0.4, 1.132, 1.110),
    ],
)
def test_known_epsilons(places: int, passes: int, ratio: float, by_star: float, by_program: float) -> None:
    setting = steady(places, passes, ratio)
    stars = [star(*setting, hub) for hub in sorted({0, places // 2, places - 1})]
    best = min(smallest_epsilon(one.log_delta, 1e-5, tolerance=1e-4) for one in stars)
    assert best == pytest.approx(by_star, rel=0.01)
    found = smallest_epsilon(program(*setting).log_delta, 1e-5, guess=best, tolerance=1e-3)
    assert found == pytest.approx(by_program, rel=0.02)


@pytest.mark.parametrize("own", [1.0, 0.5])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_the_program_contains_every_star(epsilon: float, own: float) -> None:
    setting = steady(9, 2, 0.6, own)
    full = program(*setting).log_delta(epsilon)
    assert all(full <= star(*setting, hub).log_delta(epsilon) + 1e-3 for hub in range(9))


@pytest.mark.parametrize("mu", [1e-8, 1e-3, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.1, 1.0, 5.0])
def test_one_place_is_theta(mu: float, epsilon: float) -> None:
    one = np.ones(1)
    lone = Star(one, 0 * one, mu * one, mu * one)
    twins = Star(one / 2 * np.ones(2), 0 * np.ones(2), mu * np.ones(2), 1.5 * mu * np.ones(2))  # own ties are idle
    exact = float(log_theta(epsilon, mu))
    for found in (lone.log_delta(epsilon), twins.log_delta(epsilon)):
        if exact > math.log(1e-250):
            assert exact - 1e-9 <= found <= exact + 2e-6


def random_case(seed: int) -> tuple[Partition, Setting]:
    """Two to four batches, one to three passes; convex records with gradients up to 1 on the domain."""
    rng = np.random.default_rng(seed)
    passes = int(rng.integers(1, 4))
    sizes = tuple(int(m) for m in rng.choice([1, 1, 2, 3], size=rng.integers(2, 5 if passes < 3 else 4)))
    rounds, left_over, zero_out = len(sizes) * passes, int(rng.choice([0, 0, 1, 2])), bool(rng.random() < 0.5)
    etas = rng.uniform(0.6, 1.4, rounds) if rng.random() < 0.5 else np.ones(rounds)
    sigma = 2 * float(rng.choice([0.5, 1.0, 2.0])) / float(rng.choice([0.4, 1.0, 2.0]))
    sigmas = sigma * (rng.uniform(0.7, 1.4, rounds) if rng.random() < 0.5 else np.ones(rounds))
    half = sigma * float(rng.choice([1.0, 3.0, 8.0]))
    lam = float(rng.choice([0.0, 0.3, 0.7])) / half
    room = 1 - lam * half
    beta = lam + float(rng.choice([0.0, 0.5, 1.0])) * (2 / float(etas.max()) - 2 * lam)
    steep = beta > lam and rng.random() < 0.6

    def record(sign: float) -> Loss:
        if not steep:
            return Loss(offset=sign * room, lam=lam)
        reach = room / (beta - lam)
        return Loss(lam=lam, extra=beta - lam, reach=reach, centre=-sign * min(half, reach))

    others = tuple(record(s) for s in rng.choice([-1.0, 0.0, 1.0], size=sum(sizes) - 1 + left_over, p=[0.4, 0.2, 0.4]))
    case = Partition(
        victim=record(1.0),
        other=Loss() if zero_out else record(-1.0),
        others=others,
        sizes=sizes,
        etas=tuple(etas.tolist()),
        sigmas=tuple(sigmas.tolist()),
        lo=-half,
        hi=half,
        start=float(rng.choice([-half, 0.0, half])),
        passes=passes,
    )
    swap = 2 * etas / np.array(sizes * passes)
    slope = np.maximum(np.abs(1 - etas * lam), np.abs(1 - etas * (beta if steep else lam)))
    diameter = 2 * half if rng.random() < 0.5 else math.inf
    known = Rounds(sigmas, swap / 2 if zero_out else swap, swap, slope, np.full(rounds, math.inf), diameter)
    places = np.arange(len(sizes))[:, None] + len(sizes) * np.arange(passes)
    return case, (known, places, np.array(sizes) / (len(others) + 1))


@pytest.mark.parametrize("seed", range(30))
def test_secret_partitions_stay_below(seed: int) -> None:
    case, setting = random_case(seed)
    truth = random_partition_pair(case, EPSILONS).lower
    bounds: list[Star | Program] = [star(*setting, hub) for hub in range(len(case.sizes))]
    bounds += [program(*setting), program(*setting, most=2)]
    for epsilon, least in zip(EPSILONS.tolist(), truth.tolist(), strict=True):
        for bound in bounds:
            assert math.exp(bound.log_delta(epsilon)) >= least * (1 - 1e-9)


def check_family(weight: Vector, ties: Vector, truth: Vector) -> None:
    """``ties``: mu of all pairs of laws, p first; ``truth``: at ``EPSILONS``, p against q."""
    half = weight.size
    own = np.diag(ties[:half, half:])
    stars = [Star(weight, ties[:half, hub], ties[hub, half:], own) for hub in range(2 * half)]
    bounds = [one.log_delta for one in stars] + [Program(weight, ties, (weight, own)).one_way]
    for log_delta in bounds:
        for epsilon, least in zip(EPSILONS.tolist(), truth.tolist(), strict=True):
            assert math.exp(log_delta(epsilon)) >= least * (1 - 1e-9) - 1e-13


@pytest.mark.parametrize("seed", range(30))
def test_normal_laws_in_other_places_stay_below(seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = int(rng.integers(2, 6))
    centres = rng.normal(size=2 * half) * rng.choice([0.1, 0.5, 2.0])
    weight = rng.dirichlet(np.ones(half))
    x = np.linspace(-14, 14, 20001)
    masses = np.diff(ndtr(x[None, :] - centres[:, None]), axis=1)
    truth = hockey_sticks(weight @ masses[:half], weight @ masses[half:], EPSILONS)
    check_family(weight, np.abs(np.subtract.outer(centres, centres)), truth)


def test_mu_too_small_by_a_tenth_would_be_caught() -> None:
    centres = np.array([0.0, 0.1, 0.3, 0.2, -0.2, -0.3])
    ties, weight = np.abs(np.subtract.outer(centres, centres)), np.full(3, 1 / 3)
    masses = np.diff(ndtr(np.linspace(-14, 14, 20001)[None, :] - centres[:, None]), axis=1)
    truth = hockey_sticks(weight @ masses[:3], weight @ masses[3:], EPSILONS)
    own = np.diag(ties[:3, 3:])
    check_family(weight, ties, truth)
    with pytest.raises(AssertionError):
        check_family(weight, 0.9 * ties, truth)
    found = np.exp([Program(weight, ties, (weight, own)).one_way(e) for e in EPSILONS.tolist()[:3]])
    assert np.all(found <= 1.2 * truth[:3])


@pytest.mark.parametrize("seed", range(30))
def test_finite_laws_stay_below(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    half, outcomes = int(rng.integers(2, 5)), int(rng.integers(2, 5))
    base = rng.dirichlet(np.ones(outcomes))
    near = float(rng.choice([0.03, 0.3, 1.0]))
    laws = (1 - near) * base + near * rng.dirichlet(np.ones(outcomes), size=2 * half)
    events = np.array([event for event in product([0.0, 1.0], repeat=outcomes) if 0 < sum(event) < outcomes])
    heights = ndtri(laws @ events.T)
    ties = np.max(np.abs(heights[:, None] - heights[None, :]), axis=-1) * (1 + 1e-12)  # every event, both ways
    weight = rng.dirichlet(np.ones(half)) * rng.choice([1.0, 0.7])
    truth = hockey_sticks(weight @ laws[:half], weight @ laws[half:], EPSILONS)
    check_family(weight, ties, truth)


@pytest.mark.parametrize("seed", range(50))
def test_no_multipliers_flatter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, epsilon = 6, float(rng.choice([0.0, 0.5, 2.0]))
    centres = rng.normal(size=size) * rng.choice([0.1, 1.0])
    high, low = np.nonzero(~np.eye(size, dtype=bool))
    mu = np.abs(centres[high] - centres[low])
    cuts = tangents(high, low, mu, rng.normal(size=mu.size) * 4 - 2)
    weight = rng.dirichlet(np.ones(size // 2))
    gain = np.concatenate([weight, -math.exp(epsilon) * weight])
    x = ndtr(centres[:, None] + np.linspace(-9, 9, 400))  # tests that keep every tie
    assert np.all(x[high] <= (cuts.slope[:, None] * x[low] + cuts.height[:, None]) * (1 + 1e-12))
    best = float(np.max(gain @ x))
    for scale in (0.0, 1e-6, 1e-2, 1.0, 100.0):
        multipliers = scale * rng.normal(size=mu.size) * rng.integers(0, 2, size=mu.size)
        assert dual_bound(gain, cuts, multipliers) >= best
    assert dual_bound(gain, cuts, np.full(mu.size, math.nan)) >= best


def test_groups_are_a_price_not_a_discount() -> None:
    setting = steady(12, 1, 0.5)
    bounds = [program(*setting, most=most).log_delta(0.7) for most in (12, 8, 5, 2, 1)]
    assert all(fine <= coarse + 1e-3 for fine, coarse in pairwise(bounds))
    assert bounds[-1] <= float(log_theta(0.7, own_mu(*setting[:2]).max())) + 1e-6


def test_sums_of_mu_cover_large_groups() -> None:
    rounds, places, weights = steady(700, 1, 1.0)
    coarse = program(rounds, places, weights)
    pairs = program(*steady(300, 1, 1.0))
    assert (
        0.2
        < smallest_epsilon(coarse.log_delta, 1e-5, tolerance=1e-3)
        < smallest_epsilon(pairs.log_delta, 1e-5, tolerance=1e-3)
    )


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 50.0, 1e4, 1e6])
@pytest.mark.parametrize("ratio", [0.0, 1e-9, 0.5, 40.0, 1e5])
def test_extremes_answer_and_never_beyond_averaging(epsilon: float, ratio: float) -> None:
    for own in (1.0, 0.5):
        setting = steady(6, 2, ratio, own)
        average = np.logaddexp.reduce(log_theta(epsilon, own_mu(*setting[:2]))) - math.log(6)
        for bound in (star(*setting, 5), program(*setting)):
            assert bound.log_delta(epsilon) <= min(float(average) + 2e-9, 0.0)


def test_shared_rounds_and_senseless_weights_are_refused() -> None:
    rounds, places, weights = steady(4, 1, 0.5)
    with pytest.raises(ValueError, match="share no round"):
        star(rounds, np.array([[0], [1], [1], [2]]), weights, 0)
    with pytest.raises(ValueError, match="name rounds 0 to 3"):
        program(rounds, places + 1, weights)
    with pytest.raises(ValueError, match="sum of at most 1"):
        program(rounds, places, 2 * weights)
    with pytest.raises(ValueError, match="one of the 4 places"):
        star(rounds, places, weights, 4)
