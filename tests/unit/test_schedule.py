"""A design by example: what it promises, what wishes do to it, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedveil.accounting.compare import account_for
from fedveil.accounting.hidden import unhidden_mus
from fedveil.core.errors import BadValue, CannotCertify
from fedveil.privacy.mechanism import Gaussian, LastIterate, Mechanism
from fedveil.stages.train.hidden.schedule import Problem, design
from fedveil.stages.train.hidden.schedule.families import Frame, growing, injected, law_risk, shaped, target_mu
from fedveil.stages.train.hidden.schedule.problem import energies, spread_noise, yardstick
from fedveil.stages.train.request import ScheduleRequest

SMALL = Problem(units=600, dimension=8, lipschitz=1.0, smoothness=0.25, epsilon=1.0, delta=1e-4)
PUBLIC = replace(SMALL, order="public")


def epsilon_of(run: LastIterate, delta: float) -> float:
    return account_for(run, delta=delta).epsilon


@pytest.mark.parametrize("order", ["secret", "public"])
@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_what_is_designed_meets_the_target_and_hardly_more(order: str, neighbours: str) -> None:
    problem = replace(SMALL, order=order, neighbours=neighbours)  # type: ignore[arg-type]
    designed = design(problem, ScheduleRequest(passes=3, rounds=8))
    assert 0.99 < epsilon_of(designed.mechanism, problem.delta) <= problem.epsilon
    assert designed.mechanism.records == 600
    assert designed.mechanism.order == order
    assert designed.chosen.certified
    assert designed.chosen.kind == designed.kind
    assert designed.chosen.risk == min(row.risk for row in designed.considered if row.certified)
    assert designed.kind in designed.reason


def test_every_number_may_be_wished() -> None:
    schedule = ScheduleRequest(rounds=4, passes=2, batch=100, step_size=(1.0, 0.5, 0.5, 0.25), noise_std=40.0)
    run = design(PUBLIC, schedule).mechanism
    assert (run.rounds, run.passes, run.batch) == (4, 2, 100)
    assert run.step_size == (1.0, 0.5, 0.5, 0.25)
    assert run.noise_std == 40.0


@pytest.mark.parametrize("kind", ["constant", "decaying", "growing-batches"])
def test_a_wished_kind_is_kept(kind: str) -> None:
    designed = design(PUBLIC, ScheduleRequest(kind=kind, rounds=5, passes=2))  # type: ignore[arg-type]
    run = designed.mechanism
    assert designed.kind == kind
    assert run.rounds == 5
    assert run.passes == 2
    assert isinstance(run.batch, tuple) == (kind == "growing-batches")
    if kind == "constant":
        assert isinstance(run.noise_std, float)
        assert isinstance(run.step_size, float)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"batch": 601}, r"schedule\.batch must be at most the number of units, 600"),
        ({"rounds": 10, "batch": 61}, r"schedule\.batch must leave every unit in one batch of a pass"),
        ({"rounds": 601}, r"schedule\.rounds must be at most the number of units"),
        ({"rounds": 3, "batch": (10, 20)}, r"schedule\.batch must have one entry per round, 3"),
        (
            {"rounds": 3, "passes": 2, "step_size": (1.0, 1.0)},
            r"schedule\.step_size must have one entry per round: 3, or 6",
        ),
        ({"rounds": 2, "passes": 1, "noise_std": (1.0,) * 3}, r"schedule\.noise_std must have one entry per round"),
        ({"step_size": (1.0, 0.5)}, r"schedule\.rounds must be given with a list"),
        (
            {"kind": "constant", "step_size": (1.0, 0.5)},
            r"schedule\.step_size must be one number for the kind constant",
        ),
        ({"kind": "growing-batches", "batch": 10}, r"schedule\.batch must be left out with kind = .growing-batches."),
        ({"kind": "growing-batches", "rounds": 1}, r"must leave a schedule"),
        ({"rounds": "converged", "passes": 3}, r"schedule\.passes must be left out"),
        ({"rounds": "converged", "kind": "decaying"}, r"schedule\.kind must be auto or constant"),
        ({"rounds": "converged"}, r"schedule\.rounds must be a number here.*l2 term"),
        ({"rounds": 1, "passes": 5, "step_size": 1.0, "noise_std": 0.1}, r"schedule\.noise_std must meet epsilon 1"),
        ({"rounds": "soon"}, r"schedule\.rounds must be a whole number"),
        ({"passes": 0}, r"schedule\.passes must be at least 1"),
        ({"step_size": math.nan}, r"schedule\.step_size must be positive"),
        ({"kind": "clever"}, r"schedule\.kind must be one of"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(schedule: dict[str, object], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        design(PUBLIC, ScheduleRequest(**schedule))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": 0}, r"units must lie in"),
        ({"lipschitz": math.nan}, r"lipschitz must lie in"),
        ({"smoothness": 0.0}, r"smoothness must lie in"),
        ({"strong_convexity": 0.25}, r"l2 must be non-negative and below smoothness"),
        ({"diameter": 0.0}, r"diameter must lie in"),
        ({"order": "random"}, r"order must be one of"),
        ({"noise": "laplace"}, r"Problem\.dimension must be 1 with Laplace noise"),
        ({"epsilon": 0.0}, r"epsilon must lie in"),
        ({"delta": 1.0}, r"delta"),
    ],
)
def test_senseless_problems_are_refused_at_birth(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        replace(SMALL, **change)  # type: ignore[arg-type]


def test_a_converged_run_stands_still() -> None:
    problem = replace(SMALL, smoothness=0.27, strong_convexity=0.02)
    designed = design(problem, ScheduleRequest(rounds="converged"))
    run = designed.mechanism
    assert run.rounds == 1
    assert run.batch == 600
    longer = replace(run, passes=2 * run.passes)
    assert epsilon_of(longer, problem.delta) <= epsilon_of(run, problem.delta) * 1.002
    with pytest.raises(BadValue, match="take at most 10000 passes"):
        design(replace(SMALL, strong_convexity=1e-6), ScheduleRequest(rounds="converged"))


def test_a_bounded_domain_converges_too() -> None:
    problem = replace(SMALL, diameter=2.0, units=60)
    designed = design(problem, ScheduleRequest(rounds="converged"))
    longer = replace(designed.mechanism, passes=3 * designed.mechanism.passes)
    assert epsilon_of(longer, problem.delta) <= problem.epsilon * 1.02


def test_laplace_and_random_stopping_get_constant_rounds() -> None:
    laplace = Problem(
        units=40, dimension=1, lipschitz=1.0, smoothness=0.25, diameter=1.0, noise="laplace", epsilon=1.0, delta=1e-3
    )
    run = design(laplace).mechanism
    assert run.batch == 1
    assert epsilon_of(run, 1e-3) <= 1.0
    stopped = replace(SMALL, stopping="random")
    run = design(stopped, ScheduleRequest(passes=1, rounds=6)).mechanism
    assert run.stopping == "random"
    assert epsilon_of(run, SMALL.delta) <= 1.0
    with pytest.raises(BadValue, match="with random stopping"):
        design(stopped, ScheduleRequest(kind="decaying"))


def test_another_calibrator_decides_the_noise() -> None:
    def timid(mechanism: Mechanism, /, *, epsilon: float, delta: float) -> tuple[float, Mechanism]:
        assert isinstance(mechanism, LastIterate)
        assert (epsilon, delta) == (1.0, 1e-4)
        return 7.0, replace(mechanism, noise_std=123.0)

    schedule = ScheduleRequest(kind="constant", rounds=2, passes=2)
    assert design(SMALL, schedule, calibrate=timid).mechanism.noise_std == 123.0

    def confused(mechanism: Mechanism, /, *, epsilon: float, delta: float) -> tuple[float, Mechanism]:
        return 1.0, Gaussian(noise_multiplier=1.0)

    with pytest.raises(CannotCertify):
        design(SMALL, schedule, calibrate=confused)


def test_poisson_at_full_batches_is_the_same_mechanism() -> None:
    problem = replace(SMALL, neighbours="zero-out")
    designed = design(problem, ScheduleRequest(kind="constant", rounds=1, passes=10, step_size=2.0))
    assert designed.poisson is not None
    assert designed.poisson.noise_on_average == pytest.approx(designed.chosen.noise_on_average, rel=5e-3)


def test_the_law_of_least_noise_is_reached_by_full_batches() -> None:
    frame = Frame("decaying", 30, 1, 600, 4.0)
    shape = shaped(PUBLIC, frame)
    assert shape.risk == pytest.approx(law_risk(PUBLIC, 4.0, 1, 30), rel=1e-9)
    designed = design(PUBLIC, ScheduleRequest(kind="decaying", rounds=1, passes=30, step_size=4.0))
    assert designed.chosen.arriving == pytest.approx(shape.injected, rel=1e-3)  # certified


def test_risk_is_what_a_simulation_of_the_model_problem_finds() -> None:
    # 4000 runs: the mean risk of each part has a relative error near 1%; 8% is more than 6 of them (chance < 1e-8).
    model = yardstick(SMALL)
    curvature = np.repeat(model.curvature, model.count.astype(int))
    assert curvature.size == 8
    assert curvature.sum() == pytest.approx(0.25)
    frame = Frame("constant", 3, 4, 150, (4.0, 3.0, 2.0, 1.0))
    shape = shaped(SMALL, frame, 2.0)
    random = np.random.default_rng(5)
    gradients = random.normal(size=(600, 8)) * np.sqrt(model.spread * curvature)
    gradients -= gradients.mean(axis=0)
    target = np.sqrt(model.start)
    state = np.zeros((4000, 8))
    order = np.argsort(random.random((4000, 600)), axis=1).reshape(4000, 4, 150)
    sums = np.stack([gradients[order[:, t]].mean(axis=1) for t in range(4)])
    for k in range(12):
        step = frame.step_sizes[k]
        state -= step * (curvature * (state - target) + sums[k % 4])
        state += random.normal(size=state.shape) * step * 2.0 / math.sqrt(150)
    found = float(np.mean(0.5 * (state - target) ** 2 @ curvature))
    assert found == pytest.approx(shape.risk, rel=0.08)


def test_growing_batches_hide_every_place_alike_under_even_noise() -> None:
    batch = growing(10**7, 12)
    assert batch is not None
    gaps = 1 / np.array(batch)
    energy, _, _ = energies(gaps, np.ones(12), np.ones(12), 12)
    assert float(energy.max() / energy.min()) < 1.001
    assert growing(10, 12) is None


def test_spread_noise_protects_the_last_place_as_well_as_the_first() -> None:
    gaps, weights = np.full(40, 1.0), np.linspace(0.2, 1.0, 40) ** 2
    variance, risk = spread_noise(gaps, weights, np.ones(40), 10, secret=False)
    energy, _, _ = energies(gaps, np.ones(40), variance, 10)
    assert float(energy.max()) <= 1 + 1e-9
    assert float(energy.min()) > 0.8
    even = np.full(40, float(energies(gaps, np.ones(40), np.ones(40), 10)[0].max()))
    assert risk == pytest.approx(float(weights @ variance))
    assert risk < 0.75 * float(weights @ even)


def test_noise_brings_risk_in_proportion_to_its_variance() -> None:
    frame = Frame("constant", 2, 3, 200, 1.0)
    assert injected(SMALL, frame, 4.0) == pytest.approx(4 * injected(SMALL, frame, 2.0))


def test_noise_for_a_reader_of_every_model_is_even_within_a_pass() -> None:
    frame = Frame("decaying", 2, 5, 120, 2.0)
    hidden, seen = (shaped(replace(PUBLIC, hidden=h), frame) for h in (True, False))
    assert seen.injected > 3 * hidden.injected  # about the number of batches
    assert isinstance(seen.noise_std, tuple)
    assert max(seen.noise_std) < 2 * min(seen.noise_std)
    run = LastIterate(
        rounds=5, passes=2, batch=120, step_size=2.0, lipschitz=1.0, smoothness=0.25, noise_std=seen.noise_std
    )
    assert float(unhidden_mus(run).max()) == pytest.approx(target_mu(PUBLIC), rel=1e-6)
