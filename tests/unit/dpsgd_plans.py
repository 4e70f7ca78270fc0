"""Small plans of DP-SGD that its tests share."""

from typing import Any

from fedveil.data.records import Records
from fedveil.models.spec import ModelPlan
from fedveil.planning.plan import Plan
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import ClientSettings

LOCAL = Trust(noise="local")


def settings(**changes: Any) -> ClientSettings:
    """Ten rounds of a tenth of the records."""
    values: dict[str, Any] = {"rate": 0.1, "rounds": 10, "clip": 0.5, "noise": 2.0, "step_size": 0.5}
    return ClientSettings(**(values | changes))


def dpsgd_plan(
    records: Records,
    *client_settings: ClientSettings,
    neighbours: Any = "zero-out",
    trust: Trust = LOCAL,
    **changes: Any,
) -> Plan:
    """A plan for these records; logistic. Every client adds all of its noise, unless told otherwise."""
    method = DpSgd(client_settings=client_settings or (settings(),), **changes)
    return Plan(
        name="trial",
        method=method,
        data=records.shape,
        model=ModelPlan(kind="logistic", classes=2, clip=0.5),
        target=Target(epsilon=5.0, delta=1e-5, neighbours=neighbours),
        grid=-40,
        seeded=True,
        trust=trust,
    )
