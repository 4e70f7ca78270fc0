"""Several passes that stop at a uniformly random round: the bound against brute force, exact runs, and the design."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedveil import account_for
from fedveil.accounting.hidden import hidden_run
from fedveil.accounting.last_iterate import stopped_log_delta
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.train.hidden.schedule import Problem, design
from fedveil.stages.train.hidden.schedule.families import bias_and_weights
from fedveil.stages.train.hidden.schedule.problem import yardstick
from fedveil.stages.train.request import ScheduleRequest
from fedveil.theory.divergence import log_theta
from fedveil.theory.shift import shift_mu

PROBLEM = Problem(
    units=400, dimension=8, lipschitz=1.0, smoothness=0.25, stopping="random", epsilon=2.0, delta=1e-4, diameter=10.0
)


def run(**changes: Any) -> LastIterate:
    values = {
        "rounds": 3,
        "passes": 4,
        "step_size": 0.5,
        "lipschitz": 1.0,
        "smoothness": 1.0,
        "noise_std": 1.5,
        "stopping": "random",
    }
    return LastIterate(**{**values, **changes})


def theta(epsilon: float, mu: float) -> float:
    return math.exp(float(log_theta(epsilon, mu))) if mu > 0 else 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"diameter": 0.5},
        {"strong_convexity": 0.3},
        {"step_size": (1.0, 0.5, 0.7)},
        {"place": 2},
        {"order": "secret"},
        {"order": "secret", "step_size": (1.0, 0.5, 0.7), "batch": 2, "records": 7},
    ],
)
def test_it_is_the_mean_over_stops_of_every_optimal_shift(changes: dict[str, Any]) -> None:
    one = run(**changes)
    state = hidden_run(one)
    rows = []
    for place in state.places[:, 0].tolist():
        total = 0.0
        for stop in range(1, one.total + 1):
            leaks = np.zeros(stop)
            leaks[place :: one.rounds] = state.rounds.gap[:stop][place :: one.rounds]
            total += theta(0.7, shift_mu(state.rounds.until(stop), leaks)) / one.total
        rows.append(total)
    mean = float(np.array(rows) @ state.weights) if state.weights is not None else max(rows)
    assert math.exp(stopped_log_delta(one, 0.7)) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
@pytest.mark.parametrize(("rounds", "passes"), [(1, 7), (3, 4), (5, 2)])
def test_never_below_linear_losses_with_a_known_stop(delta: float, rounds: int, passes: int) -> None:
    """Linear losses: the model after k rounds is a Gaussian walk, shifted once for each use; exact at each stop."""
    one = run(rounds=rounds, passes=passes)
    found = account_for(one, delta=delta)
    shift = 2 / 1.5  # an exchange over a round's noise
    exact = [theta(found.epsilon, -(-k // rounds) * shift / math.sqrt(k)) for k in range(1, one.total + 1)]
    assert float(np.mean(exact)) <= delta * (1 + 1e-6)
    assert found.epsilon <= found["unhidden"].epsilon
    assert found["shift"].status == "certified"


def test_several_passes_are_hidden_now() -> None:
    found = account_for(run(), delta=1e-4)
    assert found.certified_by == "shift"
    assert found.epsilon < 7.1 < 12.8 < found["unhidden"].epsilon
    rough = account_for(run(smoothness=None), delta=1e-4)  # nothing is hidden, but early stops have seen less
    assert found.epsilon < rough.epsilon < rough["unhidden"].epsilon
    long = account_for(run(rounds=300, passes=30, step_size=tuple(np.linspace(0.5, 1, 300))), delta=1e-4)
    assert long["shift"].status == "does-not-apply"
    laplace = account_for(run(noise="laplace", diameter=1.0), delta=1e-4)
    assert laplace["shift"].status == "does-not-apply"


def test_the_yardstick_is_the_mean_over_stops() -> None:
    model, step, total = yardstick(PROBLEM), 2.0, 9
    bias, weights = bias_and_weights(PROBLEM, model, np.full(total, step))
    biases, noises = [], []
    for stop in range(1, total + 1):
        steps = np.full(stop, step)
        kept = model.kept(steps)
        biases.append(model.bias(steps, kept))
        noises.append(float(model.weights(kept).sum()))
    assert bias == pytest.approx(float(np.mean(biases)))
    assert float(weights.sum()) == pytest.approx(float(np.mean(noises)))
    end = replace(PROBLEM, stopping="end")
    assert bias_and_weights(end, model, np.full(total, step))[0] == pytest.approx(biases[-1])


def test_a_randomly_stopped_design_is_hidden_and_says_what_it_is() -> None:
    designed = design(PROBLEM)
    found = account_for(designed.mechanism, delta=PROBLEM.delta)
    assert 0.99 * PROBLEM.epsilon < found.epsilon <= PROBLEM.epsilon
    assert found.certified_by != "unhidden"
    assert found["unhidden"].epsilon > 1.1 * found.epsilon
    assert 'stopping = "end" promises a better model' in designed.reason
    assert "Random stopping" not in design(replace(PROBLEM, stopping="end"), ScheduleRequest(passes=1, rounds=2)).reason
