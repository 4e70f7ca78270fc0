"""The privacy target of a run: epsilon and delta, for which unit, against which observer."""

from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from fedveil.core.errors import require
from fedveil.core.values import number, whole
from fedveil.privacy.guarantee import Adversary, Neighbours, Unit
from fedveil.privacy.mechanism import sensitivity

NO_PROMISE = 0.1  # from this delta on, a guarantee is worthless


LARGEST_PERSON = 100  # most records of one person that are used


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The privacy target of a run: epsilon and delta, for which unit, against which observer.

    ``largest_person``: the most records of one person that are used, where persons are protected. Every mechanism is
    then one of records, and the promise is to all groups of so many of them (theory page: persons.md).
    """

    epsilon: float
    delta: float
    adversary: Adversary = "final-model"
    unit: Unit = "record"
    neighbours: Neighbours = "replace-one"
    largest_person: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", number("privacy.epsilon", self.epsilon))
        object.__setattr__(self, "delta", number("privacy.delta", self.delta))
        hint = "Beyond 40 nothing is private."
        require(1e-4 <= self.epsilon <= 40, "privacy.epsilon", "lie in [1e-4, 40]", self.epsilon, hint)
        require(1e-12 <= self.delta < 1, "privacy.delta", "lie in [1e-12, 1)", self.delta)
        for name, choices in (("adversary", Adversary), ("unit", Unit), ("neighbours", Neighbours)):
            given, words = getattr(self, name), get_args(choices)
            require(given in words, f"privacy.{name}", f"be one of {', '.join(words)}", given)
        most = whole("data.largest_person", self.largest_person)
        object.__setattr__(self, "largest_person", most)
        rule = f"lie between 1 and {LARGEST_PERSON}"
        require(1 <= most <= LARGEST_PERSON, "data.largest_person", rule, most)
        hint = 'Set privacy.unit = "person" with data.person_column and data.largest_person.'
        require(most == 1 or self.unit == "person", "data.largest_person", "go with persons", self.unit, hint)

    @property
    def of_records(self) -> "Target":
        """The same target for one record, as which the mechanisms of a run that protects persons are designed."""
        return self if self.unit != "person" else replace(self, unit="record", largest_person=1)

    @property
    def counted(self) -> Unit:
        """What sums are over: records, of which a person may have several, or clients."""
        return "client" if self.unit == "client" else "record"

    @property
    def sensitivity(self) -> float:
        """How far one unit moves a sum of contributions of norm 1 at most."""
        return self.largest_person * sensitivity(self.neighbours)

    def table(self) -> dict[str, Any]:
        """Return the [privacy] table of a plan that reads back to this value."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return values if self.unit == "person" else {key: values[key] for key in values if key != "largest_person"}

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
            f"privacy.delta = {self.delta:g} is above 1/{units}: publishing one of the {units} {self.counted}s, picked "
            f"at random, would meet it. Take a delta well below {1 / units:.2g}."
        )
