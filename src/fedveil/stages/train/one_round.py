"""One noised sum over all records, as tables of a study: all that a model needs whose loss is linear."""

from collections.abc import Mapping
from typing import Any, Final

ONE_ROUND: Final[Mapping[str, Any]] = {
    "algorithm": {"kind": "dpsgd", "optimizer": "sgd", "rate": 1.0, "rounds": 1},
    "schedule": {"step_size": 1.0},
}
