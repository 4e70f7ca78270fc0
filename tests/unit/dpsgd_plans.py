"""Small plans of DP-SGD that its tests share."""

from typing import Any

from fedveil.data.records import Records
from fedveil.method.dpsgd import DpSgd
from fedveil.method.posture import Posture
from fedveil.model.spec import ModelPlan
from fedveil.plan import Plan
from fedveil.target import Target


def posture(**changes: Any) -> Posture:
    """Ten rounds of a tenth of the records."""
    values: dict[str, Any] = {"rate": 0.1, "rounds": 10, "clip": 0.5, "noise": 2.0, "step_size": 0.5}
    return Posture(**(values | changes))


def dpsgd_plan(records: Records, *postures: Posture, neighbours: Any = "zero-out", **changes: Any) -> Plan:
    """A plan for these records; logistic."""
    method = DpSgd(postures=postures or (posture(),), **changes)
    return Plan(
        name="trial",
        method=method,
        data=records.shape,
        model=ModelPlan(kind="logistic", classes=2, clip=0.5),
        target=Target(epsilon=5.0, delta=1e-5, neighbours=neighbours),
        grid=-40,
        seeded=True,
    )
