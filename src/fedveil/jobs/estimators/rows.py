"""The public rule from an array to bounded rows: ranges to [-1, 1], the cut, the intercept; nothing is learned."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Matrix, number
from fedveil.data.rows import cut_rows, total_bound

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class StatedRows:
    """``middle`` and ``half`` of each column's public range (None: not scaled); rows are cut to norm ``bound``."""

    bound: float
    intercept: float
    middle: Array | None = None
    half: Array | None = None

    @classmethod
    def of(cls, bound: Any, span: Any, intercept: bool, columns: int) -> "StatedRows":
        """Return the rule for an estimator's parameters; ``span``: (low, high), each a number or one per column."""
        bound = number("feature_bound", bound)
        require(1e-6 <= bound <= 1e6, "feature_bound", "lie in [1e-6, 1e6]", bound)
        constant = 1.0 if intercept else 0.0
        if span is None:
            return cls(bound, constant)
        pair = isinstance(span, tuple | list | np.ndarray) and len(span) == 2
        require(pair, "feature_range", "be a pair (low, high)", span)
        low, high = (_column("feature_range", end, columns) for end in span)
        require(bool(np.all(low < high)), "feature_range", "have every low below its high", "one that is not")
        return cls(bound, constant, low / 2 + high / 2, high / 2 - low / 2)

    @property
    def total(self) -> float:
        """The bound of a row with its intercept."""
        return total_bound(self.bound, self.intercept)

    def rows(self, X: Array) -> Matrix:
        """Return each row scaled, cut, and with the intercept as its last entry."""
        width = X.shape[1]
        rows = np.empty((X.shape[0], width + (self.intercept > 0)))
        part = rows[:, :width]
        part[:] = X
        if self.middle is not None and self.half is not None:
            with np.errstate(over="ignore"):  # overflow far outside a narrow range is cut in the next line
                part[:] = (part - self.middle) / self.half
            np.clip(part, -1.0, 1.0, out=part)
        cut_rows(part, self.bound, self.intercept)
        if self.intercept:
            rows[:, -1] = self.intercept
        return rows


def _column(name: str, value: Any, columns: int) -> Array:
    """Return one finite number per column."""
    try:
        given = np.broadcast_to(np.asarray(value, dtype=np.float64), (columns,))
    except (ValueError, TypeError):
        require(False, name, f"hold numbers, one or {columns}", value)
        raise
    require(bool(np.isfinite(given).all()), name, "be finite", "NaN or infinity")
    return given
