"""What training leaves behind: the last model, and what it took."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedveil.data.records import Records
from fedveil.plan import Plan
from fedveil.train.entropy import Entropy

Vector = NDArray[np.float64]
Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The last model; updates that were dropped because they were not finite; bytes that clients sent and received.

    The number of dropped updates depends on the data: it is for the data holder, not for release.
    """

    model: Vector
    dropped: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class Trainer(Protocol):
    """One algorithm: the whole run in this process; ``tick`` is told the rounds that are done.

    Randomness is drawn by address (label, index), so that a run that is begun again repeats itself to the byte.
    """

    def __call__(self, plan: Plan, records: Records, entropy: Entropy, tick: Tick, /) -> Trained: ...  # noqa: D102
