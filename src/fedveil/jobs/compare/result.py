"""The result of a comparison: what every candidate promised, how it did, and what all of them cost together."""

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedveil.ledger import Cost
from fedveil.planning.study import Study
from fedveil.privacy.guarantee import Adversary, finite_or_none

View = Literal["algorithms", "trust", "noise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One algorithm against one observer: its promise and its scores, or why it cannot run the study.

    ``gradients``: how many gradients of records one run computes, all clients together; ``dispersal``: how many of them
    a client computes, on average, between two of its messages (van Dijk and Nguyen, section 2.6): how far its model
    may move before others learn of it. None where that is not known. ``areas``: the AUC of each run, of a model of
    classes; ``useless``: whether no run did better than the best constant answer.
    """

    label: str
    algorithm: str
    adversary: Adversary
    explained: str = ""
    refused: str | None = None
    epsilon: float | None = None
    rounds: int = 0
    noise: str = ""
    noise_on_average: float | None = None
    scores: tuple[float, ...] = ()
    areas: tuple[float, ...] = ()
    useless: bool = False
    model_spread: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    gradients: int | None = None
    dispersal: float | None = None

    @property
    def mean(self) -> float | None:
        """Mean of the runs' scores."""
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def auc(self) -> float | None:
        """Mean of the runs' AUC."""
        return float(np.mean(self.areas)) if self.areas else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the runs' scores."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else None

    def as_json(self) -> dict[str, Any]:
        """Return plain values; values that are not finite become null."""
        return {
            "label": self.label,
            "algorithm": self.algorithm,
            "adversary": self.adversary,
            "explained": self.explained,
            "refused": self.refused,
            "epsilon": finite_or_none(self.epsilon),
            "rounds": self.rounds,
            "noise": self.noise,
            "noise_on_average": finite_or_none(self.noise_on_average),
            "mean": finite_or_none(self.mean),
            "spread": finite_or_none(self.spread),
            "auc": finite_or_none(self.auc),
            "scores": [finite_or_none(score) for score in self.scores],
            "model_spread": finite_or_none(self.model_spread),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "gradients": self.gradients,
            "dispersal": finite_or_none(self.dispersal),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All entries, and what they cost together. ``reference``: the score of a model trained without privacy.

    ``baseline``: the score of the best constant answer on the held-out records, called ``constant``.
    """

    study: Study
    view: View
    runs: int
    metric: str
    entries: tuple[Entry, ...]
    costs: tuple[Cost, ...]
    records: int
    clients: int
    test_records: int
    test_public: bool
    reference: float | None = None
    charged: bool = False
    baseline: float | None = None
    constant: str = ""

    @property
    def trained(self) -> int:
        """Number of models trained on the data, including the reference."""
        return sum(self.runs for entry in self.entries if entry.refused is None) + (self.reference is not None)

    @property
    def private(self) -> bool:
        """True if all noise was secret and covers everything, and nothing was trained without noise."""
        secret = self.study.seed is None and not self.study.data.origin.told_by_places
        return secret and self.reference is None and not self.exposed

    @property
    def exposed(self) -> bool:
        """True if scores on held-out records that are not public are published without noise."""
        return self.test_records > 0 and not self.test_public

    @property
    def best(self) -> Entry | None:
        """The entry with the highest mean score."""
        ranked = [entry for entry in self.entries if entry.mean is not None]
        return max(ranked, key=lambda entry: entry.mean or -math.inf, default=None)

    @property
    def warning(self) -> str:
        """The warning that a reader of the numbers must see first."""
        target = self.study.target
        spent = next(cost for cost in self.costs if cost.adversary == target.adversary)
        text = f"{self.trained} models were trained on the same records and each is a release. "
        if self.study.seed is not None:
            return text + "NOT PRIVATE: the noise came from the study's seed. For public data or a rehearsal only."
        if self.study.data.origin.told_by_places:
            return text + "NOT PRIVATE: the split depends on labels, and data.public does not declare them public."
        loose = target.loose_delta(self.clients if target.unit == "client" else self.records)
        text += "" if loose is None else f"{loose} "
        if self.reference is not None:
            text += "NOT PRIVATE: one of them, the reference, was trained without noise. "
        if self.exposed:
            text += "NOT PRIVATE: their scores are exact, on held-out records that were not declared public. "
        if math.isinf(spent.epsilon):
            return text + f"Together they promise nothing against {target.adversary}."
        return (
            text + f"Together the private ones cost epsilon {spent.epsilon:.6g}, delta {spent.delta:.6g} against "
            f"{target.adversary}" + ("; the ledger was charged." if self.charged else "; no ledger was charged.")
        )

    @property
    def no_better(self) -> list[str]:
        """Which entries do no better, in any of their runs, than the best constant answer."""
        return [entry.label for entry in self.entries if entry.useless]

    def text(self) -> str:
        """Return the content of the file compare.json."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Return the whole comparison as plain values."""
        target = self.study.target
        return {
            "format": 1,
            "study": self.study.name,
            "view": self.view,
            "private": self.private,
            "warning": self.warning,
            "target": {name: getattr(target, name) for name in ("epsilon", "delta", "adversary", "unit", "neighbours")},
            "runs": self.runs,
            "models_trained": self.trained,
            "total_cost": [cost.written() for cost in self.costs],
            "ledger_charged": self.charged,
            "metric": self.metric,
            "reference": finite_or_none(self.reference),
            "baseline": finite_or_none(self.baseline),
            "constant": self.constant,
            "no_better": self.no_better,
            "records": self.records,
            "clients": self.clients,
            "test_records": self.test_records,
            "test_public": self.test_public,
            "entries": [entry.as_json() for entry in self.entries],
        }
