"""One client of DP-SGD: the records of a round and their clipped sum; with local noise also its noise and its step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Indices, Vector
from fedveil.data.rows import row_norms
from fedveil.noise.correlated import CorrelatedNoise
from fedveil.noise.entropy import Entropy, ranked
from fedveil.noise.grid import Source, rounded_normal
from fedveil.stages.train import draws
from fedveil.stages.train.adaptive_clip import AdaptiveClip, FixedClip, no_belief
from fedveil.stages.train.base import Training
from fedveil.stages.train.correlation import Attendance
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import ClientSettings, Sampling, class_rate
from fedveil.stages.train.optimiser import (
    Optimiser,
    OptimiserState,
    advance,
    begin,
    decayed,
    from_row,
    heading,
    row_length,
    to_row,
)
from fedveil.sums import coding
from fedveil.sums.coding import random_k, rotated, rotated_back, to_levels, top_k

# Which records of a client are in a round: by draws of their own, a uniformly random set, or a part of a shuffle.


class Sampler:
    """The batches of one client in a segment: a function of the key, the client, the segment and its round only."""

    def __init__(
        self,
        settings: ClientSettings,
        sampling: Sampling,
        records: int,
        entropy: Entropy,
        client: int,
        segment: int = 0,
        classes: int = 1,
    ) -> None:
        self._settings, self._sampling, self._records, self._classes = settings, sampling, records, classes
        name = f"dpsgd batch of segment {segment}" if segment else "dpsgd batch"
        self._entropy, self._label = entropy, f"{name} {client}"
        self._shuffle = lru_cache(maxsize=1)(self._shuffled)
        self._picks: draws.Draws | None = None
        if sampling == "independent":
            how = draws.DrawnOrder(order="independent", rounds=settings.batches_a_pass)
            self._picks = draws.Draws(how, {client: records}, entropy, name)

    def batch(self, turn: int) -> Indices:
        """Return the places of the records in this round, ascending (for a shuffle, in its order)."""
        if self._picks is not None:
            return self._picks.joined(turn)
        if self._sampling == "shuffled":
            per_pass, size = self._settings.batches_a_pass, self._settings.size(self._records)
            which, part = divmod(turn, per_pass)
            return self._shuffle(which)[part * size : (part + 1) * size]
        if self._sampling == "cyclic":  # the same batch in every pass, so that a record comes back after a whole one
            return self._shuffle(0)[turn % self._settings.batches_a_pass :: self._settings.batches_a_pass]
        source = self._entropy.stream(self._label, turn)
        if self._sampling == "poisson" and self._classes > 1:
            mine = np.sort(self._class(turn % self._classes))
            return mine[coins(source, class_rate(self._settings.rate, self._classes), mine.size)]
        if self._sampling == "poisson":
            return coins(source, self._settings.rate, self._records)
        return subset(source, self._settings.size(self._records), self._records)

    def _class(self, number: int) -> Indices:
        """Return the records of a class; they are dealt into classes once, by an address that no round has."""
        return self._shuffle(2**63)[number :: self._classes]

    def _shuffled(self, which: int) -> Indices:
        source = self._entropy.stream(self._label, which)
        while True:
            order = ranked(source.words(self._records))
            if order is not None:
                return order


def coins(source: Source, rate: float, records: int) -> Indices:
    """Return the records that join, each with its own coin of probability from ``rate - 2**-64`` to ``rate``."""
    return np.flatnonzero(draws.coins(source, rate, 1, records)[0])


def subset(source: Source, size: int, records: int) -> Indices:
    """Return a uniformly random set of ``size`` places: the smallest words, redrawn if two tie for the last place."""
    if size == records:
        return np.arange(records, dtype=np.int64)
    while True:
        words = source.words(records)
        last = np.partition(words, size - 1)[size - 1]
        chosen = np.flatnonzero(words <= last)
        if chosen.size == size:
            return chosen


# Smaller messages from updates that are already noised: this is post-processing and costs no privacy.


def compressed(method: DpSgd, update: Vector, source: Source) -> Vector:
    """Return what arrives of a noised update.

    Random coordinates and random rounding keep its mean; keeping the largest coordinates does not.
    """
    kept = coding.kept_of(method.compression.keep, update.size)
    match method.compression.kind:
        case "random-k":
            return random_k(update, subset(source, kept, update.size))
        case "top-k":
            return top_k(update, kept)
        case "quantised":
            return to_levels(update, method.compression.levels, source.words(update.size))
        case "rotated":
            seed = source.words(1).tobytes()
            moved = to_levels(rotated(update, seed), method.compression.levels, source.words(update.size))
            return rotated_back(moved, seed)
        case _:
            return update


def message_bytes(method: DpSgd, size: int) -> int:
    """Return the bytes of one update."""
    how = method.compression
    return coding.message_bytes(how.kind, size, keep=how.keep, levels=how.levels)


_LARGEST = 2.0**52  # grid steps: sums with noise stay exact in float64
_NO_CLIP = 1e99
_PART = 512  # rows gathered and used at a time: they stay in the processor's cache
_TORCH_PART = 8192  # of a torch model, whose blocks are filled better from many rows


@dataclass(slots=True, eq=False)
class ClientSums:
    """A client's records and the sums of its batches, without noise: the one thing that is computed from records.

    ``dropped``: how many records had a gradient that is no finite number.
    """

    plan: Training
    method: DpSgd
    index: int
    features: Vector
    targets: Vector
    entropy: Entropy
    dropped: int = 0
    settings: ClientSettings = field(init=False)
    _segment: int = field(init=False)
    _first: int = field(init=False)
    _part: int = field(init=False)
    _norms: Vector = field(init=False)
    _room: Vector = field(init=False)
    _sampler: Sampler = field(init=False)
    _attendance: Attendance | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.settings, self._segment, self._first = self.method.settings(self.index), 0, 0
        rows, width = self.features.shape
        self._norms = row_norms(self.features)
        apart = not self.plan.model.linear and self.method.apart(self.plan.model)
        self._part = _TORCH_PART if apart else _PART
        self._room = np.empty((min(rows, self._part), width))
        if self.method.correlated:
            self._attendance = Attendance(self.method.correlated, rows)
        classes = self.method.classes
        self._sampler = Sampler(self.settings, self.method.sampling, rows, self.entropy, self.index, classes=classes)

    @property
    def rounds(self) -> int:
        """The number of this client's rounds, in all segments."""
        return self.method.rounds_of(self.index)

    @property
    def divisor(self) -> float:
        """The planned batch size: rate times records, whatever the draws say."""
        return self.method.divisor(self.settings, self.targets.size)

    def enter(self, turn: int) -> bool:
        """Take the settings of the segment that a round belongs to; a segment draws its own batches.

        Return whether the round is in another segment than the last one.
        """
        segment, first = self.method.segment(self.index, turn)
        if segment == self._segment:
            return False
        self.settings, self._segment, self._first = self.method.settings(self.index, turn), segment, first
        sampling, rows = self.method.sampling, self.targets.size
        self._sampler = Sampler(self.settings, sampling, rows, self.entropy, self.index, segment)
        return True

    def attend_again(self, done: int) -> None:
        """Count again who took part in the first ``done`` rounds; batches are functions of the key and the round."""
        if not self.method.correlated:
            return
        self._attendance = Attendance(self.method.correlated, self.targets.size)  # it may have gone farther already
        for turn in range(done):
            self._batch(turn)

    def _batch(self, turn: int) -> NDArray[np.int64]:
        """Return the records of a round: none in rounds after the client's last, which then carry noise alone."""
        if not self.method.uses_records(self.index, turn):
            return np.empty(0, dtype=np.int64)
        chosen = self._sampler.batch(turn - self._first)
        if self._attendance is not None:
            self._attendance.note(turn, chosen)
        return chosen

    def batch_sum(self, model: Vector, turn: int) -> Vector:
        """Return the sum of the round's clipped gradients; with batch clipping the clipped mean."""
        return self.total(model, self._batch(turn))

    def total(self, model: Vector, chosen: NDArray[np.int64]) -> Vector:
        """Return the sum of clipped gradients of these records; with batch clipping the clipped mean.

        Where every record picks its round, each is rounded to the grid on its own: it adds the same to any batch.
        """
        clip = self.settings.clip if self.method.clipping == "individual" else _NO_CLIP
        grain = 2.0**self.plan.grid if self.method.apart(self.plan.model) else None
        loss, total, dropped = self.plan.model.loss, np.zeros(self.plan.dimension), 0
        for first in range(0, chosen.size, self._part):
            part = chosen[first : first + self._part]
            rows = np.take(self.features, part, axis=0, out=self._room[: part.size], mode="clip")
            gradient, lost = loss.gradient(
                model, rows, self.targets[part], clip=clip, norms=self._norms[part], grain=grain
            )
            total += gradient
            dropped += lost
        self.dropped += dropped
        if self.method.clipping == "individual":
            return total
        mean = total / self.divisor
        norm = float(np.sqrt(np.sum(mean * mean)))
        return mean if norm <= self.settings.clip else mean * (self.settings.clip / norm)

    def sum_in_clips(self, rule: AdaptiveClip, clip: float, model: Vector, turn: int) -> Vector:
        """Return the round's sum in grid steps and in units of the present clip, with the records' votes after it.

        A record's gradient and its vote together have norm at most 1. Each record is computed and rounded on its own.
        """
        unit, chosen, loss = 2.0**self.plan.grid, self._batch(turn), self.plan.model.loss
        total, votes = np.zeros(self.plan.dimension + 1), 0
        for first in range(0, chosen.size, self._part):
            part = chosen[first : first + self._part]
            rows = np.take(self.features, part, axis=0, out=self._room[: part.size], mode="clip")
            targets, norms, weights = self.targets[part], self._norms[part], np.full(part.size, rule.of_sum / clip)
            gradient, lost = loss.gradient(model, rows, targets, clip=clip, weights=weights, norms=norms, grain=unit)
            total[:-1] += gradient
            self.dropped += lost
            lengths = loss.lengths(model, rows, targets, norms)
            level = rule.level(clip)
            votes += int(np.count_nonzero(lengths <= level)) - int(np.count_nonzero(lengths > level))
        steps = np.rint(total / unit)
        steps[-1] = votes * rule.vote(within=True, weight=1.0, unit=unit)
        return steps


