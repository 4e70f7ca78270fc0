"""Privacy guarantees: what is promised, against whom, and whether it is proved."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from fedveil.core.checks import require

Neighbours = Literal["replace-one", "zero-out"]
Adversary = Literal["final-model", "curious-client", "every-model", "server-with-secure-aggregation", "server"]
Unit = Literal["record", "client"]
Status = Literal["certified", "numerical", "comparison", "does-not-apply"]
# (how far one unit moves a noisy release, in units of its noise; how many such releases)
Moves = tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One way to bound the privacy loss: its numbers, whether they are proved, and why it does or does not apply.

    ``moves`` is given by bounds that count every noisy release as seen. It bounds how far each release can move.
    """

    name: str
    status: Status
    reason: str
    epsilon: float | None = None
    delta: float | None = None
    epsilon_lower: float | None = None
    moves: Moves | None = None

    def __post_init__(self) -> None:
        require(self.status in get_args(Status), "Bound.status", f"be one of {get_args(Status)}", self.status)
        for name in ("epsilon", "delta", "epsilon_lower"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"Bound.{name}", "be absent or non-negative", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The smallest (epsilon, delta) that is proved, the bound that proves it, and all other bounds for comparison."""

    epsilon: float
    delta: float
    certified_by: str | None
    bounds: tuple[Bound, ...]

    def __post_init__(self) -> None:
        require(self.epsilon >= 0, "Answer.epsilon", "be non-negative", self.epsilon)
        require(0 <= self.delta <= 1, "Answer.delta", "lie in [0, 1]", self.delta)

    def __getitem__(self, name: str) -> Bound:
        """Return the bound of this name."""
        for bound in self.bounds:
            if bound.name == name:
                return bound
        raise KeyError(f"{name!r} is not among the bounds: {', '.join(bound.name for bound in self.bounds)}")


def finite_or_none(value: float | None) -> float | None:
    """Return None for an infinite value, since JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
