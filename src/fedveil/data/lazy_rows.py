"""Rows that are too many to keep: made from their cells, some at a time, whenever they are read.

The rows of an additive model are long and mostly zeros; those of a million records would fill gigabytes. They stand in
for an array wherever records are read by index, in slices, by ``take`` or in a product with a model; anything else that
numpy does with them makes all of them. A row has the same bits whichever way it is made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.rows import row_norms

LARGEST: Final = 2**25  # numbers that are kept as an array: a quarter of a gigabyte
_AT_ONCE: Final = 2**17  # numbers made at a time, where all are needed: they stay in the processor's cache


@dataclass(frozen=True, slots=True, eq=False)
class LazyRows(np.lib.mixins.NDArrayOperatorsMixin):
    """``make``: the rows of these records; ``chosen``: which records, -1 for a blank one, whose row is zero.

    Every row is checked against ``bound`` when it is made. ``identity``: a keyed hash of all that rows are made from.
    """

    make: Callable[[Indices], Matrix]
    identity: Callable[[bytes], bytes]
    chosen: Indices
    width: int
    bound: float

    ndim = 2
    dtype = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.chosen.size, self.width

    def __len__(self) -> int:
        return self.chosen.size

    def __getitem__(self, at: Any) -> Any:
        """Return some rows: an array if that is small, and else lazy rows; with a second index those features."""
        if isinstance(at, tuple):
            return np.asarray(self)[at]
        if isinstance(at, int | np.integer):
            return self._made(self.chosen[[int(at)]])[0]
        some = LazyRows(self.make, self.identity, self.chosen[at], self.width, self.bound)
        return some if some.chosen.size * self.width > LARGEST else some._made(some.chosen)

    def __getattr__(self, name: str) -> Any:
        """Return what an array of all rows has by this name."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        """Apply a function of numpy to an array of all rows."""
        return getattr(ufunc, method)(*(np.asarray(one) if one is self else one for one in inputs), **named)

    def __matmul__(self, model: Vector) -> Vector:
        return np.concatenate([part @ model for part in self.parts()])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        result, first = np.empty(self.shape), 0
        for part in self.parts():
            result[first : first + len(part)] = part
            first += len(part)
        return result if dtype is None else result.astype(dtype, copy=False)

    def take(self, at: Indices, axis: int = 0, out: Matrix | None = None, mode: str = "raise") -> Matrix:
        """Return rows as numpy's ``take`` does."""
        require(axis == 0, "axis", "be 0 for lazy rows", axis)
        result = self._made(self.chosen.take(at, mode=cast(Any, mode)))
        if out is None:
            return result
        out[...] = result
        return out

    def parts(self) -> Iterator[Matrix]:
        """Yield all rows, some at a time."""
        step = max(1, _AT_ONCE // self.width)
        for first in range(0, len(self), step):
            yield self._made(self.chosen[first : first + step])

    def _made(self, chosen: Indices) -> Matrix:
        result = self.make(np.maximum(chosen, 0))
        result[chosen < 0] = 0.0
        norms = row_norms(result)
        fine = bool(np.all(norms <= self.bound))
        require(fine, "A row", f"be finite with norm at most {self.bound!r}", float(np.max(norms, initial=0.0)))
        return result


def kept(rows: LazyRows) -> Matrix:
    """Return rows as an array if they are few enough to keep, and else as they are."""
    return np.asarray(rows) if rows.chosen.size * rows.width <= LARGEST else cast(Matrix, rows)
