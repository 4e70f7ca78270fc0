"""Laws of position coupling: more noise, smaller gaps or a larger epsilon never cost privacy."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.values import Indices, Vector
from fedveil.theory.numerics import SMALLEST_DELTA
from fedveil.theory.position import Program, Star, log_average, own_mu, program, star
from fedveil.theory.rounds import Rounds

CLOSE = 1e-3  # how far, in ln(delta), two solutions of the program may lie apart
LEAST = math.log(SMALLEST_DELTA)  # below this nothing is asked, and the program may answer with the average
EXACT = 1e-6  # the same for the search of a star

Setting = tuple[Rounds, Indices, Vector]
epsilons = st.floats(0.0, 4.0)


@st.composite
def runs(draw: st.DrawFn) -> Setting:
    """Up to five batches and three passes, all constants free, some chance of not being used."""
    count, passes = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    total = count * passes

    def vector(low: float, high: float) -> Vector:
        return np.array(draw(st.lists(st.floats(low, high), min_size=total, max_size=total)))

    swap = vector(0.05, 2.0)
    gap = swap * draw(st.sampled_from([0.5, 1.0]))
    diameter = draw(st.sampled_from([1.0, 5.0, math.inf]))
    rounds = Rounds(vector(0.5, 2.0), gap, swap, vector(0.3, 1.0), np.full(total, math.inf), diameter)
    shares = np.array(draw(st.lists(st.floats(0.1, 1.0), min_size=count, max_size=count)))
    places = np.arange(count)[:, None] + count * np.arange(passes)
    return rounds, places, shares / shares.sum() * draw(st.sampled_from([1.0, 0.6]))


def scaled(run: Setting, gap: float = 1.0, noise: float = 1.0) -> Setting:
    rounds, places, weights = run
    fields = gap * rounds.gap, gap * rounds.swap, rounds.lipschitz, rounds.image, rounds.diameter
    return Rounds(noise * rounds.noise, *fields), places, weights


@given(run=runs(), epsilon=epsilons, more=st.floats(0.0, 2.0))
def test_a_star_falls_with_epsilon(run: Setting, epsilon: float, more: float) -> None:
    bound = star(*run, 0)
    assert bound.log_delta(epsilon + more) <= bound.log_delta(epsilon) + EXACT <= EXACT


@settings(deadline=None, max_examples=30)
@given(run=runs(), epsilon=epsilons, more=st.floats(0.0, 2.0))
def test_a_program_falls_with_epsilon(run: Setting, epsilon: float, more: float) -> None:
    bound = program(*run)
    assert bound.log_delta(epsilon + more) <= max(bound.log_delta(epsilon), LEAST) + CLOSE <= CLOSE


@settings(deadline=None, max_examples=30)
@given(run=runs(), epsilon=epsilons, factor=st.floats(1.0, 3.0))
def test_larger_gaps_and_less_noise_cost(run: Setting, epsilon: float, factor: float) -> None:
    for worse in (scaled(run, gap=factor), scaled(run, noise=1 / factor)):
        for hub in range(run[1].shape[0]):
            assert star(*run, hub).log_delta(epsilon) <= star(*worse, hub).log_delta(epsilon) + EXACT
        assert program(*run).log_delta(epsilon) <= max(program(*worse).log_delta(epsilon), LEAST) + CLOSE


@settings(deadline=None, max_examples=30)
@given(run=runs(), epsilon=epsilons)
def test_never_beyond_averaging(run: Setting, epsilon: float) -> None:
    average = log_average(run[2], epsilon, own_mu(*run[:2]))
    bounds: list[Star | Program] = [star(*run, hub) for hub in range(run[1].shape[0])]
    for bound in (*bounds, program(*run)):
        assert 0.0 <= math.exp(bound.log_delta(epsilon)) <= math.exp(average)


@settings(deadline=None, max_examples=30)
@given(run=runs(), epsilon=epsilons)
def test_a_program_is_no_worse_than_a_star(run: Setting, epsilon: float) -> None:
    """For records that are surely used; otherwise the program is one bound beside the stars, and the least counts."""
    run = run[0], run[1], run[2] / run[2].sum()
    stars = [star(*run, hub).log_delta(epsilon) for hub in range(run[1].shape[0])]
    assert program(*run).log_delta(epsilon) <= max(min(stars), LEAST) + CLOSE


@settings(deadline=None, max_examples=30)
@given(run=runs(), epsilon=epsilons)
def test_the_value_stays_below_its_certificate(run: Setting, epsilon: float) -> None:
    bound = star(*run, run[1].shape[0] - 1)
    x = np.linspace(-9.0, 9.0, 3001)
    tops = [float(np.max(one.value(epsilon, x))) for one in (bound, bound.back) if one is not None]
    assert max(tops) <= math.exp(bound.log_delta(epsilon)) + 1e-15
    assert math.exp(bound.log_delta(epsilon)) <= max(tops) * (1 + 1e-3) + 1e-15
