"""Federated averaging is charged what its final model tells: an instance in which nothing less would be true."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.target import Target
from fedveil.stages.train.fedavg.method import FedAvg, LocalSteps
from fedveil.stages.train.fedavg.steps import noise_of
from fedveil.theory.divergence import gaussian_delta

KEY = Entropy.from_seed(8)
CLIENTS, ROUNDS, NOISE, NORM = 10, 16, 3.0, 1e-3


def instance(victim: bool) -> Records:
    """One feature. All rows are zero, so that losses are constant, but the victim's, whose loss is linear so far."""
    rows = np.zeros((CLIENTS, 1))
    rows[0, 0] = 1.0 if victim else 0.0
    owner = np.arange(CLIENTS, dtype=np.int64)
    return Records(features=rows, targets=np.ones(CLIENTS), owner=owner, clients=CLIENTS, bound=1.0, classes=0)


def plan_of(proximal: float | None, noiseless: bool = False) -> Plan:
    method = FedAvg(
        rounds=ROUNDS,
        cohort=CLIENTS,
        local=LocalSteps(epochs=3, step=0.1, proximal=proximal or 0.0),
        update_norm=NORM,
        noise_multiplier=0.0 if noiseless else NOISE,
        noise="none" if noiseless else "central",
    )
    target = Target(epsilon=5.0, delta=1e-5, unit="client", neighbours="zero-out")
    model = ModelPlan(kind="huber", threshold=0.5, radius=10.0)
    return Plan(
        name="exact", data=instance(True).shape, model=model, target=target, method=method, grid=-44, seeded=True
    )


def final(plan: Plan, victim: bool) -> float:
    return float(train(plan, instance(victim), KEY).model[0])


@pytest.mark.parametrize("proximal", [None, 0.5, 5.0])
def test_the_final_model_moves_as_far_as_composition_charges(proximal: float | None) -> None:
    """Without noise it moves by T S / m; the noise of the final model has deviation sqrt(T) z S / m."""
    quiet = plan_of(proximal, noiseless=True)
    moved = final(quiet, True) - final(quiet, False)
    assert moved == pytest.approx(ROUNDS * NORM / CLIENTS, rel=1e-6)
    noisy = plan_of(proximal)
    unit = 2.0**noisy.grid
    drawn = math.fsum(float(noise_of(noisy.method, 1, unit, KEY, turn)[0]) * unit for turn in range(ROUNDS))
    assert final(noisy, False) == pytest.approx(drawn / CLIENTS, rel=1e-9)
    assert final(noisy, True) - final(noisy, False) == pytest.approx(moved, rel=1e-6)
    mu = moved / (math.sqrt(ROUNDS) * NOISE * NORM / CLIENTS)
    charged = noisy.method.answer("final-model", noisy.setup, 1e-5).epsilon
    # At the charged epsilon the exact Gaussian of this instance has the whole delta: less would be false.
    assert gaussian_delta(charged * (1 - 2e-3), mu) > 1e-5
    assert gaussian_delta(charged, mu * (1 - 1e-6)) <= 1e-5


def test_the_charge_of_this_instance_grows_with_the_rounds() -> None:
    plan = plan_of(None)
    costs = [
        replace(plan.method, rounds=rounds).answer("final-model", plan.setup, 1e-5).epsilon for rounds in (1, 4, 16, 64)
    ]
    assert all(later > 1.8 * earlier for earlier, later in pairwise(costs))
