"""What must be met, for whom, against whom."""

from dataclasses import dataclass
from typing import get_args

from fedveil.checks import require
from fedveil.guarantee import Adversary, Neighbours, Unit
from fedveil.mechanism import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What must be met, for whom, against whom."""

    epsilon: float
    delta: float
    adversary: Adversary = "final-model"
    unit: Unit = "record"
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", number("privacy.epsilon", self.epsilon))
        object.__setattr__(self, "delta", number("privacy.delta", self.delta))
        hint = "Beyond 40 nothing is private."
        require(1e-4 <= self.epsilon <= 40, "privacy.epsilon", "lie in [1e-4, 40]", self.epsilon, hint)
        require(1e-12 <= self.delta < 1, "privacy.delta", "lie in [1e-12, 1)", self.delta)
        for name, choices in (("adversary", Adversary), ("unit", Unit), ("neighbours", Neighbours)):
            given, words = getattr(self, name), get_args(choices)
            require(given in words, f"privacy.{name}", f"be one of {', '.join(words)}", given)
