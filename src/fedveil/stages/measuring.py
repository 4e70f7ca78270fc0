"""The stages that are noisy sums and nothing else: preparation, evaluation, profile, tables of a generator, and others.

Such a stage is a *program*: an ordinary function that computes its result from noisy sums, and asks ``by`` for each of
them (``by.noisy_sum``) with what every record contributes to it. In one process ``by`` is a :class:`Measurer`, which
adds up at once. Across machines the same function runs on both sides: whoever adds up runs it without records, and a
site, which has the sums so far, runs it on its own records up to the first sum that is not known (:func:`after`).
So both learn the same bits as a run in one process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_laplace, rounded_normal
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.adding import Adder, Fails, Noising, nobody_fails, plain_sum, share_deviation
from fedveil.stages.protocol import Away, Memory, nobody
from fedveil.stages.sums import ALL, STEPS, Measurement, Sums, by_client, whole_client
from fedveil.sums.seam import Summing, Whole
from fedveil.wire.content import Content

Result = TypeVar("Result")


class Measures(Protocol):
    """Whoever gives noisy sums: a measurement carried out now, or one that was."""

    @property
    def present(self) -> Indices:
        """The rows that are not blank."""

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        """Return the noisy sum of all units' contributions, in the units of the measurement."""


def drawn_at_once(planned: Measurement, entropy: Entropy, size: int) -> Whole:
    """Return all of a measurement's noise on so many numbers, where one party draws it."""
    sample = rounded_laplace if planned.law == "laplace" else rounded_normal
    return sample(entropy.stream(f"prepare {planned.name}"), planned.deviation, size)


def noising_of(planned: Sequence[Measurement], trust: Trust, clients: int, entropy: Entropy) -> Noising:
    """Return the noise of measurements, addressed by their names; turn ``k`` is measurement ``k``.

    Every client sends as many numbers as the plan says, whatever is counted: those that nobody contributes to are noise
    alone.
    """

    def share(turn: int) -> float:
        law = planned[turn].law
        require(law == "gaussian", "prepare.law", "be gaussian where clients add the noise in shares", law)
        return share_deviation(planned[turn].deviation, trust, clients)

    return Noising(
        whole=lambda turn: drawn_at_once(planned[turn], entropy, planned[turn].size),
        share=share,
        size=lambda turn: planned[turn].size,
        label=lambda turn, client: (f"prepare {planned[turn].name} share {client}", 0),
    )


@final
@dataclass(eq=False)
class Contributing:
    """Implements Answering: what the rows of some clients contribute to one measurement.

    ``numbers``: of these clients in the whole study; ``owner``: whose each row is, counted among them.
    """

    target: Target
    owner: Indices
    numbers: Sequence[int]
    present: Indices
    contributions: Sums
    dropped: int = 0
    memory: Memory = ()

    def recall(self, turn: int, memory: Memory) -> None:
        """Do nothing: clients keep nothing between sums."""

    def whole(self, turn: int, asked: Content) -> Whole:
        """Return the sum over all units."""
        if self.target.unit != "client":
            return self.contributions(self.present)
        own = whole_client(self.contributions)
        rows = list(by_client(self.owner, len(self.numbers), self.present))
        return sum((own(one) for one in rows[1:]), start=own(rows[0]))

    def parts(self, turn: int, asked: Content, away: Away = nobody) -> dict[int, Whole]:
        """Return what each client contributes."""
        own = self.contributions if self.target.unit != "client" else whole_client(self.contributions)
        rows = by_client(self.owner, len(self.numbers), self.present)
        return {number: own(one) for number, one in zip(self.numbers, rows, strict=True) if not away(number)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurer:
    """Measures in this process: who owns which row, who is protected, and how sums are added up.

    ``present``: the rows that are not blank. ``add_up`` and ``fails`` matter where the clients share the noise.
    ``served``: whether there is a server, which may be trusted with the noise; without one, clients share it.
    ``names``: of the measurements that the stage may have, in order.
    """

    owner: Indices
    clients: int
    present: Indices
    target: Target
    entropy: Entropy
    trust: Trust = CENTRAL
    add_up: Summing = plain_sum
    fails: Fails = nobody_fails
    served: bool = True
    names: Sequence[str] = ALL

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        """Return the noisy sum of all units' contributions, in the units of the measurement."""
        require(size <= planned.size, f"prepare.{planned.name}", f"have at most {planned.size} numbers", size)
        turn = list(self.names).index(planned.name)
        noising = noising_of({turn: planned}, self.trust, self.clients, self.entropy)  # type: ignore[arg-type]

        def whole(turn: int) -> Whole:  # as many numbers as are counted: a plan may have room for far more
            return drawn_at_once(planned, self.entropy, size)

        adder = Adder(
            answering=Contributing(self.target, self.owner, range(self.clients), self.present, contributions),
            noising=Noising(whole, noising.share, noising.size, noising.label),
            entropy=self.entropy,
            trust=self.trust,
            cohort=lambda turn: self.clients,
            shared=self.trust.all_send or not (self.served or planned.threshold is not None),
            add_up=self.add_up,
            fails=self.fails,
        )
        return adder.total(turn, Content()).steps[:size] / STEPS


@final
@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The next measurement, what rows contribute to it, and how many numbers that is."""

    planned: Measurement
    contributions: Sums
    size: int


class _NextError(Exception):
    """Carries the measurement that is next out of a program."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked.planned.name)
        self.asked = asked


@final
@dataclass(slots=True)
class Known:
    """Gives the sums that are known, in order, and stops the program at the first that is not.

    ``check`` sees every measurement whose sum is known: whoever computes it anew must ask for the same.
    """

    sums: Sequence[Vector]
    present: Indices
    check: Callable[[int, Asked], None] = lambda place, asked: None
    _place: int = field(default=0, init=False)

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        """Return the next sum that is known."""
        asked, place = Asked(planned, contributions, size), self._place
        if place >= len(self.sums):
            raise _NextError(asked)
        self.check(place, asked)
        self._place += 1
        return self.sums[place][:size]  # a plan has room for more numbers than are counted


@final
@dataclass(slots=True)
class Kept:
    """Measures as ``by`` does, and keeps what was asked for and the sums."""

    by: Measures
    asked: list[tuple[str, int]] = field(default_factory=list)
    sums: list[Vector] = field(default_factory=list)

    @property
    def present(self) -> Indices:
        """The rows that are not blank."""
        return self.by.present

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        """Return the noisy sum of all units' contributions, in the units of the measurement."""
        self.asked.append((planned.name, size))
        self.sums.append(self.by.noisy_sum(planned, contributions, size))
        return self.sums[-1]

    def known(self) -> Known:
        """Return what gives the same sums again, without a record; whoever asks must ask for the same."""

        def check(place: int, asked: Asked) -> None:
            same = self.asked[place] == (asked.planned.name, asked.size)
            require(same, "A stage", "ask for sums that do not depend on rows", asked.planned.name)

        return Known(self.sums, np.zeros(0, dtype=np.int64), check)


Program = Callable[[Measures], Result]


def after(program: Program[Result], known: Known) -> Asked | Result:
    """Return the measurement that a program asks for after these sums; its result, if there is none."""
    try:
        return program(known)
    except _NextError as found:
        return found.asked
