"""Small plans and records that tests of training share."""

import numpy as np

from fedveil.data.records import Records
from fedveil.models.spec import ModelPlan
from fedveil.planning.plan import Plan
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.target import Target
from fedveil.stages.train.hidden.method import Deal, Hidden


def some_records(count: int = 60, features: int = 3, clients: int = 60, seed: int = 0, classes: int = 2) -> Records:
    """Rows in the unit ball with labels that depend on them; clients own equal runs of rows."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(count, features))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None] * (1 + 1e-12)
    scores = rows @ generator.normal(size=(features, max(classes, 1)))
    targets = scores.argmax(axis=1) if classes > 2 else scores[:, 0] > 0 if classes else np.tanh(scores[:, 0])
    owner = np.arange(count) * clients // count
    return Records(
        features=rows,
        targets=targets.astype(np.float64),
        owner=owner.astype(np.int64),
        clients=clients,
        bound=1.0,
        classes=classes,
        names=tuple(f"client {i}" for i in range(clients)),
    )


def some_plan(
    records: Records, *, deal: Deal = "records", unit: str = "record", seeded: bool = True, **changes: object
) -> Plan:
    """A plan for these records: logistic, one pass of rounds of ten, unless told otherwise."""
    model = changes.pop("model", None) or ModelPlan(kind="logistic", classes=2, radius=5.0)
    assert isinstance(model, ModelPlan)
    constants = model.constants(records.bound)
    units = records.clients if unit == "client" else records.targets.size
    settings: dict[str, object] = {
        "rounds": units // 10,
        "batch": 10,
        "records": units,
        "order": "secret",
        "step_size": 0.5,
        "lipschitz": constants.lipschitz,
        "smoothness": constants.smoothness,
        "strong_convexity": constants.strong_convexity,
        "diameter": None if model.radius is None else 2 * model.radius,
        "noise_std": 1.0,
    }
    run = LastIterate(**(settings | changes))  # type: ignore[arg-type]
    target = Target(epsilon=5.0, delta=1e-5, unit=unit, neighbours=run.neighbours)  # type: ignore[arg-type]
    return Plan(
        name="trial",
        data=records.shape,
        model=model,
        target=target,
        method=Hidden(run=run, deal=deal),
        grid=-40,
        seeded=seeded,
    )
