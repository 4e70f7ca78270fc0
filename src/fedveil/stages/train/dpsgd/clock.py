"""Clients of different speed, a slow and lossy network, a server that mixes in windows: one queue of events.

A client continues with its own model until a newer global one arrives and replaces it. It waits after ``max_lag``
rounds without one, when its model has gone too far from the last global one, and in windows that it is not asked in.
The chances of the network come from its own public seed and do not depend on data.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fedveil.core.values import Vector
from fedveil.stages.train.dpsgd.messages import Broadcast, Journal, Message
from fedveil.stages.train.dpsgd.network import Network
from fedveil.stages.train.dpsgd.scene import Event, Scene
from fedveil.stages.train.optimiser import averaged

_FINISH, _ARRIVE, _CLOSE, _DELIVER, _BEGIN = range(5)  # the order of events at the same time
_ROUND_LUCK, _UP_LUCK, _DOWN_LUCK, _ASK_LUCK = range(4)


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
    """

    network: Network
    weights: Sequence[float]
    model: Vector
    project: Callable[[Vector], Vector]
    journal: Journal
    tick: Callable[[int], None]
    average: float | None = None
    rest: Callable[[], None] = lambda: None
    _mean: Vector | None = None
    _desks: list[_Desk] = field(default_factory=list)
    _queue: list[Event] = field(default_factory=list)
    _window: list[tuple[int, int, Vector]] = field(default_factory=list)
    _pushed: int = 0
    _travelling: int = 0
    _left: int = 0
    _open: int = 1

    def begin(self, workers: Sequence[Worker], rounds: Sequence[int]) -> None:
        """Let every client begin its first round, and open the first window."""
        self._desks = [
            _Desk(worker, count, self.model, self.model) for worker, count in zip(workers, rounds, strict=True)
        ]
        self._left = sum(rounds)
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
        self._pushed, self._travelling, self._left, self._open, *counts = scene.counts
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
        if self.network.window_steps is not None:  # the window that the client's last global model opened
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
        desk.model = self.project(desk.model - update)
        at = self._arrival(now, _UP_LUCK, client, desk.turn)
        self.journal.sent(Message(client=client, round=desk.turn, sent_at=now, arrives_at=at), update)
        if at is not None:
            self._travelling += 1
            self._push(at, _ARRIVE, client, desk.turn, update)
        desk.turn += 1
        desk.behind += 1
        self._left -= 1
        self.tick(self.journal.counts[0])
        self._push(now, _BEGIN, client)

    def _arrive(self, now: float, client: int, turn: int, update: Vector) -> None:
        self._travelling -= 1
        self._window.append((client, turn, update))

    def _close(self, now: float, window: int) -> bool:
        """Mix the updates of the window, independently of their order of arrival, and broadcast.

        Return True at the end.
        """
        step = np.zeros_like(self.model)
        for client, turn, update in sorted(self._window, key=lambda item: item[:2]):
            step += self.weights[client] * update
            self.journal.windows[client, turn] = window
        self._window.clear()
        self._open = window + 1
        self.model = self.project(self.model - step)
        if self.average is not None:
            past = self.model if self._mean is None else self._mean
            self._mean = averaged(self.average, past, self.model, window)
        if self.journal.keep:
            self.journal.models[window] = self.model
        if self._left == 0 and self._travelling == 0:
            return True
        for client, desk in enumerate(self._desks):
            if desk.turn < desk.rounds and self._asked(client, window + 1):
                at = self._arrival(now, _DOWN_LUCK, client, window)
                self.journal.broadcasts.append(Broadcast(version=window, client=client, sent_at=now, arrives_at=at))
                if at is not None:
                    self._push(at, _DELIVER, client, window, self.model)
        self._push((window + 1) * self.network.window, _CLOSE, window + 1)
        return False

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
