"""A stage as a plan states it: how many sums it asks for, how long each is, and how many clients answer.

Whoever adds up and every site work the same numbers out from the plan, without believing each other.
"""

from dataclasses import dataclass
from typing import Protocol

from fedveil.stages.sums import NoisySums


class Stage(Protocol):
    """``name``: what people call it; ``turns``: the most sums that it asks for; ``served``: if somebody adds up.

    ``sums``: the noisy sums of a stage that is these and nothing else; none for one that trains.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def turns(self) -> int: ...  # noqa: D102
    @property
    def served(self) -> bool: ...  # noqa: D102
    @property
    def sums(self) -> NoisySums: ...  # noqa: D102

    def size(self, turn: int) -> int:
        """Return how many numbers the sum of a turn has."""

    def cohort(self, turn: int) -> int:
        """Return how many clients answer in a turn, by which the least number of answers is decided."""


@dataclass(frozen=True, slots=True)
class SumsStage:
    """A stage that is noisy sums over all clients and nothing else (fedveil.stages.measuring)."""

    name: str
    sums: NoisySums
    clients: int
    served: bool = True

    @property
    def turns(self) -> int:
        """One for each measurement."""
        return len(self.sums.measurements)

    def size(self, turn: int) -> int:
        """Return how many numbers a measurement has at most."""
        return self.sums.measurements[turn].size

    def cohort(self, turn: int) -> int:
        """Return the number of clients: all of them answer."""
        return self.clients
