"""Federated averaging where records are: clipped updates in whole grid steps, of each client or of all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import bounded
from fedveil.stages.protocol import Away, Memory, needed_row, nobody
from fedveil.stages.train.correlation import Attendance
from fedveil.stages.train.fedavg.drawing import own_draws
from fedveil.stages.train.fedavg.local import Held, Local, trained
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.stages.train.fedavg.resending import Resending
from fedveil.stages.train.fedavg.steps import method_of, resends, sent_steps, summed, weights_of
from fedveil.stages.train.stage import Training
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


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
        if method.correlated is not None:  # who took part when is a promise that the noise rests on
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
        found: dict[int, Whole] = {}
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
                found[number] = part
        return found

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
        if self.method.adaptive is None:
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
