"""How an algorithm is carried out: in this process, at the aggregator, at a site.

Randomness is addressed by (label, index), so that a run that is started again repeats the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedveil.algorithms.across_sites import Consortium, Serving, SiteWork
from fedveil.algorithms.shares import Fails, nobody_fails, plain_sum
from fedveil.algorithms.trained import Trained
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.errors import BadValue
from fedveil.noise.entropy import Entropy
from fedveil.sums.seam import Summing
from fedveil.trust import Trust
from fedveil.values import Vector
from fedveil.wire.content import Content
from fedveil.wire.keys import Card, Identity

if TYPE_CHECKING:
    from fedveil.plan import Plan


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
    there are no such records.
    """

    add_up: Summing = plain_sum
    fails: Fails = nobody_fails
    begun: Any = None
    watch: Callable[[Done], None] = _unwatched
    public_loss: Callable[[Vector], float] | None = None

    def tick(self, done: int) -> None:
        """Tell how many rounds are done, of a run that cannot resume."""
        self.watch(Rounds(done))


Train = Callable[["Plan", Records, Entropy, Session], Trained]


def _no_shares(plan: Plan, records: Records, entropy: Entropy, session: Session) -> Trained:
    """Refuse: the algorithm has no noise that clients could share."""
    raise BadValue(f"[trust] must be left out for {plan.method.kind}.")


Serve = Callable[["Plan", Consortium, Entropy], Serving]


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
    model: Callable[[Plan, list[str], Asks, Path, Callable[[int], None]], Vector]
    check_party: Callable[[Plan, Content, Records, str, Mapping[str, Card]], None]
    party: Callable[
        [
            Plan,
            str,
            Records,
            tuple[Identity, Mapping[str, Card]],
            Entropy,
            Path,
            Callable[[int], bytes],
        ],
        PartyWork,
    ]


def _nothing_more(plan: Plan, records: Records, proposal: Content) -> None:
    """Accept any proposal: the algorithm adds nothing that a site would have to check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acts:
    """``train``: in this process, where one party draws the noise; ``train_shares``: where every client adds a share.

    ``serve`` and ``work``: the two sides of a run across sites; None if there is no server but a ``relay``.
    ``check_proposal`` refuses, at a site, what the plan does not allow. ``resumed``: makes a state (with a position and
    a count of dropped updates) from a checkpoint's numbers; None if a stopped run starts again. A run that tells its
    :class:`Rounds` alone starts again too.
    """

    train: Train
    train_shares: Train = _no_shares
    serve: Serve | None = None
    work: Callable[[Plan, Records, Content, Entropy, Path], SiteWork] | None = None
    check_proposal: Callable[[Plan, Records, Content], None] = _nothing_more
    relay: Relay | None = None
    resumed: Callable[[int, Vector, int], Any] | None = None

    def trainer(self, trust: Trust) -> Train:
        """Return what trains in this process under this trust."""
        return {"central": self.train, "shares": self.train_shares}[trust.noise]
