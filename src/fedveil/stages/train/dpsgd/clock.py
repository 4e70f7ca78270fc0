"""Clients of different speed, a slow and lossy network, a server that mixes in windows: one queue of events.

A client continues with its own model until a newer global one arrives and replaces it. It waits after ``max_lag``
rounds without one, when its model has gone too far from the last global one, and in windows that it is not asked in.
The chances of the network come from its own public seed and do not depend on data.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from fedveil.core.values import Vector
from fedveil.stages.train.acting import Interim
from fedveil.stages.train.dpsgd.settings import Network
from fedveil.stages.train.optimiser import averaged

# The messages of the simulated network: enough to replay the server without a client.


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """An update on its way to the server. ``arrives_at``: None if it was lost; ``window``: the one that applied it."""

    client: int
    round: int
    sent_at: float
    arrives_at: float | None
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """A copy of a global model on its way to a client; ``version`` is the window that made it."""

    version: int
    client: int
    sent_at: float
    arrives_at: float | None


@dataclass(slots=True, eq=False)
class Journal:
    """Everything sent, in order of sending; with ``keep`` also the updates by (client, round) and the models.

    ``before``: how many messages and broadcasts were sent before a run was resumed; they are not listed.
    """

    keep: bool = False
    messages: list[Message] = field(default_factory=list)
    broadcasts: list[Broadcast] = field(default_factory=list)
    updates: dict[tuple[int, int], Vector] = field(default_factory=dict)
    models: dict[int, Vector] = field(default_factory=dict)
    windows: dict[tuple[int, int], int] = field(default_factory=dict)
    before: tuple[int, int] = (0, 0)

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of messages and of broadcasts sent in the whole run."""
        return self.before[0] + len(self.messages), self.before[1] + len(self.broadcasts)

    def sent(self, message: Message, update: Vector) -> None:
        """Record an update that a client has sent."""
        self.messages.append(message)
        if self.keep:
            self.updates[message.client, message.round] = update

    def finish(self) -> list[Message]:
        """Return all messages, each with the window that applied it."""
        return [
            Message(
                client=m.client,
                round=m.round,
                sent_at=m.sent_at,
                arrives_at=m.arrives_at,
                window=self.windows.get((m.client, m.round)),
            )
            for m in self.messages
        ]


# The simulated network between two windows, as rows of numbers that a checkpoint keeps and that are read back.
#
# All whole numbers here are far below 2**53, so a float holds each of them exactly.


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


_FINISH, _ARRIVE, _CLOSE, _DELIVER, _BEGIN = range(5)  # the order of events at the same time
_ROUND_LUCK, _UP_LUCK, _DOWN_LUCK, _ASK_LUCK = range(4)


class SharedWindows(Protocol):
    """How a window is mixed where its updates share one noise: only with enough clients, and with one update of each.

    ``least``: how many clients' updates make up a window; the others' noise would not be enough for them.
    """

    @property
    def least(self) -> int: ...  # noqa: D102

    def mix(self, model: Vector, window: int, updates: Mapping[int, Vector], /) -> Vector:
        """Return the state after a window, counted from 0, with these clients' updates."""


class Worker(Protocol):
    """What the clock needs of a client."""

    def update(self, model: Vector, turn: int, /) -> Vector:
        """Return what is subtracted from the model and sent in this round."""


@dataclass(slots=True, eq=False)
class _Desk:
    """The state of a client in the simulation."""

    worker: Worker
    rounds: int
    model: Vector
    received: Vector
    turn: int = 0
    version: int = 0
    behind: int = 0
    waiting: bool = False


