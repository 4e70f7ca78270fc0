"""Canaries: records put among the training data to be looked for afterwards, each in its own column.

A slot holds its canary or not, by a secret fair coin. Slots are records like others: they count in the shape of the
data, belong to clients by a public rule, and are protected by the certificate; only their content is chosen to be easy
to find. Real records are zero in the canaries' columns, so canaries move no parameter that a real record uses.
Page: docs/audit-canaries.md.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.guarantee import Neighbours, Unit
from fedveil.values import Vector, whole

Coins = NDArray[np.bool_]
FEWEST, MOST = 20, 10_000  # fewer prove nothing, however good the guesses; with more, the model is mostly canaries
_INSIDE = 1 - 2.0**-40  # just inside the bound, because the computed norm of a row must not exceed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """``count`` slots. Zero-out: the canary or a row of zeros; replace-one: the canary or its opposite.

    If clients are protected, or every client holds one record, each slot is a client of its own. Otherwise slot j
    belongs to client j modulo the number of clients.
    """

    count: int
    neighbours: Neighbours
    unit: Unit

    def __post_init__(self) -> None:
        count = check_count(self.count)
        object.__setattr__(self, "count", count)

    def widened(self, records: Records) -> Records:
        """Return the records with a column of zeros for each canary."""
        blank = np.zeros((len(records), self.count))
        return replace(records, features=np.ascontiguousarray(np.hstack([records.features, blank])))

    def placed(self, records: Records, coins: Coins) -> Records:
        """Return the widened records followed by the slots, filled by the coins; true means that the canary is in."""
        right = coins.shape == (self.count,) and coins.dtype == np.bool_
        require(right, "coins", f"be {self.count} of true or false", (coins.dtype, coins.shape))
        wide = self.widened(records)
        rows, targets = canary_rows(self.count, records.features.shape[1], records.bound, records.classes)
        out = 0.0 if self.neighbours == "zero-out" else -1.0
        rows *= np.where(coins, 1.0, out)[:, None]
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

    def blank(self, records: Records) -> Records:
        """Return records of the same shape as those trained on, for any coins, with all canaries left out."""
        return self.placed(records, np.zeros(self.count, dtype=np.bool_))


def check_count(count: object) -> int:
    """Return the number of canaries; refuse a number that cannot show anything."""
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
