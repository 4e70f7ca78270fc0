"""The result of training: the last model, and what it cost in messages."""

from collections.abc import Callable
from dataclasses import dataclass

from fedveil.core.values import Vector

Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The last model; the number of updates dropped as not finite; the bytes that clients sent and received.

    The number of dropped updates depends on the data: it is for the data holder, not for release. ``chosen``: the
    segments that a rule chose, in their order.
    """

    model: Vector
    dropped: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    chosen: tuple[int, ...] = ()