@dataclass(slots=True, eq=False)
class Clock:
    """One run: ``project`` keeps models in their ball; ``tick`` is called with the number of updates sent.

    ``average``: the weight of the past in the moving average of the global models, which is then what is released.
    ``rest`` is called after every window but the last: there the run can be kept (:meth:`scene`) and resumed.
    ``shared``: how windows are mixed if clients share one noise. A client then answers for the model that it received,
    and does not step on by itself: its own update alone has too little noise.
    """

    network: Network
    weights: Sequence[float]
    model: Vector
    project: Callable[[Vector], Vector]
    journal: Journal
    tick: Callable[[int], None]
    average: float | None = None
    rest: Callable[[], None] = lambda: None
    shared: SharedWindows | None = None
    _mean: Vector | None = None
    _desks: list[_Desk] = field(default_factory=list)
    _queue: list[Event] = field(default_factory=list)
    _window: list[tuple[int, int, Vector]] = field(default_factory=list)
    _pushed: int = 0
    _open: int = 1

    def begin(self, workers: Sequence[Worker], rounds: Sequence[int]) -> None:
        """Let every client begin its first round, and open the first window."""
        self._desks = [
            _Desk(worker, count, self.model, self.model) for worker, count in zip(workers, rounds, strict=True)
        ]
        for client in range(len(workers)):
            self._push(0.0, _BEGIN, client)
        self._push(self.network.window, _CLOSE, 1)

    def run(self) -> Vector:
        """Return the global model after all clients have done their rounds and all remaining updates arrived.

        Return the moving average of the global models instead, if one is asked for.
        """
        does: dict[int, Callable[..., None]] = {
            _FINISH: self._finish,
            _ARRIVE: self._arrive,
            _DELIVER: self._deliver,
            _BEGIN: self._begin,
        }
        while self._queue:
            now, kind, _, what = heapq.heappop(self._queue)
            if kind == _CLOSE:
                if self._close(now, what[0]):
                    break
                self.rest()
            else:
                does[kind](now, *what)
        return self.model if self._mean is None else self._mean

    @property
    def _left(self) -> int:
        """How many rounds all clients together have to do."""
        return sum(desk.rounds - desk.turn for desk in self._desks)

    @property
    def _travelling(self) -> int:
        """How many updates are on their way."""
        return sum(kind == _ARRIVE for _, kind, _, _ in self._queue)

    @property
    def started(self) -> list[int]:
        """How many rounds each client has begun."""
        running = {what[0] for _, kind, _, what in self._queue if kind == _FINISH}
        return [desk.turn + (client in running) for client, desk in enumerate(self._desks)]

    def scene(self) -> Scene:
        """Return all that the simulation needs to go on after a window, but for what its clients remember."""
        sent, received = self.journal.counts
        return Scene(
            counts=(self._pushed, self._travelling, self._left, self._open, sent, received),
            model=self.model,
            mean=self._mean,
            desks=[(d.turn, d.version, d.behind, d.waiting, d.model, d.received) for d in self._desks],
            events=tuple(self._queue),
        )

    def resume(self, scene: Scene, workers: Sequence[Worker], rounds: Sequence[int]) -> None:
        """Go on where :meth:`scene` was taken, instead of beginning."""
        self._pushed, _, _, self._open, *counts = scene.counts
        self.journal.before = (counts[0], counts[1])
        self.model, self._mean = scene.model, scene.mean
        self._desks = [
            _Desk(worker, count, model, received, turn, version, behind, waiting)
            for worker, count, (turn, version, behind, waiting, model, received) in zip(
                workers, rounds, scene.desks, strict=True
            )
        ]
        self._queue = list(scene.events)
        heapq.heapify(self._queue)

    def _push(self, time: float, kind: int, *what: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (time, kind, self._pushed, what))

    def _begin(self, now: float, client: int) -> None:
        """Start a round, unless none is left or the client has to wait for a newer model."""
        desk = self._desks[client]
        desk.waiting = desk.turn < desk.rounds and self._must_wait(client)
        if desk.waiting or desk.turn == desk.rounds:
            return
        update = desk.worker.update(desk.model, desk.turn)
        if self.network.window_steps is not None and self.shared is None:
            # by the window that the client's last global model opened
            update = self.network.step(desk.version) * update
        self._push(now + self._duration(client, desk.turn), _FINISH, client, update)

    def _must_wait(self, client: int) -> bool:
        """Return whether a client is too far behind, has gone too far on its own, or is not asked in this window.

        All of it is computed from models that it received and from its own noised updates.
        """
        desk, most = self._desks[client], self.network.max_deviation
        if desk.behind >= self.network.max_lag or not self._asked(client, self._open):
            return True
        return most is not None and bool(np.linalg.norm(desk.model - desk.received) > most)

    def _asked(self, client: int, window: int) -> bool:
        """Return whether a client is asked in a window: all are, or so many of them, drawn from the public seed."""
        count = self.network.participants
        if count is None:
            return True
        order = self._luck(_ASK_LUCK, 0, window).permutation(len(self._desks))
        return client in order[:count]

    def _finish(self, now: float, client: int, update: Vector) -> None:
        """Step on the current model, send the update, and continue."""
        desk = self._desks[client]
        if self.shared is None:
            desk.model = self.project(desk.model - update)
        at = self._arrival(now, _UP_LUCK, client, desk.turn)
        self.journal.sent(Message(client=client, round=desk.turn, sent_at=now, arrives_at=at), update)
        if at is not None:
            self._push(at, _ARRIVE, client, desk.turn, update)
        desk.turn += 1
        desk.behind += 1
        self.tick(self.journal.counts[0])
        self._push(now, _BEGIN, client)

    def _arrive(self, now: float, client: int, turn: int, update: Vector) -> None:
        self._window.append((client, turn, update))

    def _close(self, now: float, window: int) -> bool:
        """Mix the updates of the window, independently of their order of arrival, and broadcast.

        Return True at the end.
        """
        travelling = self._travelling
        self._open = window + 1
        waiting = self._mix_local(window) if self.shared is None else self._mix_shared(self.shared, now, window)
        if self.journal.keep:
            self.journal.models[window] = self.model
        if self._left == 0 and travelling == 0 and not waiting:
            return True
        for client, desk in enumerate(self._desks):
            if desk.turn < desk.rounds and self._asked(client, window + 1):
                at = self._arrival(now, _DOWN_LUCK, client, window)
                self.journal.broadcasts.append(Broadcast(version=window, client=client, sent_at=now, arrives_at=at))
                if at is not None:
                    self._push(at, _DELIVER, client, window, self.model)
        self._push((window + 1) * self.network.window, _CLOSE, window + 1)
        return False

    def _mix_local(self, window: int) -> bool:
        """Mix all updates of a window, each of which carries its own noise."""
        step = np.zeros_like(self.model)
        for client, turn, update in sorted(self._window, key=lambda item: item[:2]):
            step += self.weights[client] * update
            self.journal.windows[client, turn] = window
        self._window.clear()
        self.model = self.project(self.model - step)
        if self.average is not None:
            past = self.model if self._mean is None else self._mean
            self._mean = averaged(self.average, past, self.model, window)
        return False

    def _mix_shared(self, shared: SharedWindows, now: float, window: int) -> bool:
        """Mix one update of each client, if there are enough of them; the others wait for the next window.

        Return whether enough are waiting for one more window.
        """
        first, rest = dict[int, tuple[int, Vector]](), list[tuple[int, int, Vector]]()
        for client, turn, update in sorted(self._window, key=lambda item: item[:2]):
            if client in first:
                rest.append((client, turn, update))
            else:
                first[client] = (turn, update)
        if len(first) >= shared.least:
            self.model = shared.mix(self.model, window - 1, {client: update for client, (_, update) in first.items()})
            self.journal.windows |= {(client, turn): window for client, (turn, _) in first.items()}
        else:
            rest = list(self._window)
        self._window.clear()
        for client, turn, update in rest:  # as if they had come just now, so that a resumed run has them too
            self._push(now, _ARRIVE, client, turn, update)
        return len({client for client, _, _ in rest}) >= shared.least

    def _deliver(self, now: float, client: int, version: int, model: Vector) -> None:
        """Replace the client's model by a newer global one; ignore one that was overtaken on its way."""
        desk = self._desks[client]
        if version <= desk.version:
            return
        desk.model, desk.received, desk.version, desk.behind = model, model, version, 0
        if desk.waiting:
            desk.waiting = False
            self._push(now, _BEGIN, client)

    def _luck(self, kind: int, client: int, turn: int) -> np.random.Generator:
        """Return the random generator of an address, so that chances do not depend on the order of events."""
        return np.random.default_rng([self.network.seed, kind, client, turn])

    def _duration(self, client: int, turn: int) -> float:
        speed = self.network.speeds[client] if self.network.speeds else 1.0
        if self.network.jitter == 0:
            return 1 / speed
        return (1 + self.network.jitter * (2 * self._luck(_ROUND_LUCK, client, turn).random() - 1)) / speed

    def _arrival(self, now: float, kind: int, client: int, turn: int) -> float | None:
        """Return when a message sent now arrives; None if it is lost."""
        if self.network.instant:
            return now
        luck = self._luck(kind, client, turn)
        lost = luck.random() < self.network.loss
        return None if lost else now + self.network.delay * luck.exponential()
