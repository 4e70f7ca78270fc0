"""No bound below the truth, the order of the bounds, and the numbers the theory promises."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import chains
import numpy as np
import pytest

from fedveil.core.values import Vector
from fedveil.theory.blocks import (
    block_contraction,
    block_distances,
    contract,
    linear_contraction,
    nonlinear_contraction,
    raised_epsilon,
)
from fedveil.theory.divergence import log_laplace, log_theta
from fedveil.theory.numerics import smallest_epsilon
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import shift_mu, uses_mu

EPSILONS = np.array([0.0, 0.05, 0.3, 1.0, 2.5])
INF = math.inf


@dataclass(frozen=True, slots=True)
class Bounds:
    linear: float
    nonlinear: float
    block: float
    shift: float


def rounds_of(case: chains.Instance) -> Rounds:
    gaps, count = np.array(case.gaps), len(case.sigmas)
    image = np.full(count, case.diameter + 2 * case.carry)
    return Rounds(np.array(case.sigmas), gaps, gaps, np.array(case.contractions), image, case.diameter)


def bounds(rounds: Rounds, epsilon: float) -> Bounds:
    """Log bounds on the last state: (c) up to the last use, then every kind of contraction."""
    uses = np.flatnonzero(rounds.gap > 0)
    if uses.size == 0:
        return Bounds(-INF, -INF, -INF, -INF)
    last, total = int(uses[-1]), rounds.count
    used = rounds.until(last + 1)
    first = float(log_theta(epsilon, shift_mu(used, used.gap)))
    steps = np.append(INF, (rounds.reach / rounds.noise)[last + 1 :])
    start = np.full(steps.size, first)
    checkpoints = np.arange(last + 1, total + 1)
    followed = log_theta(epsilon, uses_mu(rounds, uses, rounds.gap[uses], checkpoints))
    followed[0] = first
    blocks = block_contraction(epsilon, followed[None, :], block_distances(rounds, checkpoints))
    return Bounds(
        linear=float(linear_contraction(epsilon, start, steps)[0]),
        nonlinear=float(nonlinear_contraction(epsilon, start, steps)[0]),
        block=float(blocks[0, -1]),
        shift=float(log_theta(epsilon, shift_mu(rounds, rounds.gap))),
    )


def assert_above(case: chains.Instance) -> None:
    truth, rounds = chains.exact_pair(case, EPSILONS).lower, rounds_of(case)
    for epsilon, exact in zip(EPSILONS, truth, strict=True):
        found = bounds(rounds, float(epsilon))
        for name in ("linear", "nonlinear", "block", "shift"):
            assert exact <= math.exp(getattr(found, name)) * (1 + 1e-9), (name, epsilon, case.label)
        assert found.block <= found.nonlinear + 1e-12 <= found.linear + 2e-12
        assert found.block <= found.shift + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_never_below_the_truth(seed: int) -> None:
    for case in chains.random_instances(seed + 20, 40):
        assert_above(case)


@pytest.mark.parametrize("c", [0.5, 1.0])
@pytest.mark.parametrize("gaps", [(1.0, 0, 0), (0, 2.0, 0), (1.0, 0, 1.0, 0), (0.5, 0.5, 0.5, 0, 0)])
def test_never_below_an_adversary(gaps: tuple[float, ...], c: float) -> None:
    sigmas = (1.0, 0.7, 1.2, 0.8, 1.0)[: len(gaps)]
    for case in chains.adversaries(gaps, sigmas, (c,) * len(gaps), 2.0):
        assert_above(case)


def test_laplace_is_never_below_the_truth() -> None:
    tried = 0
    for case in chains.random_instances(7, 40, "laplace"):
        rounds = rounds_of(case)
        uses = np.flatnonzero(rounds.gap > 0)
        if uses.size != 1:
            continue
        tried += 1
        steps = rounds.reach / rounds.noise
        for epsilon, exact in zip(EPSILONS, chains.exact_pair(case, EPSILONS).lower, strict=True):
            first = log_laplace(np.full(rounds.count, epsilon), rounds.gap / rounds.noise)
            for bound in (linear_contraction, nonlinear_contraction):
                log_found = bound(float(epsilon), first, steps, log_laplace)[uses[0]]
                assert exact <= math.exp(log_found) * (1 + 1e-9), (bound.__name__, epsilon, case.label)
    assert tried >= 15


def even(total: int, noise: float, gap: float, c: float, diameter: float) -> Rounds:
    full = [np.full(total, value) for value in (noise, gap, gap, c, INF)]
    return Rounds(full[0], full[1], full[2], full[3], full[4], diameter)


def after(rounds: Rounds, epsilon: float) -> Vector:
    """log A(r) for r = 0, 1, ... rounds after a use in the first round."""
    checkpoints = np.arange(1, rounds.count + 1)
    mu = uses_mu(rounds, np.zeros(1, dtype=np.intp), rounds.gap[:1], checkpoints)
    start = log_theta(epsilon, mu)[None, :]
    return np.asarray(block_contraction(epsilon, start, block_distances(rounds, checkpoints))[0])


def epsilon_of(log_delta: Callable[[float], float]) -> float:
    return smallest_epsilon(log_delta, 1e-5)


def mean(logs: Vector) -> float:
    return math.log(float(np.mean(np.exp(logs))))


@pytest.mark.parametrize(
    ("place", "rounds", "promised"),
    [
        (39, even(40, noise=1.0, gap=1.0, c=1.0, diameter=1.0), 1.361),
        (36, even(40, noise=1.0, gap=1.0, c=1.0, diameter=1.0), 0.0588),
        (39, even(40, noise=0.7, gap=1.4, c=0.86, diameter=1.0), 3.209),
    ],
)
def test_003_figures(place: int, rounds: Rounds, promised: float) -> None:
    short = rounds.until(40 - place + 1)
    assert epsilon_of(lambda e: float(after(short, e)[-1])) == pytest.approx(promised, rel=1e-3)


def test_002_random_stop() -> None:
    rounds = even(100, noise=0.25, gap=0.1, c=1.0, diameter=1.0)
    assert epsilon_of(lambda e: mean(after(rounds, e))) == pytest.approx(1.0376, rel=1e-3)


@pytest.mark.parametrize(("batch", "promised"), [(10, 1.3979), (20, 1.0007)])
def test_000_figure_2(batch: int, promised: float) -> None:
    noise = 0.5 * 1.5 / math.sqrt(batch)
    rounds = even(100 // batch, noise=noise, gap=2 * 0.5 / batch, c=1.0, diameter=2.0)
    assert epsilon_of(lambda e: mean(after(rounds, e))) == pytest.approx(promised, rel=1e-3)


def test_a_block_does_not_begin_before_the_use() -> None:
    """The use is in the second round, its gap wider than any image of the domain: forgetting does not undo it."""
    rounds = even(2, noise=0.5, gap=1.0, c=0.1, diameter=1.0)
    start = np.array([[0.0, float(log_theta(0.0, 2.0))]])
    found = block_contraction(0.0, start, block_distances(rounds, np.array([1, 2])))
    assert found[0].tolist() == start[0].tolist()


def test_a_use_that_shows_fully_still_starts() -> None:
    distances = np.array([[INF, 1.0], [INF, INF]])
    shown = np.zeros((1, 2))  # theta rounds to 1
    started = np.array([[True, True]])
    expected = float(log_theta(0.5, 1.0))
    assert block_contraction(0.5, shown, distances)[0, 1] == 0.0
    assert block_contraction(0.5, shown, distances, started)[0, 1] == pytest.approx(expected)


def test_doubt_does_not_spread_to_other_places() -> None:
    start = np.array([[math.nan, -1.0], [-1.0, -1.0]])
    found = block_contraction(0.5, start, np.array([[INF, 1.0], [INF, INF]]))
    assert math.isnan(found[0, 0])
    assert found[1, 1] < -1.0


def test_distances_without_lipschitz_constants() -> None:
    one = np.ones(3)
    rounds = Rounds(one, one, one, np.full(3, INF), np.array([1.5, 2.0, 3.0]), 1.0)
    found = block_distances(rounds, np.arange(4))
    assert found[0].tolist() == [INF, 1.5, 2.0, 3.0]
    assert np.all(np.isinf(found[np.tril_indices(4)]))
    assert np.all(np.isinf(block_distances(even(3, 1.0, 1.0, 0.0, INF), np.arange(1, 3))[1:]))


def test_distances_of_a_deep_run_are_those_of_its_beginning() -> None:
    deep, checkpoints = even(3000, 1.0, 1.0, 0.5, 50.0), np.array([0, 90, 100, 3000])
    short = even(100, 1.0, 1.0, 0.5, 50.0)
    found = block_distances(deep, checkpoints)
    np.testing.assert_allclose(found[:3, :3], block_distances(short, checkpoints[:3]), rtol=1e-12)
    assert found[0, 3] < 1e-100


@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1e-9, 1.0, 800.0])
def test_the_raised_epsilon_does_not_overflow(epsilon: float) -> None:
    log_a = np.array([0.0, -1.0, -700.0, -1e6, -INF])
    found = raised_epsilon(epsilon, log_a)
    assert np.all(found >= 0)
    assert found[0] == pytest.approx(epsilon, rel=1e-9)
    assert np.all(np.diff(found) >= 0)
    stepped = contract(epsilon, log_a, np.ones(5))
    assert np.all(stepped <= log_a)
    assert not np.any(np.isnan(stepped))


def test_uneven_rounds_take_the_same_way() -> None:
    """The shortcut for constant rounds against the general loop."""
    first, steps = np.full(12, -1.0), np.full(12, 1.3)
    short = nonlinear_contraction(0.4, first, steps)
    nudged = steps.copy()
    nudged[0] = 9.0  # no place passes the first round
    np.testing.assert_allclose(nonlinear_contraction(0.4, first, nudged), short, rtol=1e-12)
    assert np.all(nonlinear_contraction(0.4, first, np.full(12, INF)) == -1.0)
