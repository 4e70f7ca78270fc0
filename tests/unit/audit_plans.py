"""Small plans that a distinguishing game can play many times; each record pushes at its clip whatever the model."""

from dataclasses import replace
from typing import Any

from fedveil.accounting.grid import choose_grid
from fedveil.data.records import DataShape
from fedveil.models.spec import ModelPlan
from fedveil.planning.plan import Plan, write_plan
from fedveil.planning.selection import Selection
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.target import Target
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import ClientSettings
from fedveil.stages.train.fedavg.method import FedAvg, LocalSteps
from fedveil.stages.train.hidden.method import Hidden
from fedveil.theory.selection import TruncatedNegativeBinomial


def shape(records: int, clients: int, features: int = 1) -> DataShape:
    each = records // clients
    return DataShape(
        records=records,
        features=features,
        classes=2,
        clients=clients,
        largest_client=each,
        smallest_client=each,
        bound=1.0,
    )


def game_plan(
    records: int = 4, *, radius: float = 5.0, clip: float = 0.05, delta: float = 1e-2, features: int = 1, **run: Any
) -> Plan:
    """Hidden training of one record a client, on its finest grid."""
    model = ModelPlan(kind="logistic", classes=2, radius=radius, clip=clip)
    constants = model.constants(1.0)
    settings: dict[str, Any] = {
        "records": records,
        "rounds": 4,
        "batch": 1,
        "order": "public",
        "lipschitz": constants.lipschitz,
        "smoothness": constants.smoothness,
        "diameter": 2 * radius,
        "step_size": 1.0,
        "noise_std": 0.1,
    }
    mechanism = LastIterate(**(settings | run))
    target = Target(epsilon=1.0, delta=delta, neighbours=mechanism.neighbours)
    data = shape(records, records, features)
    plan = Plan(name="game", data=data, model=model, target=target, method=Hidden(run=mechanism), grid=0)
    noise = plan.hidden.noise()
    return replace(plan, grid=choose_grid(plan.radius, float(noise.min()), float(noise.max())))


def dpsgd_game_plan(sampling: Any = "poisson", *, noise: float = 1.0, rounds: int = 5, records: int = 5) -> Plan:
    """One client, one record in five a round."""
    one = ClientSettings(rate=0.2, rounds=rounds, clip=0.25, noise=noise, step_size=0.5)
    return Plan(
        name="game",
        method=DpSgd(client_settings=(one,), sampling=sampling),
        data=shape(records, 1),
        model=ModelPlan(kind="logistic", classes=2, clip=0.25),
        target=Target(epsilon=1.0, delta=1e-2, neighbours="zero-out"),
        grid=-40,
    )


def fedavg_game_plan(*, noise: float = 1.0, rounds: int = 3, clients: int = 4) -> Plan:
    """Clients with two records each; all take part."""
    method = FedAvg(
        rounds=rounds,
        cohort=clients,
        local=LocalSteps(epochs=2),
        update_norm=0.1,
        noise="shared",
        noise_multiplier=noise,
    )
    return Plan(
        name="game",
        method=method,
        data=shape(2 * clients, clients),
        model=ModelPlan(kind="logistic", classes=2, clip=0.5),
        target=Target(epsilon=1.0, delta=1e-2, unit="client", neighbours="zero-out"),
        grid=-40,
    )


def tuned_game_plan(plan: Plan, trials: int = 10) -> Plan:
    """The best of so many expected trials (geometric) of one candidate."""
    law = TruncatedNegativeBinomial.of_mean(1.0, float(trials))
    selection = Selection(
        eta=law.eta,
        gamma=law.gamma,
        most=law.cut(1e-9),
        score="public",
        metric="accuracy",
        candidates=(write_plan(plan),),
    )
    return replace(plan, selection=selection)
