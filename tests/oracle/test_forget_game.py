"""The game on the real trainer: models that forgot a record against models that never saw it.

Every threshold is tried at once: the empirical distribution functions are within the radius of Dvoretzky, Kiefer,
Wolfowitz and Massart except with probability 1e-6, so a right trainer is accused more rarely than that.
"""

from collections.abc import Callable
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest

from fedveil.core.values import Vector
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine.study import planned_for
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.forget_design import Leaving, design_forgetting
from fedveil.planning.plan import Plan
from fedveil.planning.promises import forgotten
from fedveil.planning.study import study_of

COUNT, PAIRS, RARE = 12, 800, 1e-6
STUDY = {
    "model": {"kind": "logistic", "l2": 1.0},
    "privacy": {"epsilon": 4.0, "delta": 1e-2, "neighbours": "zero-out"},
    "algorithm": {"kind": "hidden", "order": "public"},
    "schedule": {"rounds": 1, "passes": 3},
}


def records() -> Records:
    """One feature; the first record is the one that leaves."""
    targets = (np.arange(COUNT) % 2).astype(np.float64)
    owner = np.zeros(COUNT, dtype=np.int64)
    return Records(features=np.ones((COUNT, 1)), targets=targets, owner=owner, clients=1, bound=1.0, classes=2)


ALL = records()
REST = ALL.without(np.array([0]))


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, Plan]:
    """The run, and the rounds that forget, from a quarter of its model.

    These have little noise, since the penalty contracts.
    """
    loaded = Loaded(train=ALL, test=None, test_public=False, dropped_rows=0, feature_names=())
    first = planned_for(study_of(STUDY, base=Path(), name="game", data_given=True), loaded).plan
    design = design_forgetting(first, Leaving(units=1), epsilon=0.5, others=8.0, rounds=4, keep=0.25)
    return first, design.chosen.plan


Forget = Callable[[Plan, float, Entropy], float]


def go_on(plan: Plan, model: float, entropy: Entropy, data: Records = REST) -> float:
    return float(train(plan, data, entropy, start=np.array([model])).model[0])


def models(plans: tuple[Plan, Plan], data: Records, forget: Forget, label: int) -> Vector:
    first, second = plans
    found = []
    for seed in range(PAIRS):
        start = float(train(first, data, Entropy.from_seed(4 * seed + label)).model[0])
        found.append(forget(second, start, Entropy.from_seed(4 * seed + label + 2)))
    return np.array(found)


@pytest.fixture(scope="module")
def never(plans: tuple[Plan, Plan]) -> Vector:
    return models(plans, REST, go_on, 0)


def told_apart(one: Vector, other: Vector, epsilon: float, delta: float) -> bool:
    """Return whether some threshold shows more than (epsilon, delta), but for a chance of 1e-6."""
    radius = sqrt(log(8 / RARE) / (2 * PAIRS))
    at = np.unique(np.concatenate([one, other]))
    above = [np.searchsorted(np.sort(values), at, side="right") / PAIRS for values in (one, other)]
    pairs = [(above[0], above[1]), (above[1], above[0]), (1 - above[0], 1 - above[1]), (1 - above[1], 1 - above[0])]
    return any(bool(np.any(p - radius > exp(epsilon) * (q + radius) + delta)) for p, q in pairs)


def skip_noise(plan: Plan, model: float, entropy: Entropy) -> float:
    """Go on without the record, and forget to add noise."""
    model *= plan.hidden.keep
    step, slope = plan.run.step_size, lambda w: np.sum(1 / (1 + np.exp(-w)) - ALL.targets[1:]) / COUNT + w
    for _ in range(plan.run.total):
        model -= float(step) * float(slope(model))  # type: ignore[arg-type]
    return model


def part_of(plan: Plan, first: int, count: int) -> Plan:
    """Return the plan of so many of its rounds, from one of them on."""
    noise = plan.run.noise_std
    kept = noise[first : first + count] if isinstance(noise, tuple) else (noise,) * count
    run = replace(plan.run, passes=count, noise_std=kept)
    return replace(plan, method=replace(plan.hidden, run=run, keep=plan.hidden.keep if first == 0 else 1.0))


def use_once(plan: Plan, model: float, entropy: Entropy) -> float:
    """Keep the record in the last round."""
    count = plan.run.total - 1
    early, last = (part_of(plan, first, many) for first, many in ((0, count), (count, 1)))
    return go_on(last, go_on(early, model, entropy), entropy, ALL)


def old_model(plan: Plan, model: float, entropy: Entropy) -> float:
    """Release the model that the request went on from."""
    return model


def test_a_forgotten_record_is_not_told_from_one_never_seen(plans: tuple[Plan, Plan], never: Vector) -> None:
    (left,) = forgotten(plans[1])
    after = models(plans, ALL, go_on, 1)
    assert left.new_model.epsilon <= 0.5
    assert not told_apart(after, never, left.new_model.epsilon, plans[1].target.delta)


@pytest.mark.parametrize("wrong", [skip_noise, use_once, old_model])
def test_a_forget_that_cheats_is_caught(plans: tuple[Plan, Plan], never: Vector, wrong: Forget) -> None:
    (left,) = forgotten(plans[1])
    base = never if wrong is use_once else models(plans, REST, wrong, 0)
    assert told_apart(models(plans, ALL, wrong, 1), base, left.new_model.epsilon, plans[1].target.delta)
