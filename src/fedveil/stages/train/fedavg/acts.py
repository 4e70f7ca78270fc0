"""How federated averaging is carried out: as rounds of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, sqrt
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy, permutation
from fedveil.stages.adding import Noising, bounded
from fedveil.stages.protocol import LOOSE, TAIL, Away, Consortium, Memory, State, Total, needed_row, nobody
from fedveil.stages.train.acting import Acts
from fedveil.stages.train.base import Training
from fedveil.stages.train.correlation import Attendance, Correlation
from fedveil.stages.train.draws import DrawnOrder, Draws
from fedveil.stages.train.fedavg.local import Held, Local, trained
from fedveil.stages.train.fedavg.method import FedAvg, groups_of
from fedveil.stages.train.fedavg.steps import (
    Averaged,
    advanced,
    method_of,
    noise_source,
    resends,
    sent_steps,
    share_steps,
    summed,
    weights_of,
)
from fedveil.stages.train.optimiser import begin, from_row, row_length, to_row
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

if TYPE_CHECKING:
    from fedveil.stages.train.fedavg.method import FedAvg


# Federated averaging where records are: clipped updates in whole grid steps, of each client or of all at once.

# Who takes part in which round: all clients, a cohort that is drawn for them, or clients that draw for themselves.
#
# Where clients share the noise and draw (``own_draws``), each draws from its own key, and a client that drew nothing
# sends its noise alone: then not even the server learns the draws. Otherwise whoever conducts the run draws from its
# key. All of it is a function of a key and the round alone. Page: docs/fedavg.md.


LABEL = "draws of client"
_COINS = 2**16  # tossed at once, for as many rounds (up to 64) as so many coins reach for all clients


def own_draws(method: FedAvg, clients: int, numbers: Sequence[int], entropy: Entropy) -> Callable[[int], Indices]:
    """Return which of these clients, by their numbers in the study, draw a round for themselves."""
    drawn = Draws(_order(method, clients), dict.fromkeys(numbers, 1), entropy, LABEL)
    named = np.asarray(numbers, dtype=np.int64)
    return lambda turn: named[drawn.joined(turn)]


def cohorts_of(method: FedAvg, clients: int, entropy: Entropy) -> Callable[[int], Indices]:
    """Return who takes part in each round, in rising order, possibly nobody."""
    if method.own_draws:
        return own_draws(method, clients, range(clients), entropy)
    if method.sampling == "independent":
        return Draws(_order(method, clients), {0: clients}, entropy, "cohort").joined
    return lambda turn: cohort_of(method.at(turn), clients, entropy, turn)


def senders_of(method: FedAvg, clients: int, entropy: Entropy, turn: int) -> Indices:
    """Return who sends in a round with shared noise: all, if clients draw for themselves or send updates again."""
    now = method.at(turn)
    every = now.own_draws or now.streams
    return np.arange(clients, dtype=np.int64) if every else cohort_of(now, clients, entropy, turn)


def cohort_of(method: FedAvg, clients: int, entropy: Entropy, turn: int) -> Indices:
    """Return a round's cohort, drawn by whoever conducts the run: a function of its key and the round."""
    match method.sampling:
        case "all":
            return np.arange(clients, dtype=np.int64)
        case "poisson":
            words = entropy.words("cohort", turn, clients)
            # rounded down, so that nobody takes part more often than planned
            limit = int(method.cohort / clients * 2**64)
            return np.flatnonzero(words < np.uint64(min(limit, 2**64 - 1))).astype(np.int64)
        case "cyclic":  # dealt into groups once, which take turns
            groups = groups_of(method, clients)
            return np.sort(permutation(entropy, clients, "cyclic order")[turn % groups :: groups])
        case "fixed-size":
            return np.sort(permutation(entropy, clients, f"cohort {turn}")[: int(method.cohort)])
        case _:
            return cohorts_of(method, clients, entropy)(turn)


