"""Correlated noise in shares: every client sends its last update again, weighted, and the server takes that off.

Instead of noise that remembers earlier rounds the clients send updates that do: round t of ``C x + z`` in place of
round t of ``x + C**-1 z``, which the server computes from it. So a client's share of the noise is fresh in every round,
and clients that are missing leave no gap in anybody's noise. Proof: docs/theory/correlated-noise.md, "In shares of the
clients".
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, final

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Matrix, Vector
from fedveil.stages.adding import bounded
from fedveil.stages.protocol import Memory
from fedveil.stages.train.correlation import Attendance, Correlation
from fedveil.sums.seam import Whole

if TYPE_CHECKING:
    from fedveil.stages.train.fedavg.method import FedAvg


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
    found, correlation = total.copy(), method.correlated
    if correlation is None or len(past) == 0:
        return found, past
    for weight, row in zip(correlation.factor.column[1:], past, strict=True):
        found -= weight * row
    return found, np.concatenate([found[None], past[:-1]])


def nothing_past(method: FedAvg, size: int) -> Matrix:
    """Return what there is to take off the first sum: nothing, in as many rows as the matrix remembers rounds."""
    return np.zeros((method.correlated.factor.memory if method.streams and method.correlated is not None else 0, size))


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
