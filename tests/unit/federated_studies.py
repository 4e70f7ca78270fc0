"""Small studies of every algorithm that runs across sites."""

from collections.abc import Callable

from fedveil.planning.study import Study
from unit.federations import study

MASKED = {"server": "secure-aggregation", "dropouts": 2, "timeout": 60.0}
STUDIES: dict[str, Callable[[], Study]] = {
    "hidden, masked": lambda: study(trust=MASKED),
    "hidden": study,
    "hidden, clients": lambda: study(
        privacy={"epsilon": 5.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "every-model", "unit": "client"},
        schedule={"rounds": 3, "passes": 1, "batch": 3, "step_size": 0.5, "noise_std": 8.0},
    ),
    "hidden, poisson, masked": lambda: study(
        trust=MASKED,
        algorithm={"order": "poisson", "rate": 0.2},
        schedule={"rounds": 4, "passes": 1, "step_size": 0.5, "noise_std": 20.0},
    ),
    "hidden, independent": lambda: study(
        algorithm={"order": "independent"},
        schedule={"rounds": 3, "passes": 2, "step_size": 0.5, "noise_std": 20.0},
    ),
    "hidden, clients, poisson": lambda: study(
        privacy={"epsilon": 9.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "every-model", "unit": "client"},
        algorithm={"order": "poisson", "rate": 0.4},
        schedule={"rounds": 3, "passes": 1, "step_size": 0.5, "noise_std": 8.0},
    ),
    "fedavg": lambda: study(
        privacy={
            "epsilon": 30.0,
            "delta": 1e-5,
            "neighbours": "zero-out",
            "adversary": "every-model",
            "unit": "client",
        },
        algorithm={
            "kind": "fedavg",
            "noise": "shared",
            "cohort": 6,
            "sampling": "fixed-size",
            "local": {"batch": 4, "epochs": 2},
        },
        schedule={"rounds": 3},
    ),
    "fedavg, correlated": lambda: study(
        privacy={"epsilon": 30.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "server", "unit": "client"},
        algorithm={"kind": "fedavg", "correlation": {}, "cohort": 3, "weights": "records"},
        schedule={"rounds": 7},
    ),
    "fedavg, correlated, masked": lambda: study(
        privacy={
            "epsilon": 30.0,
            "delta": 1e-5,
            "neighbours": "replace-one",
            "adversary": "server-with-secure-aggregation",
            "unit": "client",
        },
        algorithm={"kind": "fedavg", "correlation": {"bands": 2}, "cohort": 3, "local": {"batch": 4}},
        schedule={"rounds": 5},
        trust=MASKED,
    ),
    "fedavg, adaptive, masked": lambda: study(
        privacy={
            "epsilon": 40.0,
            "delta": 1e-5,
            "neighbours": "zero-out",
            "adversary": "every-model",
            "unit": "client",
        },
        algorithm={"kind": "fedavg", "noise": "shared", "clip": {"start": 3.0}},
        schedule={"rounds": 4},
        trust=MASKED,
    ),
    "fedavg, independent, Adam": lambda: study(
        privacy={
            "epsilon": 40.0,
            "delta": 1e-5,
            "neighbours": "zero-out",
            "adversary": "server-with-secure-aggregation",
            "unit": "client",
        },
        algorithm={
            "kind": "fedavg",
            "noise": "shared",
            "sampling": "independent",
            "cohort": 4,
            "optimizer": "adam",
            "server_step": 0.05,
        },
        schedule={"rounds": 4},
    ),
    "dpsgd, adaptive": lambda: study(
        privacy={"epsilon": 30.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "server"},
        algorithm={"kind": "dpsgd", "network": {"window": 2.0}, "clip": {"start": 0.01}},
        schedule={"rounds": 6, "passes": 1},
    ),
    "fedavg, segments": lambda: study(
        privacy={
            "epsilon": 40.0,
            "delta": 1e-5,
            "neighbours": "zero-out",
            "adversary": "every-model",
            "unit": "client",
        },
        algorithm={
            "kind": "fedavg",
            "noise": "shared",
            "sampling": "fixed-size",
            "cohort": 6,
            "segments": [{"rounds": 2}, {"rounds": 1, "rate": 1.0, "clip": 0.02}],
        },
        schedule={},
    ),
    "dpsgd, segments, masked": lambda: study(
        privacy={"epsilon": 30.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "server"},
        algorithm={"kind": "dpsgd", "rate": 0.5, "segments": [{"rounds": 2, "clip": 0.2}, {"rounds": 2, "rate": 0.2}]},
        schedule={},
        trust=MASKED,
    ),
    "dpsgd": lambda: study(
        privacy={"epsilon": 30.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "server"},
        algorithm={"kind": "dpsgd", "network": {"window": 2.0}},
        schedule={"rounds": 6},
    ),
    "dpsgd, independent": lambda: study(
        privacy={"epsilon": 30.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "server"},
        algorithm={"kind": "dpsgd", "sampling": "independent", "network": {"window": 2.0}, "noise_multiplier": 2.0},
        schedule={"rounds": 5, "passes": 2},
    ),
    "dpsgd, independent, masked": lambda: study(
        privacy={"epsilon": 30.0, "delta": 1e-5, "neighbours": "replace-one", "adversary": "every-model"},
        algorithm={"kind": "dpsgd", "sampling": "independent", "noise_multiplier": 4.0},
        schedule={"rounds": 3, "passes": 1},
        trust=MASKED,
    ),
}
