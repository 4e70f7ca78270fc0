"""Laws of the grid's cost: never better than ideal, growing with every cause, nothing when there is no cause."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fedveil.accounting.grid import Grid, choose_grid, delta_on_grid, inner_target, on_grid
from fedveil.core.errors import BadValue, CannotCertify
from fedveil.privacy.guarantee import Answer, Bound
from fedveil.theory.divergence import hockey_stick, log_theta
from fedveil.theory.grid import Slack, log_delta_left, log_delta_on_grid, slack_of
from fedveil.theory.numerics import smallest_epsilon

Vector = NDArray[np.float64]

epsilons = st.floats(0.0, 12.0)
distances = st.floats(0.0, 0.1)
variations = st.one_of(st.just(0.0), st.floats(1e-30, 1e-3))
laws = arrays(np.float64, 5, elements=st.floats(1e-3, 1.0)).map(lambda w: w / w.sum())
tilts = arrays(np.float64, 5, elements=st.floats(-0.5, 0.5))


def gaussian(mu: float, delta: float) -> Answer:
    """The ideal run, if it is mu-GDP; a second, weaker bound beside the first."""
    epsilon, worse = (smallest_epsilon(lambda e, m=m: float(log_theta(e, m)), delta) for m in (mu, 2 * mu))  # type: ignore[misc]
    rows = (
        Bound(name="sharp", status="certified", reason="it is so", epsilon=epsilon, epsilon_lower=epsilon),
        Bound(name="weak", status="certified", reason="doubled", epsilon=worse),
        Bound(name="none", status="does-not-apply", reason="no"),
    )
    return Answer(epsilon=epsilon, delta=delta, certified_by="sharp", bounds=rows)


def grid(distance: float, total_variation: float = 0.0) -> Grid:
    return Grid(exponent=-40, dimension=3, rounds=7, distance=distance, total_variation=total_variation)


@given(p=laws, q=laws, up=tilts, down=tilts, far=laws, away=laws, epsilon=st.floats(0, 3), tau=st.floats(1e-9, 0.3))
def test_the_triangle(
    p: Vector, q: Vector, up: Vector, down: Vector, far: Vector, away: Vector, epsilon: float, tau: float
) -> None:
    """Any finite laws: tilted (an epsilon away), then mixed with others (a total variation away)."""
    near_p, near_q = (law * np.exp(tilt) / (law * np.exp(tilt)).sum() for law, tilt in ((p, up), (q, down)))
    e = max(float(np.max(np.abs(np.log(a / b)))) for a, b in ((near_p, p), (near_q, q)))
    real_p, real_q = (1 - tau) * near_p + tau * far, (1 - tau) * near_q + tau * away
    ideal = hockey_stick(p, q, epsilon)
    bound = log_delta_on_grid(epsilon, math.log(max(ideal, 1e-300)), Slack(e, -math.inf), tau)
    assert hockey_stick(real_p, real_q, epsilon + 2 * e) <= math.exp(bound) + 1e-12


@given(epsilon=epsilons, log_delta=st.floats(-60, -0.1), r=distances, more=distances, tau=variations, extra=variations)
def test_never_below_ideal_and_monotone(
    epsilon: float, log_delta: float, r: float, more: float, tau: float, extra: float
) -> None:
    value = log_delta_on_grid(epsilon, log_delta, slack_of(r, "gaussian"), tau)
    assert value >= log_delta
    assert log_delta_on_grid(epsilon, log_delta, slack_of(r + more, "gaussian"), tau + extra) >= value - 1e-12
    assert log_delta_on_grid(epsilon + 0.1, log_delta, slack_of(r, "gaussian"), tau) >= value - 1e-12


@given(r=st.floats(1e-12, 0.5))
def test_the_slack_holds_what_it_says(r: float) -> None:
    slack = slack_of(r, "gaussian")
    assert float(log_theta(slack.epsilon, r)) <= slack.log_delta
    assert 13 * r < slack.epsilon < 14 * r + r * r


@given(mu=st.floats(0.05, 3.0), r=st.floats(0.0, 0.01), tau=variations, delta=st.sampled_from([1e-9, 1e-6, 1e-3]))
def test_epsilon_on_the_grid(mu: float, r: float, tau: float, delta: float) -> None:
    here = grid(r, tau)
    ideal = gaussian(mu, delta)
    answer = on_grid(here, lambda inner: gaussian(mu, inner), delta)
    assert answer.delta == delta
    assert answer.epsilon >= ideal.epsilon
    assert answer["none"] == ideal["none"]
    assert answer["sharp"].epsilon_lower is None
    for name in ("sharp", "weak"):
        mine, theirs = answer[name].epsilon, ideal[name].epsilon
        assert mine is not None
        assert theirs is not None
        assert mine >= theirs + 2 * here.slack.epsilon * (1 - 1e-9)
    if tau <= 1e-3 * delta * math.exp(-ideal.epsilon - 1):
        assert answer.epsilon <= smallest_epsilon(lambda e: float(log_theta(e, mu)), delta / 2.5) + 0.3 * 100 * r + 1e-6
    if answer.epsilon == math.inf:
        assert answer.certified_by is None
        assert "does not fit in delta" in answer["sharp"].reason


@given(mu=st.floats(0.05, 3.0), r=st.floats(0.0, 0.01), tau=variations, epsilon=st.floats(0.5, 8.0))
def test_delta_on_the_grid_agrees_with_the_inner_target(mu: float, r: float, tau: float, epsilon: float) -> None:
    here = grid(r, tau)

    def ideal(at: float) -> Answer:
        delta = max(math.exp(float(log_theta(at, mu))), 1e-12)
        row = Bound(name="sharp", status="certified", reason="it is so", epsilon=at, delta=delta)
        return Answer(epsilon=at, delta=delta, certified_by="sharp", bounds=(row,))

    answer = delta_on_grid(here, ideal, epsilon)
    assert answer.epsilon == epsilon
    assert answer.delta >= ideal(epsilon).delta
    assert answer["sharp"].delta == answer.delta
    if answer.delta < 0.9:
        asked = answer.delta * 1.001  # of which at least a thousandth is left when the grid has its share
        inner_epsilon, inner_delta = inner_target(here, epsilon, asked)
        assert inner_epsilon == pytest.approx(epsilon - 2 * here.slack.epsilon, rel=1e-9)
        assert log_delta_on_grid(inner_epsilon, math.log(inner_delta), here.slack, tau) <= math.log(asked)


@given(epsilon=epsilons, delta=st.floats(1e-12, 0.1), r=distances, tau=variations)
def test_what_is_left_is_enough(epsilon: float, delta: float, r: float, tau: float) -> None:
    slack = slack_of(r, "gaussian")
    left = log_delta_left(epsilon, delta, slack, tau)
    assert left < math.log(delta)
    if left > -math.inf:
        assert log_delta_on_grid(epsilon, left, slack, tau) <= math.log(delta)


def test_a_fine_grid_costs_nothing_to_speak_of() -> None:
    """An MNIST-sized softmax, a thousand rounds, 2**38 steps in the noise: eight digits of epsilon stay."""
    rounds = 1000
    noise, ones = np.full(rounds, 2.0**-10), np.ones(rounds)
    here = Grid.of(exponent=-48, dimension=7850, noise=noise, lipschitz=ones, errors=0.0 * ones)
    assert here.distance == pytest.approx(math.sqrt(rounds * 7850) * 2.0**-38, rel=1e-9)
    assert here.total_variation < 1e-22
    ideal = gaussian(0.5, 1e-6).epsilon
    assert ideal < on_grid(here, lambda inner: gaussian(0.5, inner), 1e-6).epsilon < ideal * (1 + 3e-7)


def test_doubt_is_infinite() -> None:
    ones = np.ones(3)
    unknown = Grid.of(exponent=-40, dimension=2, noise=ones, lipschitz=math.inf * ones, errors=0 * ones)
    answer = on_grid(unknown, lambda inner: gaussian(0.5, inner), 1e-6)
    assert answer.epsilon == math.inf
    assert answer["sharp"].epsilon == math.inf
    assert delta_on_grid(unknown, lambda at: gaussian(0.5, 1e-6), 1.0).delta == 1.0
    with pytest.raises(CannotCertify, match="take a finer grid"):
        inner_target(unknown, 1.0, 1e-6)
    with pytest.raises(CannotCertify, match="out of reach"):
        inner_target(grid(0.0, 1e-3), 1.0, 1e-6)
    nowhere = Answer(epsilon=math.inf, delta=1e-6, certified_by=None, bounds=())
    assert on_grid(grid(1e-9), lambda inner: nowhere, 1e-6).epsilon == math.inf


@given(radius=st.one_of(st.none(), st.floats(1e-3, 1e3)), small=st.floats(1e-5, 10.0), ratio=st.floats(1.0, 100.0))
def test_the_chosen_grid(radius: float | None, small: float, ratio: float) -> None:
    large = small * ratio
    try:
        exponent = choose_grid(radius, small, large)
    except BadValue as refused:
        assert "2**24 steps" in str(refused)  # noqa: PT017
        assert radius is not None
        assert (radius + 16 * large) / small > 2**27
        return
    assert small / 2.0**exponent >= 2**24
    assert large / 2.0**exponent <= 2**45
    room = 2.0 ** (52 + exponent)
    assert room >= (radius + 16 * large if radius is not None else 2**17 * small)
    finer = 2.0 ** (exponent - 1)
    if radius is not None:
        assert large / finer > 2**45 or 2**52 * finer < radius + 16 * large


@pytest.mark.parametrize(
    ("radius", "small", "large"),
    [(1.0, 0.0, 1.0), (1.0, 1.0, 0.5), (0.0, 1.0, 1.0), (1.0, math.nan, 1.0), (math.inf, 1.0, 1.0), (1e9, 1.0, 1e9)],
)
def test_no_grid_for_senseless_noise(radius: float, small: float, large: float) -> None:
    with pytest.raises(BadValue, match=r"noise|radius"):
        choose_grid(radius, small, large)


@pytest.mark.parametrize(
    "wrong", [{"dimension": 0}, {"rounds": 0}, {"distance": math.nan}, {"total_variation": 2.0}, {"law": "cauchy"}]
)
def test_senseless_grids_are_refused_at_birth(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"exponent": -40, "dimension": 1, "rounds": 1, "distance": 0.0, "total_variation": 0.0}
    with pytest.raises(BadValue, match=rf"Grid\.{next(iter(wrong))}"):
        Grid(**(right | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["noise", "lipschitz", "errors"])
@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_senseless_rounds_are_refused(field: str, bad: float) -> None:
    rounds = {name: np.ones(3) for name in ("noise", "lipschitz", "errors")}
    rounds[field][1] = bad
    with pytest.raises(BadValue, match=f"Grid {field} must be"):
        Grid.of(exponent=-40, dimension=2, **rounds)
