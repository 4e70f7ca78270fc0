"""The one act of every stage: a question, clients' bounded whole numbers, their noisy sum, and the next state.

A stage has two sides. ``Asking`` stands where sums are known: it holds no data, asks from its state alone, and moves on
by the sum. ``Answering`` stands where records are: at a site for the site's own clients, or in one process for all of
them at once. Neither knows how a sum comes about, or who draws its noise: that is the adder's (fedveil.stages.adding),
in one process, in shares, behind masks, encrypted, or across sites.

Randomness is addressed by (label, index), so that a turn that is asked again gets the same answer, to the bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.data.records import DataShape, Records
from fedveil.data.spec import Places
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

TAIL = 12.0  # deviations: the chance of a norm beyond sqrt(size) + 12 of them is below exp(-72)
LOOSE = 1 + 2.0**-20  # covers float errors of the limit itself
HERE = "here"  # the one site of a run in one process
Memory = tuple[Vector, ...]
Away = Callable[[int], bool]


def nobody(client: int) -> bool:
    """Return False: no client is away."""
    return False


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What is known after ``round`` turns of a stage: everything that goes into the next question, as one row."""

    round: int
    row: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Total:
    """The sum of a turn in grid steps: of clients' whole numbers, or of one party's numbers that are not rounded yet.

    ``noise``: what is added after rounding; nothing where the clients' numbers carry it.
    """

    parts: Whole | Vector
    noise: Whole | Vector | None = None

    @property
    def steps(self) -> Vector:
        """All of it, as whole numbers."""
        return self.onto(None)

    def onto(self, base: Vector | None) -> Vector:
        """Return a position in grid steps moved by the sum, in whole steps.

        Whole numbers are added exactly, after the position is rounded; numbers that one party holds are rounded once,
        with the position.
        """
        if self.parts.dtype == np.int64:
            result = self.parts if base is None else np.rint(base).astype(np.int64) + self.parts
        else:
            result = np.rint(self.parts if base is None else base + self.parts)
        return (result if self.noise is None else result + self.noise).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One site: the numbers of its clients in the study, and the number of each of its records."""

    clients: Indices
    records: Indices


@dataclass(frozen=True, slots=True, eq=False)
class Consortium:
    """All sites, what the plan may know of their data, and which client owns each record of the study.

    ``places``, ``blank_rows``: what any of the sites says about its own records, as in a plan. ``held``: the shape of
    what they hold out, if they do, and how many records that is for each client. ``left``: how many of the records have
    left, as the sites say.
    """

    members: Mapping[str, Member]
    shape: DataShape
    owner: Indices
    places: Places | None = None
    blank_rows: bool = False
    held: DataShape | None = None
    held_sizes: Indices | None = None
    left: int = 0

    @classmethod
    def here(cls, records: Records) -> "Consortium":
        """Return one site that has all clients."""
        clients, count = np.arange(records.clients, dtype=np.int64), np.arange(len(records), dtype=np.int64)
        return cls({HERE: Member(clients, count)}, records.shape, records.owner)

    @property
    def sizes(self) -> Indices:
        """How many records each client has."""
        return np.bincount(self.owner, minlength=self.shape.clients)


class Asking(Protocol):
    """A stage where its sums are known, without data."""

    @property
    def last(self) -> int:
        """The number of turns after which the stage ends; it may be drawn."""

    def start(self) -> State:
        """Return the state before the first turn."""

    def question(self, state: State, site: str | None = None) -> Content | None:
        """Return the next question: to everybody, or to one site; None if nobody there is asked.

        It depends on the state alone, so a question that is repeated is the same.
        """

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of a site that answer in a turn."""

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return a norm in grid steps that the sum of these clients exceeds with a chance below exp(-72)."""

    def advance(self, state: State, total: Total) -> State:
        """Return the state after one more turn, with this noisy sum."""

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return what a site must know besides the plan: the numbers of its clients, and what is drawn for it."""


class Answering(Protocol):
    """A stage where records are: all clients of a process, or those of one site.

    ``dropped``: how many contributions were no finite numbers so far, for the data holder alone. ``memory``: what its
    clients keep between turns.
    """

    dropped: int

    @property
    def memory(self) -> Memory: ...  # noqa: D102

    def recall(self, turn: int, memory: Memory) -> None:
        """Go back to what the memory was before a turn."""

    def whole(self, turn: int, asked: Content) -> Whole | Vector:
        """Return the sum of all clients' contributions in grid steps, computed at once; rounded by whoever uses it."""

    def parts(self, turn: int, asked: Content, away: Away = nobody) -> dict[int, Whole]:
        """Return each client's contribution by its number in the study, bounded as planned, without noise.

        Clients that are ``away`` compute nothing; one that cannot answer as planned is left out.
        """


def finite_row(asked: Content, name: str, size: int) -> Vector | None:
    """Return a row of a question, or None if it was not sent; anything but finite numbers of this size is refused."""
    row = asked.rows.get(name)
    if row is None:
        return None
    if row.dtype != np.float64 or row.shape != (size,) or not np.all(np.isfinite(row)):
        raise Refused("wrong-shape")
    return row.astype(np.float64, copy=False)


def needed_row(asked: Content, name: str, size: int) -> Vector:
    """Return a row of a question; refuse a question without it."""
    row = finite_row(asked, name, size)
    if row is None:
        raise Refused("no-model")
    return row
