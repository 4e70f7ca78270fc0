"""What imperfect samples cost at large epsilons: the law behind it on finite laws, and the numbers by other ways."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from fedveil.accounting.compare import account_for
from fedveil.accounting.convert import Approximate
from fedveil.accounting.grid import Grid, delta_on_grid, inner_target, on_grid
from fedveil.accounting.observers import Participation, observe
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Answer
from fedveil.privacy.mechanism import ApproximateDP, Gaussian, LastIterate, Repeat, SampledGaussian
from fedveil.theory.concentrated import gaussian_epsilon, group_epsilon_delta
from fedveil.theory.divergence import hockey_stick
from fedveil.theory.grid import log_capped_cost

TINY = 2.0**-100


def _law(generator: np.random.Generator, size: int) -> Vector:
    weights = np.exp(4 * generator.standard_normal(size))
    return np.asarray(weights / weights.sum())


def _near(generator: np.random.Generator, law: Vector, share: float) -> Vector:
    """A law within ``share`` of this one in total variation; rare outcomes may vanish, as in a cut-off tail."""
    kept = np.where(generator.random(law.size) < 0.4, np.maximum(law - share / law.size, 0.0), law)
    lost = 1 - kept.sum()
    kept[int(np.argmax(law))] += lost
    return np.asarray(kept)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_misjudged_is_no_more_than_one_release_may_tell(seed: int) -> None:
    """Two releases, each drawn imperfectly: the statement holds for every cap, at epsilons beyond all caps too."""
    generator = np.random.default_rng(seed)
    share = 10.0 ** generator.uniform(-6, -1)
    ideal = [(_law(generator, 6), _law(generator, 6)) for _ in range(2)]
    real = [(_near(generator, p, share), _near(generator, q, share)) for p, q in ideal]
    tau = sum(max(np.abs(p - a).sum(), np.abs(q - b).sum()) / 2 for (p, q), (a, b) in zip(ideal, real, strict=True))
    whole = [np.outer(first, second).ravel() for first, second in zip(*ideal, strict=True)]
    drawn = [np.outer(first, second).ravel() for first, second in zip(*real, strict=True)]
    for cap in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0):
        above = sum(float(p[np.log(p / q) > cap].sum()) for p, q in ideal)
        cost = tau * (1 + math.exp(cap)) + above
        for epsilon in (0.0, 1.0, 3.0, 6.0, 12.0):
            assert hockey_stick(*drawn, epsilon) <= hockey_stick(*whole, epsilon) + cost + 1e-12


@pytest.mark.parametrize("move", [0.5, 2.0, 4.0, 5.5])
@pytest.mark.parametrize("count", [1, 300])
def test_the_cost_is_above_that_of_the_best_cap(move: float, count: int) -> None:
    variation = TINY * 1000
    with mpmath.workdps(40):
        m = mpmath.mpf(move)
        exact = min(
            variation * (1 + mpmath.exp(c)) + count * mpmath.ncdf(-(c - m * m / 2) / m)
            for c in mpmath.linspace(0, 70, 701)
        )
        log_exact = float(mpmath.log(exact))
    found = log_capped_cost(variation, ((move, count),), "gaussian")
    assert log_exact <= found <= log_exact + 6


def test_a_release_that_is_moved_beyond_the_noise_costs_everything() -> None:
    assert log_capped_cost(TINY, ((12.5, 1),), "gaussian") == math.inf
    assert log_capped_cost(TINY, ((math.inf, 1),), "gaussian") == math.inf
    assert log_capped_cost(math.nan, ((1.0, 1),), "gaussian") == math.inf
    assert log_capped_cost(1.0, ((1.0, 1),), "gaussian") == math.inf
    assert log_capped_cost(TINY, ((200.0, 1),), "laplace") == math.inf
    assert log_capped_cost(TINY, ((20.0, 1),), "laplace") < math.log(1e-15)


def _grid(rounds: int, dimension: int = 31) -> Grid:
    variation = TINY * rounds * dimension
    return Grid(exponent=-40, dimension=dimension, rounds=rounds, distance=1e-9, total_variation=variation)


def _run(noise: float, passes: int) -> LastIterate:
    return LastIterate(rounds=4, passes=passes, step_size=0.5, lipschitz=1.0, smoothness=1.0, noise_std=noise)


@pytest.mark.parametrize(("noise", "passes"), [(1.0, 20), (0.7, 12), (0.5, 4), (1.0, 400), (1.0, 9000)])
def test_every_model_is_charged_by_composition_however_large(noise: float, passes: int) -> None:
    run, who = _run(noise, passes), Participation(clients=2, every_round=True)
    exact = gaussian_epsilon(2 / noise * math.sqrt(passes), 1e-5)
    for adversary in ("every-model", "server-with-secure-aggregation"):

        def ideal(delta: float, adversary: str = adversary) -> Answer:
            return observe(run, adversary, who, delta=delta)  # type: ignore[arg-type]

        found = on_grid(_grid(run.total), ideal, 1e-5)
        assert exact > 50
        assert exact <= found.epsilon <= exact * 1.01
        assert found.certified_by == "unhidden"


def test_a_composition_of_samples_is_charged_however_large() -> None:
    mechanism = Repeat(of=SampledGaussian(sampling="poisson", rate=0.5, noise_multiplier=0.4), times=100)
    ideal = account_for(mechanism, delta=1e-5).epsilon
    found = on_grid(_grid(100), lambda delta: account_for(mechanism, delta=delta), 1e-5)
    assert 150 < ideal < found.epsilon < ideal * 1.01
    assert found.certified_by == "loss-distribution"


@pytest.mark.parametrize("times", [30, 200, 3000])
def test_delta_at_a_large_epsilon_is_the_inverse(times: int) -> None:
    mechanism, grid = Repeat(of=Gaussian(noise_multiplier=0.5), times=times), _grid(times)
    epsilon = on_grid(grid, lambda delta: account_for(mechanism, delta=delta), 1e-5).epsilon
    back = delta_on_grid(grid, lambda at: account_for(mechanism, epsilon=at), epsilon)
    assert back.delta == pytest.approx(1e-5, rel=1e-3)
    nothing = delta_on_grid(grid, lambda at: account_for(Gaussian(noise_multiplier=0.05), epsilon=at), epsilon)
    assert nothing.delta == 1.0  # what moves by 20 deviations is not hidden by noise that ends at 12


def test_what_the_noise_that_is_drawn_cannot_hide_stays_infinite() -> None:
    mechanism = Gaussian(noise_multiplier=1 / 13)  # the noise that is drawn ends before: everybody could tell
    found = on_grid(_grid(1), lambda delta: account_for(mechanism, delta=delta), 1e-5)
    assert account_for(mechanism, delta=1e-5).epsilon < math.inf
    assert found.epsilon == math.inf
    assert "up to about 12" in found.bounds[0].reason


@pytest.mark.parametrize("noise", [1.5, 3.0])
def test_usual_epsilons_do_not_move(noise: float) -> None:
    """As before: the ideal epsilon and twice the slack, which does not depend on what is seen."""
    grid, mechanism = _grid(10), Repeat(of=Gaussian(noise_multiplier=noise), times=10)
    found = on_grid(grid, lambda delta: account_for(mechanism, delta=delta), 1e-5).epsilon
    inner = account_for(mechanism, delta=math.exp(-grid.slack.epsilon) * (1 - 1e-6) * 1e-5).epsilon
    assert found == (inner + 2 * grid.slack.epsilon) * (1 + 2.0**-50)


def _optimal_delta(epsilon: float, each: float, delta: float, times: int) -> float:
    """Kairouz, Oh, Viswanath, The composition theorem for differential privacy: in closed form."""
    with mpmath.workdps(50):
        e, total = mpmath.mpf(each), mpmath.mpf(0)
        for low in range(times // 2 + 1):
            gain = mpmath.exp((times - low) * e) - mpmath.exp(epsilon + low * e)
            total += mpmath.binomial(times, low) * max(gain, 0)
        total /= (1 + mpmath.exp(e)) ** times
        return float(1 - (1 - mpmath.mpf(delta)) ** times * (1 - total))


@pytest.mark.parametrize(("each", "delta", "times"), [(0.1, 1e-8, 100), (0.5, 0.0, 40), (0.02, 1e-9, 1000)])
def test_repeated_promises_compose_exactly(each: float, delta: float, times: int) -> None:
    found = Approximate(each, delta).repeated(times).epsilon(1e-5)
    assert _optimal_delta(found, each, delta, times) <= 1e-5
    assert _optimal_delta(found * (1 - 2e-3), each, delta, times) > 1e-5
    assert found < each * times


def test_the_numbers_of_repeated_promises() -> None:
    promise = Approximate(0.1, 1e-8).repeated(100)
    assert promise.epsilon(1e-5) == pytest.approx(4.3297, abs=1e-3)
    assert promise.delta(4.3297) <= 1e-5 <= promise.delta(4.32)
    assert promise.epsilon(1e-9) == math.inf  # a hundred times 1e-8 is more
    assert Approximate(0.1, 1.0).repeated(3).epsilon(0.5) == math.inf


def test_groups_of_composed_promises() -> None:
    mechanism = Repeat(of=ApproximateDP(epsilon=0.1, delta=1e-8), times=100)
    found = account_for(mechanism, delta=1e-5, group=2).epsilon
    each, delta = group_epsilon_delta(0.1, 1e-8, 2)
    assert _optimal_delta(found, each, delta, 100) <= 1e-5
    assert _optimal_delta(found * (1 - 2e-3), each, delta, 100) > 1e-5
    assert found == pytest.approx(9.858, abs=2e-2)
    assert found == pytest.approx(Approximate(0.1, 1e-8).repeated(100).grouped(2).epsilon(1e-5), rel=2e-3)


def test_a_hidden_run_in_a_composition_is_charged_for_groups() -> None:
    run = LastIterate(rounds=10, batch=4, step_size=0.5, lipschitz=1.0, smoothness=1.0, diameter=1.0, noise_std=8.0)
    alone = account_for(run, delta=1e-5, group=2).epsilon
    both = Repeat(of=run, times=2)
    single, found = account_for(both, delta=1e-5).epsilon, account_for(both, delta=1e-5, group=2).epsilon
    assert max(alone, single) < found < math.inf


@pytest.mark.parametrize("seed", range(20))
def test_a_mishap_that_depends_on_no_record_costs_its_chance_once(seed: int) -> None:
    """With this chance everything is shown, on either data set: delta is the ideal one and the chance at most."""
    generator = np.random.default_rng(seed)
    p, q, chance = _law(generator, 8), _law(generator, 8), 10.0 ** generator.uniform(-5, -1)
    shown = [np.append((1 - chance) * law, row) for law, row in ((p, [chance, 0.0]), (q, [0.0, chance]))]
    for epsilon in (0.0, 1.0, 5.0, 20.0):
        assert hockey_stick(*shown, epsilon) <= hockey_stick(p, q, epsilon) + chance + 1e-12


def test_bad_luck_with_masks_does_not_grow_with_epsilon() -> None:
    mechanism = Repeat(of=Gaussian(noise_multiplier=0.5), times=40)
    exact = gaussian_epsilon(2 * math.sqrt(40), 1e-5)
    masked = replace(_grid(40), mishap=40 * 2.0**-40)
    found = on_grid(masked, lambda delta: account_for(mechanism, delta=delta), 1e-5)
    assert 120 < exact <= found.epsilon <= exact * 1.01
    unlucky = replace(masked, mishap=1e-5)
    assert on_grid(unlucky, lambda delta: account_for(mechanism, delta=delta), 1e-5).epsilon == math.inf
    inner, left = inner_target(replace(masked, mishap=4e-6), 8.0, 1e-5)
    assert left < 6e-6
    assert inner < 8.0