def _order(method: FedAvg, clients: int) -> DrawnOrder:
    """Return how clients draw; a function of the plan alone, so that all who take part agree on it."""
    if method.picks:
        return DrawnOrder(order="independent", rounds=method.picks)
    block = max(1, min(64, _COINS // clients))  # not by the rounds: a shorter run draws as a longer one begins
    return DrawnOrder(order="poisson", rounds=1, rate=min(1.0, method.cohort / clients), block=block)


# Correlated noise in shares: every client sends its last update again, weighted, and the server takes that off.
#
# Instead of noise that remembers earlier rounds the clients send updates that do: round t of ``C x + z`` in place of
# round t of ``x + C**-1 z``, which the server computes from it. So a client's share of the noise is fresh in every
# round, and clients that are missing leave no gap in anybody's noise. Proof: docs/theory/correlated-noise.md, "In
# shares of the clients".


def weighted(part: Whole, weight: float, limit: Fraction) -> Whole | None:
    """Return an update times a weight of the matrix, cut to whole steps towards zero; None if it exceeds its bound.

    ``limit``: the bound on the update in grid steps. A product in floats errs by far less than the room that clipping
    leaves below the bound, so what was computed as planned always passes.

    >>> weighted(np.array([10, -3]), 0.5, Fraction(11)).tolist()
    [5, -1]
    """
    return bounded(np.trunc(weight * part.astype(np.float64)), abs(Fraction(weight)) * limit)


def taken_off(method: FedAvg, past: Matrix, total: Vector) -> tuple[Vector, Matrix]:
    """Return the noised sum of the round's own updates, and what to take off later sums: the latest such sum first.

    It is computed from noised sums alone.
    """
    result, correlation = total.copy(), method.correlated
    if not correlation or len(past) == 0:
        return result, past
    for weight, row in zip(correlation.factor.column[1:], past, strict=True):
        result -= weight * row
    return result, np.concatenate([result[None], past[:-1]])


def nothing_past(method: FedAvg, size: int) -> Matrix:
    """Return what there is to take off the first sum: nothing, in as many rows as the matrix remembers rounds."""
    return np.zeros((method.correlated.factor.memory if method.streams and method.correlated else 0, size))


@final
@dataclass(slots=True, eq=False)
class Resending:
    """The last update of each client, in whole grid steps, and when the clients took part.

    The pattern lets a client take part again only after its last update has left the bands, so one is enough.
    """

    correlation: Correlation
    attendance: Attendance
    parts: dict[int, Whole]

    @classmethod
    def begin(cls, correlation: Correlation, clients: int) -> Resending:
        """Return the memory of clients that have not taken part yet."""
        return cls(correlation, Attendance(correlation, clients), {})

    def keep(self, turn: int, client: int, part: Whole) -> None:
        """Keep a client's update of this round; refuse a participation that the pattern does not allow."""
        self.attendance.note(turn, np.array([client], dtype=np.int64))
        self.parts[client] = part

    def allows(self, turn: int, joined: set[int], others: set[int]) -> bool:
        """Return whether these clients may take part in a round: no pattern is broken, and nobody did who is not named.

        A round that is asked again must name the same clients.
        """
        named = np.array(sorted(joined), dtype=np.int64)
        return self.attendance.allows(turn, named) and all(self.attendance.last_of(other) < turn for other in others)

    def due(self, turn: int, client: int, size: int, limit: Fraction) -> Whole | None:
        """Return what a client sends in a round of the update that it keeps: zero if it has left the bands."""
        age, column = turn - self.attendance.last_of(client), self.correlation.factor.column
        if client not in self.parts or age >= len(column):
            return np.zeros(size, dtype=np.int64)
        require(age >= 0, "round", "be no earlier than the last update that was kept", turn)
        return weighted(self.parts[client], column[age], limit)

    def rows(self) -> Memory:
        """Return the memory as rows of numbers: whose updates, the updates, and when clients took part."""
        clients = sorted(self.parts)
        parts = np.concatenate([self.parts[client] for client in clients]) if clients else np.zeros(0)
        return tuple(np.asarray(row, dtype=np.float64) for row in (clients, parts, self.attendance.row()))

    def restore(self, memory: Memory) -> None:
        """Go back to what :meth:`rows` was; updates are below 2**53, so floats hold them."""
        clients, parts, attendance = (row.astype(np.int64) for row in memory)
        self.attendance.restore(attendance)
        each = parts.reshape(clients.size, -1) if clients.size else ()
        self.parts = dict(zip(clients.tolist(), each, strict=True))


def contribution(
    now: FedAvg,
    local: Local,
    unit: float,
    turn: int,
    model: Vector,
    clip: float,
    held: Held,
    client: int,
    weight: float,
    entropy: Entropy,
) -> Whole | None:
    """Return a client's update, clipped, weighted and cut to whole grid steps; its norm is checked in exact integers.

    An update that is not finite counts as zero, and is sent with its noise like any other, because silence would tell
    the server about the client's records. None: the result exceeds its bound, so it was not computed as planned.
    """
    change = trained(local, model, held, client, entropy, turn) - model
    steps = sent_steps(now, change, clip, weight, unit)
    return bounded(np.zeros(model.size + now.extra_sums) if steps is None else steps, limit_of(now, weight, unit))


def limit_of(now: FedAvg, weight: float, unit: float) -> Fraction:
    """Return the bound on what a client of this weight contributes, in grid steps."""
    return Fraction(weight) * Fraction(now.scale) / Fraction(unit)


@final
@dataclass(eq=False)
class FedAvgAnswering:
    """``numbers``: of these clients in the whole study.

    What clients keep between rounds is, with correlated noise in shares, the update that they send again.
    """

    stage: Training
    records: Records
    numbers: tuple[int, ...]
    entropy: Entropy
    dropped: int = 0

    def __post_init__(self) -> None:
        self.method, self.local, self.unit = method_of(self.stage), Local.of(self.stage), 2.0**self.stage.grid
        self.held, self.weights = Held.of(self.records), weights_of(self.method, self.records.sizes)
        clients, method = self.stage.data.clients, self.method
        self.joined: Callable[[int], Indices] | None = None
        if method.own_draws:
            self.joined = own_draws(method, clients, self.numbers, self.entropy)
        self.resending, self.attendance = None, None
        if method.correlated:  # who took part when is a promise that the noise rests on
            if resends(self.stage):
                self.resending = Resending.begin(method.correlated, clients)
            else:
                self.attendance = Attendance(method.correlated, clients)

    @property
    def memory(self) -> Memory:
        """The updates that are sent again, and when clients took part."""
        if self.resending is not None:
            return self.resending.rows()
        return () if self.attendance is None else (self.attendance.row().astype(np.float64),)

    def recall(self, turn: int, memory: Memory) -> None:
        """Go back to what the memory was before a round."""
        if self.resending is not None:
            self.resending.restore(memory)
        elif self.attendance is not None:
            self.attendance.restore(memory[0].astype(np.int64))

    def whole(self, turn: int, asked: Content) -> Vector:
        """Return the exact sum of the updates of all clients that take part."""
        model, asks = self._asked(turn, asked)
        active = self._active(turn, asked, asks)
        if self.attendance is not None:
            self.attendance.note(turn, active)
        now, clip = self.method.at(turn), self._clip(turn, asked)
        total, lost = summed(
            now, self.local, model, self.held, active, self.weights, clip, self.unit, self.entropy, turn
        )
        self.dropped += lost
        return total

    def parts(self, turn: int, asked: Content, away: Away = nobody) -> dict[int, Whole]:
        """Return what the clients that were asked contribute: their updates, or zeros where they drew nothing."""
        if not 0 <= turn < self.method.rounds:
            raise Refused("no-such-round")
        model, asks = self._asked(turn, asked)
        active, now, clip = set(self._active(turn, asked, asks).tolist()), self.method.at(turn), self._clip(turn, asked)
        result: dict[int, Whole] = {}
        for number in asks.tolist():
            if away(number):
                continue
            part: Whole | None = np.zeros(self.stage.sum_length, dtype=np.int64)
            weight = float(self.weights[self.numbers.index(number)])
            if number in active:
                own = self._alone(number)
                part = contribution(now, self.local, self.unit, turn, model, clip, own, number, weight, self.entropy)
            part = self._sent_again(now, turn, number, weight, part, number in active)
            if part is not None:
                result[number] = part
        return result

    def _asked(self, turn: int, asked: Content) -> tuple[Vector, Indices]:
        model, row = needed_row(asked, "model", self.stage.dimension), asked.rows.get("clients")
        if row is None or row.dtype != np.int64 or not np.isin(row, self.numbers).all():
            raise Refused("malformed")
        return model, np.unique(row).astype(np.int64)

    def _active(self, turn: int, asked: Content, asks: Indices) -> Indices:
        """Return which of the clients that send have an update of this round.

        Where clients draw for themselves, or send updates again, all of them send in every round.
        """
        if (self.joined is not None or self.resending is not None) and asks.size != len(self.numbers):
            raise Refused("malformed")
        if self.joined is not None:
            return self.joined(turn)
        if self.resending is None:
            return asks
        row = asked.rows.get("joined")
        if row is None or row.dtype != np.int64 or not np.isin(row, asks).all():
            raise Refused("malformed")
        joined, every = set(row.tolist()), set(asks.tolist())
        if not self.resending.allows(turn, joined, every - joined):
            raise Refused("other-cohort")
        return np.unique(row).astype(np.int64)

    def _sent_again(
        self, now: FedAvg, turn: int, client: int, weight: float, part: Whole | None, new: bool
    ) -> Whole | None:
        """Return what a client contributes: its update, or with correlated noise in shares its last one, weighted."""
        if self.resending is None or part is None:
            return part
        if new:
            self.resending.keep(turn, client, part)
        return self.resending.due(turn, client, part.size, limit_of(now, weight, self.unit))

    def _clip(self, turn: int, asked: Content) -> float:
        """Return the bound on this round's updates; a bound that lies costs no privacy, as sums are in units of it."""
        if not self.method.adaptive:
            return self.method.at(turn).update_norm
        row = asked.rows.get("clip")
        if row is None or row.dtype != np.float64 or row.shape != (1,) or not 1e-100 <= row[0] <= 1e100:
            raise Refused("malformed")
        return float(row[0])

    def _alone(self, number: int) -> Held:
        """Return one client's records under its number in the study, from which its local order is drawn."""
        place, held = self.numbers.index(number), self.held
        rows = slice(int(held.starts[place]), int(held.starts[place + 1]))
        starts = np.zeros(number + 2, dtype=np.int64)
        starts[-1] = rows.stop - rows.start
        return Held(held.features[rows], held.targets[rows], held.norms[rows], starts, held.products)


# Federated averaging where sums are known: who is asked in a round, and the server's step.


@final
@dataclass(frozen=True, slots=True, eq=False)
class FedAvgAsking:
    """The row of a state is the model, what the server's optimiser keeps (its velocity), what is taken off later sums
    where clients send their updates again, and the present bound on updates.
    """

    stage: Training
    method: FedAvg
    members: Consortium
    entropy: Entropy

    @classmethod
    def make(cls, stage: Training, members: Consortium, entropy: Entropy) -> FedAvgAsking:
        """Who takes part is drawn from this key, unless clients draw for themselves."""
        return cls(stage, method_of(stage), members, entropy)

    @property
    def last(self) -> int:
        """Number of rounds."""
        return int(self.method.rounds)

    def start(self) -> State:
        """Return a model of zeros, before the first round."""
        size, past = self.stage.dimension, self._nothing_past()
        memory = to_row(begin(self.method.optimiser, size))
        return State(0, np.concatenate([np.zeros(size), memory, past.reshape(-1), [self.method.update_norm]]))

    def model(self, state: State) -> Vector:
        """Return the first part of the row."""
        return state.row[: self.stage.dimension]

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients."""
        return {"numbers": self.members.members[site].clients}

    def question(self, state: State, site: str | None = None) -> Content | None:
        """Return the model, an adaptive bound, and the numbers of the round's clients.

        Where all clients send and some are asked for an update, ``joined`` names those.
        """
        turn, rows = state.round, {"model": self.model(state)}
        if self.method.adaptive:
            rows["clip"] = state.row[-1:]
        senders = self._senders(turn)
        mine = senders if site is None else senders[np.isin(senders, self.members.members[site].clients)]
        if site is not None and mine.size == 0:
            return None
        return Content(rows={**rows, "clients": mine, **self._joined(turn, mine)})

    def _senders(self, turn: int) -> Indices:
        find = cohort_of if self.method.streams and not resends(self.stage) else senders_of
        return find(self.method, self.stage.data.clients, self.entropy, turn)

    def _nothing_past(self) -> Matrix:
        size = self.stage.sum_length
        return nothing_past(self.method, size) if resends(self.stage) else np.zeros((0, size))

    def _joined(self, turn: int, mine: Indices) -> dict[str, Indices]:
        if not resends(self.stage):
            return {}
        return {"joined": mine[np.isin(mine, cohort_of(self.method, self.stage.data.clients, self.entropy, turn))]}

    def clients(self, turn: int, site: str) -> set[int]:
        """Return the clients of this site that send in the round: those drawn, or all if they draw themselves."""
        return set(self._senders(turn).tolist()) & set(self.members.members[site].clients.tolist())

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit from clipped updates, noise and rounding."""
        size, unit = self.stage.sum_length, 2.0**self.stage.grid
        bound = len(clients) * self.method.at(turn).scale / unit
        noise = sqrt(len(clients)) * share_steps(self.stage, turn) * (sqrt(size) + TAIL)
        return ceil((bound + noise) * LOOSE + 2 * len(clients) * sqrt(size))

    def advance(self, state: State, total: Total) -> State:
        """Return the state after the server's part of a round."""
        stage, size, now = self.stage, self.stage.dimension, self.method.at(state.round)
        end = size + row_length(now.optimiser, size)
        past = self._nothing_past()
        own, past = taken_off(self.method, state.row[end : end + past.size].reshape(past.shape), total.steps)
        clip = float(state.row[-1]) if now.adaptive else now.update_norm
        before = Averaged(self.model(state), from_row(now.optimiser, state.row[size:end]), clip)
        unit = 2.0**stage.grid / now.divisor(stage.data)
        after = advanced(now, before, state.round, own * unit, stage.radius)
        row = np.concatenate([after.model, to_row(after.memory), past.reshape(-1), [after.clip]])
        return State(state.round + 1, row)


def _answering(stage: Training, records: Records, proposal: Content, entropy: Entropy) -> FedAvgAnswering:
    return FedAvgAnswering(stage, records, tuple(int(number) for number in proposal.rows["numbers"]), entropy)


def _noising(stage: Training, entropy: Entropy) -> Noising:
    size = stage.sum_length
    return Noising(
        whole=noise_source(method_of(stage), size, 2.0**stage.grid, entropy),
        share=lambda turn: share_steps(stage, turn),
        size=lambda turn: size,
    )


def _sent(stage: Training) -> int:
    """As planned, because who really took part is secret."""
    return method_of(stage).traffic(stage.setup, together=False)[0]


ACTS = Acts(asking=FedAvgAsking.make, answering=_answering, noising=_noising, sent=_sent)
