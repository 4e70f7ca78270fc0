"""Laws of contraction: monotone in what is known, thinning checkpoints is safe, a longer run hides more."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.values import Indices, Vector
from fedveil.theory.blocks import (
    block_contraction,
    block_distances,
    contract,
    linear_contraction,
    nonlinear_contraction,
)
from fedveil.theory.divergence import log_laplace, log_theta
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import uses_mu

SLACK = 1e-9
epsilons = st.one_of(st.just(0.0), st.floats(1e-6, 6.0))
positive = st.floats(0.1, 8.0)
logs = st.floats(-60.0, 0.0)


@st.composite
def runs(draw: st.DrawFn) -> Rounds:
    count = draw(st.integers(1, 8))

    def column(entries: st.SearchStrategy[float]) -> Vector:
        return np.array(draw(st.lists(entries, min_size=count, max_size=count)))

    lipschitz = column(st.floats(0.0, 1.2)) if draw(st.booleans()) else np.full(count, math.inf)
    gap, diameter = column(positive), draw(positive)
    return Rounds(column(positive), gap, gap, lipschitz, diameter + column(positive), diameter)


def places(rounds: Rounds, epsilon: float, checkpoints: Indices) -> Vector:
    """log A for one use in each round (row) at each checkpoint (column); 0 before the use."""
    uses = np.arange(rounds.count)[:, None]
    mu = uses_mu(rounds, uses[:, None, :], rounds.gap[uses][:, None, :], checkpoints[None, :])
    start = np.where(uses < checkpoints, log_theta(epsilon, mu), 0.0)
    return block_contraction(epsilon, start, block_distances(rounds, checkpoints))


def seen(log_delta: Vector) -> Vector:
    """What is below 1e-300 is not compared."""
    return np.asarray(np.maximum(log_delta, math.log(1e-300)))


def final(rounds: Rounds, epsilon: float) -> Vector:
    return seen(places(rounds, epsilon, np.arange(1, rounds.count + 1))[:, -1])


def changed(rounds: Rounds, **new: object) -> Rounds:
    names = ("noise", "gap", "swap", "lipschitz", "image", "diameter")
    return Rounds(**({name: getattr(rounds, name) for name in names} | new))


@settings(max_examples=60)
@given(rounds=runs(), epsilon=epsilons, factor=st.floats(1.0, 5.0))
def test_blocks_are_monotone_in_everything(rounds: Rounds, epsilon: float, factor: float) -> None:
    base = final(rounds, epsilon)
    assert np.all(base <= 0)
    assert np.all(final(changed(rounds, noise=rounds.noise * factor), epsilon) <= base + SLACK)
    for name in ("gap", "lipschitz", "diameter", "image"):
        worse = changed(rounds, **{name: getattr(rounds, name) * factor})
        assert np.all(final(worse, epsilon) >= base - SLACK), name
    assert np.all(final(rounds, epsilon + factor - 1) <= base + SLACK)


@given(rounds=runs(), epsilon=epsilons, keep=st.sets(st.integers(1, 8)))
def test_thinning_checkpoints_never_lowers(rounds: Rounds, epsilon: float, keep: set[int]) -> None:
    some = np.array(sorted({k for k in keep if k < rounds.count} | {rounds.count}))
    thinned = seen(places(rounds, epsilon, some)[:, -1])
    assert np.all(thinned >= final(rounds, epsilon) - SLACK)


@given(rounds=runs(), epsilon=epsilons)
def test_later_states_tell_less(rounds: Rounds, epsilon: float) -> None:
    checkpoints = np.arange(1, rounds.count + 1)
    table = places(rounds, epsilon, checkpoints)
    for place in range(rounds.count):
        assert np.all(table[place, :place] == 0)
        assert np.all(table[place, place + 1 :] <= table[place, place:-1])


@given(rounds=runs(), epsilon=epsilons)
def test_the_order_of_the_bounds(rounds: Rounds, epsilon: float) -> None:
    steps = rounds.reach / rounds.noise
    first = log_theta(epsilon, rounds.gap / rounds.noise)
    linear, nonlinear = (bound(epsilon, first, steps) for bound in (linear_contraction, nonlinear_contraction))
    assert np.all(final(rounds, epsilon) <= seen(nonlinear) + SLACK)
    assert np.all(nonlinear <= linear + SLACK)


@given(epsilon=epsilons, log_a=logs, less=st.floats(0.0, 30.0), distance=positive, factor=st.floats(1.0, 4.0))
def test_a_step_is_monotone(epsilon: float, log_a: float, less: float, distance: float, factor: float) -> None:
    for form in (log_theta, log_laplace):
        base = contract(epsilon, np.array([log_a]), np.array([distance]), form)
        assert base <= log_a
        assert base <= linear_contraction(epsilon, np.full(2, log_a), np.full(2, distance), form)[0] + SLACK
        assert contract(epsilon, np.array([log_a - less]), np.array([distance]), form) <= base + SLACK
        assert contract(epsilon, np.array([log_a]), np.array([distance * factor]), form) >= base - SLACK
