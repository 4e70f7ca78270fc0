"""Laws of the design: no dealing beats full batches, more privacy is more noise, units of measurement do not matter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.accounting.hidden import shift_mus
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.train.hidden.schedule import Problem, design
from fedveil.stages.train.hidden.schedule.families import Frame, law_risk, shaped, target_mu
from fedveil.stages.train.hidden.schedule.problem import energies, spread_noise, yardstick
from fedveil.stages.train.request import ScheduleRequest

counts = st.integers(1, 6)


@settings(max_examples=40, deadline=None)
@given(
    rounds=counts,
    passes=counts,
    ridge=st.sampled_from([0.0, 0.01, 0.1]),
    order=st.sampled_from(["secret", "public"]),
    seed=st.integers(0, 10**6),
)
def test_no_noise_and_no_dealing_beats_the_law(rounds: int, passes: int, ridge: float, order: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    steps = tuple(random.uniform(0.1, 4.0, rounds * passes).tolist())
    problem = Problem(
        units=60 * rounds,
        dimension=5,
        lipschitz=1.0,
        smoothness=0.25 + ridge,
        strong_convexity=ridge,
        epsilon=1.0,
        delta=1e-4,
        order=order,  # type: ignore[arg-type]
    )
    steps = tuple(min(step, 2 / problem.smoothness) for step in steps)
    frame = Frame("decaying", passes, rounds, 60, steps)
    law = law_risk(problem, steps, rounds, rounds * passes)
    assert shaped(problem, frame).risk >= law * (1 - 1e-9)
    noise = random.uniform(0.5, 2.0, rounds * passes)
    run = LastIterate(
        rounds=rounds,
        passes=passes,
        batch=60,
        step_size=steps,
        lipschitz=1.0,
        smoothness=problem.smoothness,
        strong_convexity=ridge,
        noise_std=tuple(noise.tolist()),
    )
    mean = float(np.mean(shift_mus(run) ** 2))
    scaled = shaped(problem, frame, tuple((noise * np.sqrt(mean) / target_mu(problem)).tolist()))
    assert scaled.injected + scaled.bias >= law * (1 - 1e-9)


@settings(max_examples=25, deadline=None)
@given(rounds=st.integers(2, 8), passes=counts, seed=st.integers(0, 10**6), secret=st.booleans())
def test_the_energies_are_those_of_the_accountant(rounds: int, passes: int, seed: int, secret: bool) -> None:
    random = np.random.default_rng(seed)
    total = rounds * passes
    steps = random.uniform(0.5, 4.0, total)
    gaps, weights = 2 * steps / 10, np.sort(random.uniform(0.1, 1.0, total))
    variance, risk = spread_noise(gaps, weights, np.ones(total), rounds, secret=secret)
    run = LastIterate(
        rounds=rounds,
        passes=passes,
        batch=10,
        step_size=tuple(steps.tolist()),
        lipschitz=1.0,
        smoothness=0.25,
        noise_std=tuple((np.sqrt(10 * variance) / steps).tolist()),
    )
    squares = shift_mus(run) ** 2
    assert (squares.mean() if secret else squares.max()) == pytest.approx(1.0, rel=1e-6)
    assert energies(gaps, np.ones(total), variance, rounds)[0] == pytest.approx(squares, rel=1e-6)
    assert risk == pytest.approx(float(weights @ variance))


@settings(max_examples=5, deadline=None)
@given(unit=st.floats(0.1, 10.0), clip=st.floats(0.1, 10.0))
def test_units_of_measurement_do_not_matter(unit: float, clip: float) -> None:
    plain = Problem(units=500, dimension=6, lipschitz=1.0, smoothness=0.25, epsilon=1.0, delta=1e-4, order="public")
    other = Problem(
        units=500,
        dimension=6,
        lipschitz=clip,
        smoothness=0.25 * unit,
        epsilon=1.0,
        delta=1e-4,
        order="public",
    )
    first, second = (design(p, ScheduleRequest(passes=4)) for p in (plain, other))
    assert (first.kind, first.mechanism.rounds) == (second.kind, second.mechanism.rounds)
    assert second.chosen.risk == pytest.approx(first.chosen.risk * clip**2 / unit, rel=1e-3)


@given(dimension=st.integers(1, 100_000), ridge=st.floats(0, 0.1))
def test_the_model_problem_keeps_its_promises(dimension: int, ridge: float) -> None:
    problem = Problem(
        units=10,
        dimension=dimension,
        lipschitz=2.0,
        smoothness=1.0 + ridge,
        strong_convexity=ridge,
        epsilon=1.0,
        delta=1e-4,
    )
    model = yardstick(problem)
    assert model.count.sum() == dimension
    assert float(model.count @ model.curvature) == pytest.approx(1.0)
    assert 0.5 * model.start * float(model.count @ model.curvature) == pytest.approx(2.0**2 / 8)


@pytest.mark.parametrize("kind", ["constant", "decaying"])
def test_more_privacy_is_more_noise_and_more_units_are_less(kind: str) -> None:
    def arriving(units: int, epsilon: float) -> float:
        problem = Problem(
            units=units,
            dimension=6,
            lipschitz=1.0,
            smoothness=0.25,
            epsilon=epsilon,
            delta=1e-4,
            order="public",
        )
        schedule = ScheduleRequest(kind=kind, rounds=4, passes=3, step_size=2.0)  # type: ignore[arg-type]
        return design(problem, schedule).chosen.arriving

    assert arriving(400, 0.5) > arriving(400, 1.0) > arriving(800, 1.0)