@dataclass(slots=True, eq=False)
class Client(ClientSums):
    """A client that adds all of its noise itself, and steps by itself: its memory between rounds.

    Remembered are what its optimiser keeps (the velocity) and the present clip.
    """

    clip: float = field(init=False)
    adaptive: AdaptiveClip | FixedClip = field(init=False)
    optimiser: Optimiser = field(init=False)
    state: OptimiserState = field(init=False)
    belief: Vector = field(init=False)
    _start: Vector | float = field(init=False)
    _stream: CorrelatedNoise | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        ClientSums.__post_init__(self)
        self.clip, self.adaptive = self.settings.clip, self.method.adaptive
        self.optimiser = self.method.optimiser
        self.state, self.belief = begin(self.optimiser, self.plan.dimension), no_belief()
        self._start = self.plan.model.loss.start(self.plan.data.features) if self.optimiser.weight_decay else 0.0

    def enter(self, turn: int) -> bool:
        """Take the settings of a round's segment, and with them its clip."""
        if not ClientSums.enter(self, turn):
            return False
        self.clip = self.settings.clip
        return True

    @property
    def memory(self) -> Vector:
        """What a client must remember for its next round: its optimiser's state, then its clip if that is adaptive.

        A clip that follows a belief has that between the two.
        """
        row = to_row(self.state)
        if not self.adaptive:
            return row
        between = [self.belief] if self.adaptive.rate is None else []
        return np.concatenate([row, *between, [self.clip]])

    def remember(self, memory: Vector) -> None:
        """Go back to what :attr:`memory` was; a clip that never was one is its start (a memory of zeros)."""
        self.state = from_row(self.optimiser, memory[: row_length(self.optimiser, self.plan.dimension)])
        if self.adaptive:
            self.clip = float(memory[-1]) if memory[-1] > 0 else self.settings.clip
            if self.adaptive.rate is None:
                self.belief = memory[row_length(self.optimiser, self.plan.dimension) : -1].copy()

    def resume(self, memory: Vector, done: int) -> None:
        """Go on after ``done`` rounds: remember what :attr:`memory` was then, and count again who took part in them.

        Correlated noise draws its earlier rounds again.
        """
        self.enter(max(done - 1, 0))
        self.remember(memory)
        self.attend_again(done)

    def update(self, model: Vector, turn: int) -> Vector:
        """Return what the client subtracts from its model and sends in this round.

        Everything is computed after the noise. While an adaptive clip is so large that its noise would throw the model
        about, steps are shorter in proportion.
        """
        self.enter(turn)
        shorter = self.method.shorter(self.index, self.clip)
        pull = add_answer(self.plan, model, self.release(model, turn), turn) + self.plan.model.l2 * model
        self.state = advance(self.optimiser, self.state, pull if shorter == 1.0 else shorter * pull)
        toward = decayed(self.optimiser, heading(self.optimiser, self.state), model + self._start)
        step = self.settings.step(turn - self._first) * toward
        if self.method.compression.kind == "none":
            return step
        return compressed(self.method, step, self.entropy.stream(f"dpsgd compression {self.index}", turn))

    def release(self, model: Vector, turn: int) -> Vector:
        """Return the noised mean gradient of the round's batch. An empty batch sends its noise like any other."""
        self.enter(turn)
        if self.adaptive:
            return self._adapted(self.adaptive, self.noised_units(self.adaptive, model, turn), turn)
        unit, settings = 2.0**self.plan.grid, self.settings
        total = self.batch_sum(model, turn)
        noised = np.rint(total / unit)
        noised += self._noise(turn, settings.noise * settings.clip / unit, total.size)
        np.clip(noised, -_LARGEST, _LARGEST, out=noised)
        noised *= unit if self.method.clipping == "batch" else unit / self.divisor
        return noised

    def _noise(self, turn: int, steps: float, size: int) -> Vector | NDArray[np.int64]:
        """Return the noise of a round in whole grid steps, correlated with that of earlier rounds if the plan says so.

        It is a function of the key and the round alone.
        """
        label, correlation = f"dpsgd noise {self.index}", self.method.correlated
        if not correlation:
            return rounded_normal(self.entropy.stream(label, turn), steps, size)
        if self._stream is None:
            self._stream = CorrelatedNoise(correlation.factor, self.entropy, label, steps, size, self.rounds)
        return self._stream.at(turn)

    def noised_units(self, rule: AdaptiveClip, model: Vector, turn: int) -> Vector:
        """Return the noised sum of the round's batch in units of the present clip, the noised votes after it."""
        unit, steps = 2.0**self.plan.grid, self.sum_in_clips(rule, self.clip, model, turn)
        stream = self.entropy.stream(f"dpsgd noise {self.index}", turn)
        steps += rounded_normal(stream, self.settings.noise / unit, steps.size)
        np.clip(steps, -_LARGEST, _LARGEST, out=steps)
        return steps * unit

    def _adapted(self, rule: AdaptiveClip, noised: Vector, turn: int) -> Vector:
        """Return the mean gradient that a noised sum stands for, and move the clip by its votes."""
        mean = noised[:-1] * (self.clip / (rule.of_sum * self.divisor))
        start, noise, done = self.settings.clip, self.settings.noise, (turn + 1) / self.settings.rounds
        self.clip, self.belief = rule.next_clip(
            self.clip, self.belief, start=start, noise=noise, votes=float(noised[-1]), batch=self.divisor, done=done
        )
        return mean


def add_answer(plan: Training, model: Vector, direction: Vector, turn: int) -> Vector:
    """Return a noised direction with what a torch module adds to it from the model and the round: post-processing."""
    loss, features = plan.model.loss, plan.data.features
    return loss.add_answer(model, direction, features, turn, plan.model.clip or 1.0)
