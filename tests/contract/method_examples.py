"""One small study for each method (or more): what the laws of methods are tried on. A new method adds its own here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import Study, study_of
from fedveil.stages.train.registry import KINDS

CHAIN = ("final-model", "every-model", "server-with-secure-aggregation", "server")


@dataclass(frozen=True, kw_only=True)
class Example:
    """``algorithm``, ``privacy``, ``schedule``: tables of a study; ``noise``: keys of the plan's [method] table.

    ``chain``: observers of whom each sees all that the one before it sees, so that none is promised more. ``noise``
    names the numbers that are all the noise; twice as much of each must never cost privacy. ``per_client``: whether
    each client has an epsilon of its own. ``calibrated``: whether the noise was left to the plan.
    """

    algorithm: Mapping[str, Any]
    noise: tuple[str, ...]
    privacy: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    trust: Mapping[str, Any] | None = None
    records: int = 120
    clients: int = 12
    chain: tuple[str, ...] = CHAIN
    per_client: bool = False
    calibrated: bool = True

    @property
    def kind(self) -> str:
        return str(self.algorithm["kind"])

    @property
    def tables(self) -> dict[str, Any]:
        return {
            "study": {"name": "example"},
            "algorithm": dict(self.algorithm),
            "model": {"kind": "logistic", "radius": 5.0, **self.model},
            "privacy": {"epsilon": 4.0, "delta": 1e-4, **self.privacy},
            "schedule": dict(self.schedule),
            **({} if self.trust is None else {"trust": dict(self.trust)}),
        }

    @property
    def study(self) -> Study:
        return study_of(self.tables, base=Path(), data_given=True)

    def data(self) -> Records:
        """Rows in the unit ball, two classes, clients of one size."""
        generator = np.random.default_rng(0)
        rows = generator.normal(size=(self.records, 3))
        rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None] * (1 + 1e-12)
        return Records(
            features=rows,
            targets=(rows[:, 0] > 0).astype(np.float64),
            owner=(np.arange(self.records) * self.clients // self.records).astype(np.int64),
            clients=self.clients,
            bound=1.0,
            classes=2,
        )

    def plan(self) -> Plan:
        return self.study.planned(self.data().shape).plan


def trained(plan: Plan, records: Records, entropy: Entropy) -> Vector:
    """The model that this plan's trainer makes of the records."""
    return train(plan, records, entropy).model


