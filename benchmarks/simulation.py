"""The hidden simulation against a bare numpy loop with the same arithmetic and the same noise, on one thread."""

import subprocess
import sys
import time

import numpy as np

from benchmarks import Row
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.target import Target
from fedveil.stages.train.hidden.deal import deal
from fedveil.stages.train.hidden.method import Hidden
from fedveil.stages.train.hidden.steps import Rule, draw

CLIENTS, EACH, FEATURES, COHORT, PASSES = 10_000, 10, 100, 1000, 5


def problem(clients: int, each: int, features: int, cohort: int, passes: int) -> tuple[Plan, Records]:
    generator = np.random.default_rng(0)
    count = clients * each
    rows = generator.standard_normal((count, features))
    rows /= np.linalg.norm(rows, axis=1)[:, None] * (1 + 1e-12)
    records = Records(
        features=rows,
        targets=(rows[:, 0] > 0).astype(np.float64),
        owner=np.repeat(np.arange(clients), each),
        clients=clients,
        bound=1.0,
        classes=2,
    )
    model = ModelPlan(kind="logistic", classes=2, radius=10.0)
    run = LastIterate(
        rounds=clients // cohort,
        passes=passes,
        batch=cohort,
        records=clients,
        order="secret",
        step_size=1.0,
        lipschitz=model.constants(1.0).lipschitz,
        smoothness=model.constants(1.0).smoothness,
        diameter=20.0,
        noise_std=1.0,
    )
    target = Target(epsilon=5.0, delta=1e-6, unit="client")
    plan = Plan(
        name="bench",
        data=records.shape,
        model=model,
        target=target,
        method=Hidden(run=run, deal="clients"),
        grid=-40,
        seeded=True,
    )
    return plan, records


def bare(plan: Plan, records: Records, key: Entropy) -> np.ndarray:
    """The same rounds with nothing around them: gather once, then two products, a sigmoid, noise, projection."""
    dealt, rule = deal(plan, records, key), Rule.of(plan)
    cohort, radius, unit = plan.run.batch, plan.radius, rule.unit
    model = np.zeros(plan.dimension)
    for turn in range(plan.run.total):
        batch = dealt.batch(turn)
        error = 1.0 / (1.0 + np.exp(-(batch.features @ model))) - batch.targets
        gradient = batch.features.T @ (error * batch.weights) / cohort
        noise = draw(rule, turn, model.size, key)
        model = (np.rint((model - gradient) / unit) + noise) * unit
        norm = np.sqrt(model @ model)
        model = model if norm <= radius else model * (radius / norm)
    return model


def paired(first, second, repeats: int = 5) -> tuple[float, float]:
    """The least CPU time of each, measured in turns so that a busy machine hurts both alike."""
    best = [np.inf, np.inf]
    for _ in range(repeats):
        for place, job in enumerate((first, second)):
            began = time.process_time()
            job()
            best[place] = min(best[place], time.process_time() - began)
    return best[0], best[1]


def million_clients() -> float:
    """Gigabytes at the peak, one pass over a million clients of one record, in a process of its own.

    The peak is that of the new program (VmHWM): ``ru_maxrss`` begins at what the process that started it had.
    """
    script = (
        "from pathlib import Path; from benchmarks.simulation import problem; from fedveil.engine.train import train; "
        "from fedveil.noise.entropy import Entropy; plan, records = problem(1_000_000, 1, 20, 1000, 1); "
        "train(plan, records, Entropy.from_seed(0)); "
        "status = Path('/proc/self/status').read_text().split(); print(int(status[status.index('VmHWM:') + 1]) / 2**20)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


def run() -> list[Row]:
    plan, records = problem(CLIENTS, EACH, FEATURES, COHORT, PASSES)
    key = Entropy.from_seed(0)
    assert np.allclose(train(plan, records, key).model, bare(plan, records, key))
    ours, theirs = paired(lambda: train(plan, records, key), lambda: bare(plan, records, key))
    each = 1000 * ours / plan.run.total
    return [
        Row(
            "hidden simulation, CPU over a bare numpy loop's", 1.5, ours / theirs, f"{each:.2f} ms a round of {COHORT}"
        ),
        Row("a million clients, one pass, gigabytes", 2.0, million_clients()),
    ]
