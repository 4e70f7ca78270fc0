"""Canaries: records put among the training data to be looked for afterwards.

A slot holds its canary or not, by a secret fair coin. Slots are records like others: they count in the shape of the
data, belong to clients by a public rule, and are protected by the certificate; only their content is chosen to be easy
to find. For losses of linear scores each has a column of its own, where real records are zero, so canaries move no
parameter that a real record uses. A torch module takes the features that it takes: there canaries are rows of random
signs with random targets.
Page: docs/audit-canaries.md.
"""

import math
from dataclasses import dataclass, replace
from hashlib import shake_256

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Vector, whole
from fedveil.data.records import Records
from fedveil.privacy.guarantee import Neighbours, Unit

Coins = NDArray[np.bool_]
FEWEST, MOST = 20, 10_000  # fewer prove nothing, however good the guesses; with more, the model is mostly canaries
_ENOUGH = ((5.0, 100), (3.0, 200), (1.5, 500))  # from such an epsilon on so many
_INSIDE = 1 - 2.0**-40  # just inside the bound, because the computed norm of a row must not exceed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """``count`` slots. Zero-out: the canary or nothing; replace-one: the canary or its opposite.

    ``columns``: each canary has a column of its own; else it is a row of the features that there are. Nothing is a row
    of zeros where it has a column, which moves no linear score, and else a blank record, which no loss adds up. The
    opposite is the row with its sign changed, and else the row with another target.

    If clients are protected, or every client holds one record, each slot is a client of its own. Otherwise slot j
    belongs to client j modulo the number of clients.
    """

    count: int
    neighbours: Neighbours
    unit: Unit
    columns: bool = True

    def __post_init__(self) -> None:
        count = check_count(self.count)
        object.__setattr__(self, "count", count)

    def widened(self, records: Records) -> Records:
        """Return the records with a column of zeros for each canary, where canaries have columns."""
        if not self.columns:
            return records
        blank = np.zeros((len(records), self.count))
        return replace(records, features=np.ascontiguousarray(np.hstack([records.features, blank])))

    def placed(self, records: Records, coins: Coins) -> Records:
        """Return the widened records followed by the slots, filled by the coins; true means that the canary is in."""
        right = coins.shape == (self.count,) and coins.dtype == np.bool_
        require(right, "coins", f"be {self.count} of true or false", (coins.dtype, coins.shape))
        wide = self.widened(records)
        rows, targets = self._filled(coins, records.features.shape[1], records.bound, records.classes)
        apart = self.unit == "client" or records.clients == len(records)
        places = np.arange(self.count, dtype=np.int64)
        extra = tuple(f"canary {place + 1}" for place in range(self.count)) if apart and records.names else ()
        return Records(
            features=np.vstack([wide.features, rows]),
            targets=np.append(wide.targets, targets),
            owner=np.append(wide.owner, places + records.clients if apart else places % records.clients),
            clients=records.clients + (self.count if apart else 0),
            bound=records.bound,
            classes=records.classes,
            names=(*records.names, *extra),
        )

    def _filled(self, coins: Coins, features: int, bound: float, classes: int) -> tuple[Vector, Vector]:
        """Return what the slots hold."""
        if self.columns:
            rows, targets = canary_rows(self.count, features, bound, classes)
            out = 0.0 if self.neighbours == "zero-out" else -1.0
            return rows * np.where(coins, 1.0, out)[:, None], targets
        rows, targets = sign_rows(self.count, features, bound, classes)
        if self.neighbours == "replace-one":
            return rows, np.where(coins, targets, other_targets(targets, classes))
        return np.where(coins[:, None], rows, 0.0), np.where(coins, targets, np.nan)

    def blank(self, records: Records) -> Records:
        """Return records of the same shape as those trained on, for any coins, with all canaries left out."""
        return self.placed(records, np.zeros(self.count, dtype=np.bool_))


def check_count(count: object, epsilon: float = math.inf) -> int:
    """Return the number of canaries; refuse a number that cannot show anything.

    ``"auto"``: of 100, 200, 500 and 1000 the fewest with which the strongest attack we know of would show a third of
    this epsilon (of a Gaussian release, at delta 1e-5); below 1.5 none does, and 1000 show most.

    >>> [check_count("auto", epsilon) for epsilon in (8.0, 4.0, 2.0, 1.0)]
    [100, 200, 500, 1000]
    """
    if count == "auto":
        return next((number for least, number in _ENOUGH if epsilon >= least), 1000)
    given = whole("audit.canaries", count)
    require(FEWEST <= given <= MOST, "audit.canaries", f"lie between {FEWEST} and {MOST}", given)
    return given


def canary_rows(count: int, features: int, bound: float, classes: int) -> tuple[Vector, Vector]:
    """Return the canaries themselves, which are public: one column each, of norm ``bound``, and their targets.

    All have the first class (or the target 1). In columns that nothing else uses, no margin builds up against them, so
    their gradients keep the size they have at the zero model, which is the usual clip.
    """
    rows = np.zeros((count, features + count))
    rows[np.arange(count), features + np.arange(count)] = bound * _INSIDE
    return rows, np.full(count, 0.0 if classes else 1.0)


def sign_rows(count: int, features: int, bound: float, classes: int) -> tuple[Vector, Vector]:
    """Return canaries without columns of their own, which are public: rows of random signs, and random targets.

    Rows are of norm ``bound``. Random signs are nearly orthogonal in many dimensions, and nothing that is learned of
    real records tells their targets. They are read off a hash, so they are the same everywhere.
    """
    bits = np.frombuffer(shake_256(b"fedveil: rows of canaries").digest(count * features), dtype=np.uint8) & 1
    drawn = np.frombuffer(shake_256(b"fedveil: targets of canaries").digest(count), dtype=np.uint8)
    rows = (2.0 * bits.reshape(count, features) - 1) * (bound * _INSIDE / features**0.5)
    return rows, (drawn % classes if classes else 2.0 * (drawn & 1) - 1).astype(np.float64)


def other_targets(targets: Vector, classes: int) -> Vector:
    """Return the targets of the opposite canaries: the next class, or the number with its sign changed."""
    return np.asarray((targets + 1) % classes if classes else -targets, dtype=np.float64)
