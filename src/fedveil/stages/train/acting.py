"""How an algorithm is carried out: in this process, at the aggregator, at a site.

Randomness is addressed by (label, index), so that a run that is started again repeats the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import Fails, Noising, nobody_fails, plain_sum
from fedveil.stages.protocol import Answering, Asking, Consortium, State
from fedveil.stages.train.base import Training
from fedveil.sums.seam import Summing
from fedveil.wire.content import Content
from fedveil.wire.keys import Card, Identity

# The result of training: the last model, and what it cost in messages.


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


class Done(Protocol):
    """The progress of a run; an algorithm that can resume keeps everything it needs in it."""

    @property
    def round(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Rounds:
    """The number of rounds done, for a run that cannot resume and repeats itself if it is started again."""

    round: int


@dataclass(frozen=True, slots=True, eq=False)
class Interim:
    """All that a run needs to go on after ``round`` rounds: rows of numbers, which nobody may change afterwards.

    ``dropped``: how many updates were dropped so far.
    """

    round: int
    rows: tuple[Vector, ...]
    dropped: int = 0

    @classmethod
    def read(cls, done: int, position: Vector, dropped: int) -> Interim:
        """Return the state that a checkpoint holds."""
        return cls(done, (position,), dropped)

    @property
    def position(self) -> Vector:
        """All rows as one, which a checkpoint keeps."""
        return np.concatenate(self.rows)

    def parts(self, lengths: Sequence[int]) -> list[Vector]:
        """Return the rows again, which must have these lengths in all."""
        row, wanted = self.position, sum(lengths)
        hint = "Remove it to begin the run again."
        require(row.size == wanted, "The checkpoint", f"hold {wanted} numbers for this plan", row.size, hint)
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        return [row[end - length : end].copy() for end, length in zip(ends, lengths, strict=True)]


def _unwatched(done: Done) -> None:
    """Ignore the progress of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a run in this process is given besides plan, records and key.

    ``add_up`` adds up a round and ``fails`` says who does not answer, if clients share the noise. ``begun``: a state of
    the same plan and key to resume from. ``watch`` is called after every round; it may keep the state only where nobody
    else can read it. ``public_loss``: the loss of a model on public records, for rules that choose by it; None where
    there are no such records. ``start``: the released model that a stage goes on from; None where it does not.
    """

    add_up: Summing = plain_sum
    fails: Fails = nobody_fails
    begun: Any = None
    watch: Callable[[Done], None] = _unwatched
    public_loss: Callable[[Vector], float] | None = None
    start: Vector | None = None

    def tick(self, done: int) -> None:
        """Tell how many rounds are done, of a run that cannot resume."""
        self.watch(Rounds(done))


Train = Callable[[Training, Records, Entropy, Session], Trained]


class TrainAsking(Asking, Protocol):
    """Whoever adds up the rounds of training; a state has a model."""

    def model(self, state: State) -> Vector:
        """Return the model of a state."""


class Asks(Protocol):
    """Asks sites one kind of question about a round; if one does not answer as wanted, the run stops."""

    def __call__(self, kind: str, turn: int, asked: Mapping[str, Content], wanted: str, /) -> Mapping[str, Content]: ...  # noqa: D102


class PartyWork(Protocol):
    """One party of an algorithm without a server, for one run."""

    def contribute(self, turn: int, asked: Content) -> Content:
        """Return this round's message, sealed for the leader."""

    def lead(self, turn: int, asked: Content) -> Content:
        """Return the new model, sealed for each of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """An algorithm without a server: the aggregator carries sealed messages between parties and reads none."""

    check_parties: Callable[[Consortium], None]
    model: Callable[[Training, list[str], Asks, Path, Callable[[int], None]], Vector]
    check_party: Callable[[Training, Content, Records, str, Mapping[str, Card]], None]
    party: Callable[
        [
            Training,
            str,
            Records,
            tuple[Identity, Mapping[str, Card]],
            Entropy,
            Path,
            Callable[[int], bytes],
        ],
        PartyWork,
    ]


def _nothing_more(plan: Training, records: Records, proposal: Content) -> None:
    """Accept any proposal: the algorithm adds nothing that a site would have to check."""


def _starts_anew(stage: Training, model: Vector) -> State:
    """Refuse to go on from a model: for no other algorithm is it proved what that forgets."""
    raise TypeError(f"{stage.method.kind} does not go on from a released model")


def _rounds_of_sums(stage: Training) -> Train | None:
    """Return None: the algorithm is rounds of sums, whatever its settings."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acts:
    """An algorithm as rounds of sums: ``asking`` where sums are known, ``answering`` where records are, its noise.

    ``going_on``: the state before the first round of a stage that goes on from a released model.
    ``sent``: how many messages of the sum's length clients send in all, and as many they receive. ``check_proposal``
    refuses, at a site, what the plan does not allow. ``own``: what trains in this process where the settings make no
    rounds of sums (clients that do not wait, parties without a server); its files say why. ``relay``: how parties
    without a server run across sites.
    """

    asking: Callable[[Training, Consortium, Entropy], TrainAsking] | None = None
    answering: Callable[[Training, Records, Content, Entropy], Answering] | None = None
    noising: Callable[[Training, Entropy], Noising] | None = None
    going_on: Callable[[Training, Vector], State] = _starts_anew
    sent: Callable[[Training], int] = lambda stage: 0
    check_proposal: Callable[[Training, Records, Content], None] = _nothing_more
    own: Callable[[Training], Train | None] = _rounds_of_sums
    relay: Relay | None = None


def acts_of(kind: str) -> Acts:
    """Return the functions that carry out an algorithm; they are imported now."""
    result: Acts = import_module(f"fedveil.stages.train.{kind}.acts").ACTS
    return result
