"""The privacy target of a run: epsilon and delta, for which unit, against which observer."""

from dataclasses import dataclass
from typing import get_args

from fedveil.core.errors import require
from fedveil.core.values import number
from fedveil.privacy.guarantee import Adversary, Neighbours, Unit

NO_PROMISE = 0.1  # from this delta on, a guarantee is worthless


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The privacy target of a run: epsilon and delta, for which unit, against which observer."""

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
        """Refuse a delta that promises next to nothing.

        Called for new plans only; existing plans are read as they are.
        """
        hint = "It should lie well below 1 over the number of records, such as 1e-5."
        require(self.delta < NO_PROMISE, "privacy.delta", f"be below {NO_PROMISE}", self.delta, hint)

    def loose_delta(self, units: int) -> str | None:
        """Return a warning if delta is so large that publishing one whole unit, picked at random, would satisfy it."""
        if self.delta * units <= 1:
            return None
        return (
            f"privacy.delta = {self.delta:g} is above 1/{units}: publishing one of the {units} {self.unit}s, picked at "
            f"random, would meet it. Take a delta well below {1 / units:.2g}."
        )
