"""What training leaves behind: the last model, and what it took."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedveil.values import Vector

Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The last model; updates that were dropped because they were not finite; bytes that clients sent and received.

    ``state``: what an algorithm that can go on keeps; it stays hidden. The number of dropped updates depends on the
    data: it is for the data holder, not for release.
    """

    model: Vector
    dropped: int = 0
    state: Any = None
    bytes_up: int = 0
    bytes_down: int = 0
