"""What must be met, for whom, against whom."""

from dataclasses import dataclass
from typing import get_args

from fedveil.checks import require
from fedveil.guarantee import Adversary, Neighbours, Unit
from fedveil.values import number

NO_PROMISE = 0.1  # from this delta on nothing is promised that is worth its name


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

    def check_delta(self) -> None:
        """Refuse a new plan whose delta promises next to nothing; a plan that was made before is read as it is."""
        hint = "It should lie well below 1 over the number of records, such as 1e-5."
        require(self.delta < NO_PROMISE, "privacy.delta", f"be below {NO_PROMISE}", self.delta, hint)

    def loose_delta(self, units: int) -> str | None:
        """A warning where delta is so large that publishing a whole unit picked at random would be within it."""
        if self.delta * units <= 1:
            return None
        return (
            f"privacy.delta = {self.delta:g} is above 1/{units}: publishing one of the {units} {self.unit}s, picked at "
            f"random, would meet it. Take a delta well below {1 / units:.2g}."
        )
