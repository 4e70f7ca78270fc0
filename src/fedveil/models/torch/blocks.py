"""Sums of per-record gradients to which a record adds the same bits, whoever else is in the batch.

Torch's last bits for a record may depend on how many rows are computed at once and on the record's place among them. So
rows are computed in blocks of one shape, and a record's place in its block, its slot, depends on the record alone. Two
records of one slot go into different blocks; slots without a record hold a blank row, which adds nothing. Each
contribution is cut to whole grains alone, and these are added up exactly (docs/torch.md, "Company").
"""

import math
from typing import Any, Final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices, Vector
from fedveil.models.torch.library import deterministic, torch

SLOTS: Final = 32  # of a block: more leave more of them blank, fewer make more calls; add_cut holds 32
_MIX: Final = 0x9E3779B97F4A7C15  # odd, without a pattern: 2**64 over the golden ratio
_EMPTY: Final = -1
_BITS: Final = 41  # of a clipped gradient, so that float64 holds the sum of
_EXACT: Final = 2048  # of them exactly; so many are laid out at once


def slots_of(X: Vector, y: Vector, slots: int) -> Indices:
    """Return the slot of each record: a function of the bits of its row and target alone, since whole numbers wrap.

    >>> rows, targets = np.arange(12.0).reshape(4, 3), np.zeros(4)
    >>> bool(np.all(slots_of(rows, targets, 8)[1:] == slots_of(rows[1:], targets[1:], 8)))
    True
    """
    with np.errstate(over="ignore"):
        factors = (2 * np.arange(X.shape[1], dtype=np.uint64) + np.uint64(1)) * np.uint64(_MIX)
        factors ^= factors >> np.uint64(29)
        words = np.ascontiguousarray(X, dtype=np.float64).view(np.uint64)
        words = words ^ (words >> np.uint64(32))  # the low bits of round numbers are all zero
        mixed = np.vecdot(words, factors | np.uint64(1))
        mixed += np.ascontiguousarray(y, dtype=np.float64).view(np.uint64) * np.uint64(_MIX)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(_MIX)
    return np.asarray((mixed >> np.uint64(33)) % np.uint64(slots), dtype=np.int64)


def blocks_of(place: Indices, slots: int) -> Indices:
    """Return which record is in each slot (a column) of each block (a row); -1 if none.

    >>> blocks_of(np.array([1, 0, 1]), 2).tolist()
    [[1, 0], [-1, 2]]
    """
    order = np.argsort(place, kind="stable")
    counts = np.bincount(place, minlength=slots)
    firsts = np.append(0, np.cumsum(counts))[:-1]
    layout = np.full((int(counts.max(initial=0)), slots), _EMPTY, dtype=np.int64)
    layout[np.arange(place.size) - firsts[place[order]], place[order]] = order
    return layout


class Blocks:
    """Blocks of one shape, computed by ``work`` (a stack, or any module record by record).

    The tensors that rows, targets and parameters are copied into are torch's own, whose memory always begins at the
    same boundary: kernels may choose their way by that.
    """

    def __init__(self, work: Any, at_once: int, features: int, dtype: Any, device: str = "cpu") -> None:
        self.slots = max(1, min(SLOTS, at_once))
        self._work = work
        self._rows = torch.zeros((self.slots, features), dtype=dtype, device=device)
        self._targets = torch.zeros(self.slots, dtype=dtype, device=device)
        self._factors = torch.zeros(self.slots, dtype=torch.float64, device=device)

    def total(
        self, values: list[Any], X: Vector, y: Vector, *, clip: float, shares: Vector, present: Any, grain: float
    ) -> tuple[Vector, int]:
        """Return the sum of the clipped gradients times shares, each cut to whole grains; and how many failed.

        Only records that are ``present`` count; the rows of the others must be finite. Shares are at most 1.
        """
        most = float(np.max(np.abs(shares), initial=0.0))
        require(most <= 1, "weights", "be at most 1 with a grain", most)
        coarse = grain * 2.0 ** max(0, math.frexp(clip / grain)[1] - _BITS)
        total, failed = np.zeros(sum(value.numel() for value in values), dtype=np.int64), 0
        laid = blocks_of(slots_of(X, y, self.slots), self.slots)
        there = laid != _EMPTY
        there[there] = present[laid[there]]
        with deterministic(fill=self._work.reads_unset):
            for first in range(0, len(laid), _EXACT // self.slots):
                part = slice(first, first + _EXACT // self.slots)
                tables = [self._lay_out(given, laid[part], there[part]) for given in (X, y, shares)]
                sums = [torch.zeros(value.numel(), dtype=torch.float64, device=value.device) for value in values]
                usable = [self._add(values, block, clip, coarse, sums) for block in zip(*tables, strict=True)]
                total += torch.cat(sums).cpu().numpy().astype(np.int64)
                failed += int(np.count_nonzero(there[part] & ~torch.stack(usable).cpu().numpy()))
        return total.astype(np.float64) * coarse, failed

    def _add(self, values: list[Any], block: Any, clip: float, grain: float, sums: list[Any]) -> Any:
        """Add a block (rows, targets, shares) to ``sums``, and return which of its gradients are finite."""
        for place, given in zip((self._rows, self._targets, self._factors), block, strict=True):
            place.copy_(given)
        return self._work.add_whole(values, self._rows, self._targets, clip, self._factors, grain, sums)

    def _lay_out(self, values: Vector, laid: Any, there: Any) -> Any:
        """Return the records' values by block and slot; zeros in slots without a record."""
        table = np.zeros((*laid.shape, *values.shape[1:]))
        table[there] = values[laid[there]]
        return torch.from_numpy(table)

    def check(self, values: list[Any], X: Vector, y: Vector) -> None:
        """Refuse a module that gives a record other bits in other company: by trying, on a few rows."""
        ones, grain = np.ones(y.size), 2.0**-46
        try:
            each = [
                self.total(values, X[i : i + 1], y[i : i + 1], clip=1.0, shares=ones, present=ones > 0, grain=grain)
                for i in range(y.size)
            ]
            every = self.total(values, X, y, clip=1.0, shares=ones, present=ones > 0, grain=grain)
        except RuntimeError as error:
            raise BadValue(
                f"model.module must take {self.slots} rows at once: {str(error).splitlines()[0]}."
            ) from error
        same = np.array_equal(every[0], np.sum([one for one, _ in each], axis=0))
        hint = "Its gradients must be deterministic, and a record's own: sampled batches tell by the last bit."
        require(same, "model.module", "give a record the same bits in any company", "other bits", hint)
