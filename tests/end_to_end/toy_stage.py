"""A stage of one's own: the noisy mean of a column, whose range is public. No other file names it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedveil.core.errors import require
from fedveil.stages.measured.stage import Sought
from fedveil.stages.sums import STEPS


class NoisyMean:
    """Settings: ``column`` and its ``range``. One sum: each record's value, scaled to [-1, 1], and rounded."""

    file = "mean.json"

    def sought(self, settings: Mapping[str, Any], columns: Any, shape: Any) -> Sequence[Sought]:
        known = settings["column"] in columns.numbers
        require(known, "column", f"be one of {', '.join(columns.numbers)}", settings["column"])
        return [Sought(name="mean", size=1, bound=1.0)]

    def result(self, settings: Mapping[str, Any], sums: Any, rows: Any, units: int, by: Any) -> bytes:
        (low, high), place = settings["range"], rows.outline.numbers.index(settings["column"])
        scaled = np.clip((rows.columns.numbers[:, place] - low) / (high - low) * 2 - 1, -1.0, 1.0)
        steps = np.trunc(np.nan_to_num(scaled) * STEPS).astype(np.int64)
        total = by.noisy_sum(sums["mean"], lambda chosen: steps[chosen].sum(keepdims=True), 1)
        mean = low + (float(total[0]) / units + 1) / 2 * (high - low)
        return (json.dumps({"mean": mean, "noise": sums["mean"].noise / units * (high - low) / 2}) + "\n").encode()