_CLIENTS = {"unit": "client", "neighbours": "zero-out"}
_ALL: dict[str, Example] = {
    "hidden": Example(
        algorithm={"kind": "hidden"}, noise=("noise_std",), schedule={"rounds": 4, "passes": 1, "step_size": 0.5}
    ),
    "hidden, public order, whole clients": Example(
        algorithm={"kind": "hidden", "order": "public"},
        noise=("noise_std",),
        privacy=_CLIENTS,
        schedule={"rounds": 3, "passes": 2, "step_size": 0.5, "noise_std": 1.0},
    ),
    "dpsgd": Example(algorithm={"kind": "dpsgd", "rate": 0.5, "rounds": 4}, noise=("noise",)),
    "dpsgd, each client its own": Example(
        algorithm={
            "kind": "dpsgd",
            "sampling": "fixed-size",
            "clipping": "batch",
            "rate": 0.2,
            "rounds": 3,
            "noise_multiplier": [4.0, 5.0, 6.0, 8.0],
        },
        noise=("noise",),
        records=40,
        clients=4,
        per_client=True,
        calibrated=False,
    ),
    "dpsgd, correlated": Example(
        algorithm={"kind": "dpsgd", "correlation": {"bands": 3}, "sampling": "cyclic", "rate": 0.25, "rounds": 8},
        noise=("noise",),
        clients=4,
    ),
    "dpsgd, correlated, in windows": Example(
        algorithm={"kind": "dpsgd", "correlation": {"buffers": 1}, "sampling": "cyclic", "rate": 0.5, "rounds": 4},
        noise=("noise",),
        clients=4,
        trust={"noise": "local", "dropouts": 1},
    ),
    "dpsgd, correlated and drawn in classes": Example(
        algorithm={"kind": "dpsgd", "correlation": {"bands": 2}, "rate": 0.2, "rounds": 6},
        noise=("noise",),
        clients=1,
        privacy={"neighbours": "zero-out"},
    ),
    "fedavg": Example(algorithm={"kind": "fedavg"}, noise=("noise_multiplier",), privacy=_CLIENTS),
    "fedavg, correlated": Example(
        algorithm={"kind": "fedavg", "correlation": {"bands": 2}, "cohort": 4},
        noise=("noise_multiplier",),
        privacy=_CLIENTS,
        schedule={"rounds": 6},
    ),
    "fedavg, correlated by buffers, in streams of the clients": Example(
        algorithm={"kind": "fedavg", "correlation": {"buffers": 2, "error": "mean"}, "cohort": 3},
        noise=("noise_multiplier",),
        privacy=_CLIENTS | {"adversary": "server-with-secure-aggregation"},
        schedule={"rounds": 6},
    ),
    "fedavg, shared noise": Example(
        algorithm={"kind": "fedavg", "noise": "shared", "sampling": "fixed-size", "cohort": 6},
        noise=("noise_multiplier",),
        privacy=_CLIENTS | {"adversary": "server"},
        schedule={"rounds": 3},
    ),
    "hidden, poisson": Example(
        algorithm={"kind": "hidden", "order": "poisson", "rate": 0.3},
        noise=("noise_std",),
        schedule={"rounds": 4, "passes": 1, "step_size": 0.5},
    ),
    "hidden, independent, by parts": Example(
        algorithm={"kind": "hidden", "order": "independent"},
        noise=("noise_std",),
        privacy={"neighbours": "zero-out"},
        schedule={"rounds": 4, "passes": 2, "step_size": 0.5},
        trust={"server": "trusted", "dropouts": 1},
    ),
    "hidden, by parts": Example(
        algorithm={"kind": "hidden"},
        noise=("noise_std",),
        schedule={"rounds": 4, "passes": 1, "step_size": 0.5},
        trust={"dropouts": 2, "colluders": 1},
    ),
    "hidden, by parts, whole clients, secret sums": Example(
        algorithm={"kind": "hidden"},
        noise=("noise_std",),
        privacy=_CLIENTS | {"adversary": "server-with-secure-aggregation"},
        schedule={"rounds": 3, "passes": 2, "step_size": 0.5},
        trust={"dropouts": 1},
    ),
    "hidden, by parts, public order, whole clients": Example(
        algorithm={"kind": "hidden", "order": "public", "deal": "clients"},
        noise=("noise_std",),
        privacy={"adversary": "curious-client"},
        schedule={"rounds": 3, "batch": 40, "passes": 1, "step_size": 0.5},
        trust={},
    ),
    "fedavg, by parts": Example(
        algorithm={"kind": "fedavg", "noise": "shared", "sampling": "fixed-size", "cohort": 6},
        noise=("noise_multiplier",),
        privacy=_CLIENTS | {"adversary": "server-with-secure-aggregation"},
        schedule={"rounds": 3},
        trust={"dropouts": 2, "colluders": 1},
    ),
    "fedavg, correlated, by parts": Example(
        algorithm={"kind": "fedavg", "correlation": {"bands": 3}, "cohort": 4},
        noise=("noise_multiplier",),
        privacy=_CLIENTS | {"adversary": "server-with-secure-aggregation"},
        schedule={"rounds": 6},
        trust={"dropouts": 2, "colluders": 1},
    ),
    "dpsgd, by parts": Example(
        algorithm={"kind": "dpsgd", "rate": 0.5, "rounds": 4, "network": {"window": 2}},
        noise=("noise",),
        trust={"dropouts": 3},
    ),
    "dpsgd, independent": Example(
        algorithm={"kind": "dpsgd", "sampling": "independent", "network": {"window": 2}},
        noise=("noise",),
        schedule={"rounds": 5, "passes": 2},
        trust={"dropouts": 3},
    ),
    "dpsgd, adaptive": Example(
        algorithm={"kind": "dpsgd", "clip": {"quantile": 0.6}, "rate": 0.5, "rounds": 4},
        noise=("noise",),
        trust={"dropouts": 3},
    ),
    "fedavg, adaptive": Example(
        algorithm={"kind": "fedavg", "noise": "shared", "clip": {"start": 0.2}},
        noise=("noise_multiplier",),
        privacy=_CLIENTS | {"adversary": "server-with-secure-aggregation"},
        schedule={"rounds": 3},
        trust={"dropouts": 2, "colluders": 1},
    ),
    "fedavg, independent, Adam, by parts": Example(
        algorithm={
            "kind": "fedavg",
            "noise": "shared",
            "sampling": "independent",
            "cohort": 6,
            "optimizer": "adam",
            "server_step": 0.05,
            "local": {"proximal": 0.1},
        },
        noise=("noise_multiplier",),
        privacy=_CLIENTS | {"adversary": "server-with-secure-aggregation"},
        trust={"colluders": 1},
    ),
    "dpsgd, segments": Example(
        algorithm={"kind": "dpsgd", "rate": 0.5, "segments": [{"rounds": 3}, {"rounds": 1, "clip": 0.2}]},
        noise=("noise",),
    ),
    "simfl": Example(algorithm={"kind": "simfl"}, noise=("noise_multiplier",), schedule={"rounds": 5}),
    "simfl, secret coins": Example(
        algorithm={"kind": "simfl", "rate": 0.5},
        noise=("noise_multiplier",),
        privacy={"adversary": "curious-client", "neighbours": "zero-out"},
        schedule={"rounds": 5},
    ),
}
EXAMPLES = {name: example for name, example in _ALL.items() if example.kind in KINDS}
