"""The simulated network between two windows, as rows of numbers that a checkpoint keeps and that are read back.

All whole numbers here are far below 2**53, so a float holds each of them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedveil.core.values import Vector
from fedveil.stages.train.acting import Interim

_COUNTS, _DESK, _EVENT = 6, 6, 7  # numbers of each
_HEAD: Final = _COUNTS + 4

Event = tuple[float, int, int, tuple[Any, ...]]  # when, its kind, its number, at most two whole numbers and a vector
Place = tuple[int, int, int, bool, Vector, Vector]  # of a client: turn, version, behind, waiting, model, received


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """``counts``: six whole numbers of the clock; ``mean``: the moving average of the models, if there is one."""

    counts: tuple[int, ...]
    model: Vector
    mean: Vector | None
    desks: Sequence[Place]
    events: Sequence[Event]

    def rows(self) -> tuple[Vector, ...]:
        """Return all of it as rows; a vector that several desks and events hold is one row."""
        shelf = _Shelf()
        first = [shelf.put(self.model), shelf.put(self.mean)]
        table = list[float]()
        for turn, version, behind, waiting, model, received in self.desks:
            table += [turn, version, behind, waiting, shelf.put(model), shelf.put(received)]
        for time, kind, number, what in self.events:
            whole = [item for item in what if not isinstance(item, np.ndarray)]
            carried = what[-1] if isinstance(what[-1], np.ndarray) else None
            table += [time, kind, number, len(whole), *[*whole, 0][:2], shelf.put(carried)]
        head = [len(shelf.vectors), len(self.events), *self.counts, *first]
        return (np.array([*head, *table], dtype=np.float64), *shelf.vectors)


class _Shelf:
    """Numbers vectors by identity; None has the number -1."""

    def __init__(self) -> None:
        self.vectors: list[Vector] = []
        self._places: dict[int, int] = {}

    def put(self, vector: Vector | None) -> int:
        if vector is None:
            return -1
        place = self._places.setdefault(id(vector), len(self.vectors))
        if place == len(self.vectors):
            self.vectors.append(vector)
        return place


def scene_of(kept: Interim, clients: int, size: int, memories: Sequence[int]) -> tuple[Scene, list[Vector]]:
    """Return the scene that its rows describe, and what the clients remembered, which comes after them."""
    row = kept.position
    shelved, queued = (int(number) for number in row[:2]) if row.size >= _HEAD else (0, 0)
    if not 0 <= shelved + queued <= row.size:
        shelved, queued = 0, 0  # no scene has these numbers: they are refused below
    lengths = [_HEAD, *[_DESK] * clients, *[_EVENT] * queued, *[size] * shelved, *memories]
    parts = iter(kept.parts(lengths))
    head = [int(number) for number in next(parts)]
    desks = [[int(number) for number in next(parts)] for _ in range(clients)]
    events = [next(parts).tolist() for _ in range(queued)]
    vectors = [next(parts) for _ in range(shelved)]
    model, mean = head[-2:]
    scene = Scene(
        counts=tuple(head[2:-2]),
        model=vectors[model],
        mean=None if mean < 0 else vectors[mean],
        desks=[(a, b, c, bool(waits), vectors[own], vectors[got]) for a, b, c, waits, own, got in desks],
        events=[_event(numbers, vectors) for numbers in events],
    )
    return scene, list(parts)


def _event(numbers: Sequence[float], vectors: Sequence[Vector]) -> Event:
    time, kind, number, count, *whole = numbers[:6]
    carried = int(numbers[6])
    what: tuple[Any, ...] = tuple(int(item) for item in whole[: int(count)])
    return time, int(kind), int(number), what if carried < 0 else (*what, vectors[carried])
