"""How the contributions of records become those of the units that are protected: records, or whole clients."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from fedveil.core.values import Indices
from fedveil.sums.seam import Whole

Sums = Callable[[Indices], Whole]  # the sum of the contributions of these rows


def root_up(count: int) -> float:
    """The least float that is surely not below the root of a whole number."""
    found = math.sqrt(count)
    return found if found == int(found) else math.nextafter(found, math.inf)


def whole_client(add_up: Sums) -> Sums:
    """The mean of a client's contributions, cut toward zero, in place of their sum."""

    def mean(rows: Indices) -> Whole:
        total = add_up(rows)
        return np.asarray(np.sign(total) * (np.abs(total) // max(rows.size, 1)), dtype=np.int64)

    return mean


def by_client(owner: Indices, clients: int, present: Indices) -> Iterator[Indices]:
    """The rows of each client in turn, blank ones left out."""
    order = present[np.argsort(owner[present], kind="stable")]
    ends = np.cumsum(np.bincount(owner[present], minlength=clients))
    start = 0
    for end in ends.tolist():
        yield order[start:end]
        start = end
