"""How small a fault the distinguishing game sees: noise a little too small, in 100 repeats of 100,000 real runs."""

import sys
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks import Row
from fedveil.accounting.calibrate import calibrate
from fedveil.accounting.grid import choose_grid
from fedveil.audit.claim import claim_of_plan
from fedveil.data.records import DataShape
from fedveil.jobs.attack.batched_runs import Parts
from fedveil.jobs.attack.game import game
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.target import Target
from fedveil.stages.train.hidden.method import Hidden
from fedveil.stages.train.hidden.steps import Rule, draw

RUNS, REPEATS, ALARM = 100_000, 100, 1e-6
FAULTS = {1.0: 0.085, 2.0: 0.05, 4.0: 0.03}


def one_round(epsilon: float, delta: float) -> Plan:
    """One record, one round, its noise calibrated: the claim is as tight as a claim can be."""
    model = ModelPlan(kind="logistic", classes=2, radius=5.0, clip=0.05)
    constants = model.constants(1.0)
    run = LastIterate(
        rounds=1,
        batch=1,
        records=1,
        step_size=1.0,
        lipschitz=constants.lipschitz,
        smoothness=constants.smoothness,
        diameter=10.0,
        noise_std=0.1,
    )
    _, run = calibrate(run, epsilon=epsilon, delta=delta)  # type: ignore[assignment]
    shape = DataShape(records=1, features=1, classes=2, clients=1, largest_client=1, smallest_client=1, bound=1.0)
    target = Target(epsilon=epsilon * 1.001, delta=delta)
    plan = Plan(name="power", data=shape, model=model, target=target, method=Hidden(run=run), grid=0)
    noise = float(plan.hidden.noise()[0])
    return replace(plan, grid=choose_grid(plan.radius, noise, noise))


def caught(epsilon: float, delta: float, less: float, alarm: float = ALARM, repeats: int = REPEATS) -> int:
    """In how many repeats a game calls noise too small by ``less`` broken."""

    def quieter(rule: Rule, turn: int, size: int, entropy: Entropy) -> NDArray[np.float64]:
        return np.rint((1 - less) * draw(rule, turn, size, entropy))

    plan, parts = one_round(epsilon, delta), Parts(draw=quieter)
    claim = claim_of_plan(plan, "every-model")
    found = [
        game(
            plan,
            RUNS,
            Entropy.from_seed(seed),
            adversaries=["every-model"],
            claims=lambda _: claim,
            alarm=alarm,
            parts=parts,
        )[0].verdict
        for seed in range(repeats)
    ]
    return found.count("broken")


def run() -> list[Row]:
    """Misses in 100 repeats, at most 5; and how often correct code is accused, at most never."""
    rows = []
    for epsilon, less in FAULTS.items():
        missed, wrong = REPEATS - caught(epsilon, 1e-2, less), caught(epsilon, 1e-2, 0.0)
        what = f"noise {less:.1%} too small, epsilon {epsilon:g}, delta .01"
        rows.append(Row(name=f"audit: missed of 100, {what}", bar=5, measured=missed, detail=f"false alarm {ALARM:g}"))
        rows.append(
            Row(name=f"audit: accused of 100, right noise, epsilon {epsilon:g}", bar=0, measured=wrong, detail="")
        )
    return rows


if __name__ == "__main__":  # the table of docs/audit.md: python -m benchmarks.audit
    for delta in (1e-2, 1e-3, 1e-5):
        for alarm in (1e-6, 1e-2):
            shown = [f"{caught(e, delta, less, alarm)}" for e, less in FAULTS.items()]
            sys.stdout.write(f"delta {delta:g}, false alarm {alarm:g}: caught of {REPEATS}: {', '.join(shown)}\n")
            sys.stdout.flush()
