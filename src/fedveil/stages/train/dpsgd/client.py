"""One client of DP-SGD: a batch, its clipped sum, noise on the grid, a step. Everything it sends is already noised."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Vector
from fedveil.data.rows import row_norms
from fedveil.noise.correlated import CorrelatedNoise
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.stages.train.adaptive_clip import AdaptiveClip
from fedveil.stages.train.clip_belief import believed, moved, no_belief, vote_deviation
from fedveil.stages.train.correlation import Attendance, Correlation
from fedveil.stages.train.dpsgd.batch import Sampler
from fedveil.stages.train.dpsgd.client_settings import ClientSettings
from fedveil.stages.train.dpsgd.compress import compressed
from fedveil.stages.train.dpsgd.deep import add_answer
from fedveil.stages.train.dpsgd.method import DpSgd
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
from fedveil.stages.train.stage import Training

_LARGEST = 2.0**52  # grid steps: sums with noise stay exact in float64
_NO_CLIP = 1e99
_PART = 512  # rows gathered and used at a time: they stay in the processor's cache
_TORCH_PART = 8192  # of a torch model, whose blocks are filled better from many rows


@dataclass(slots=True, eq=False)
class Client:
    """A client's records, its settings, and its memory between rounds.

    Remembered are what its optimiser keeps (the velocity), the present clip, and how many records failed.
    """

    plan: Training
    method: DpSgd
    index: int
    features: Vector
    targets: Vector
    entropy: Entropy
    dropped: int = 0
    settings: ClientSettings = field(init=False)
    clip: float = field(init=False)
    adaptive: AdaptiveClip | None = field(init=False)
    _part: int = field(init=False)
    _norms: Vector = field(init=False)
    _room: Vector = field(init=False)
    optimiser: Optimiser = field(init=False)
    state: OptimiserState = field(init=False)
    belief: Vector = field(init=False)
    _start: Vector | float = field(init=False)
    _segment: int = field(init=False)
    _first: int = field(init=False)
    _sampler: Sampler = field(init=False)
    _correlation: Correlation | None = field(init=False)
    _stream: CorrelatedNoise | None = field(init=False, default=None)
    _attendance: Attendance | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.settings, self._segment, self._first = self.method.settings(self.index), 0, 0
        self.clip, self.adaptive = self.settings.clip, self.method.adaptive
        rows, width = self.features.shape
        self._norms = row_norms(self.features)
        apart = not self.plan.model.linear and self.method.apart(self.plan.model)
        self._part = _TORCH_PART if apart else _PART
        self._room = np.empty((min(rows, self._part), width))
        self.optimiser = self.method.optimiser
        self.state, self.belief = begin(self.optimiser, self.plan.dimension), no_belief()
        self._start = self.plan.model.loss.start(self.plan.data.features) if self.optimiser.weight_decay else 0.0
        self._correlation, sampling, classes = self.method.correlated, self.method.sampling, self.method.classes
        if self._correlation is not None:
            self._attendance = Attendance(self._correlation, rows)
        self._sampler = Sampler(self.settings, sampling, rows, self.entropy, self.index, classes=classes)

    @property
    def rounds(self) -> int:
        """The number of this client's rounds, in all segments."""
        return self.method.rounds_of(self.index)

    def _enter(self, turn: int) -> None:
        """Take the settings of the segment that a round belongs to; a segment draws its own batches."""
        segment, first = self.method.segment(self.index, turn)
        if segment == self._segment:
            return
        self.settings, self._segment, self._first = self.method.settings(self.index, turn), segment, first
        self.clip, sampling, rows = self.settings.clip, self.method.sampling, self.targets.size
        self._sampler = Sampler(self.settings, sampling, rows, self.entropy, self.index, segment)

    def _batch(self, turn: int) -> NDArray[np.int64]:
        """Return the records of a round: none in rounds after the client's last, which then carry noise alone."""
        if not self.method.uses_records(self.index, turn):
            return np.empty(0, dtype=np.int64)
        found = self._sampler.batch(turn - self._first)
        if self._attendance is not None:
            self._attendance.note(turn, found)
        return found

    @property
    def divisor(self) -> float:
        """The planned batch size: rate times records, whatever the draws say."""
        return self.method.divisor(self.settings, self.targets.size)

    @property
    def memory(self) -> Vector:
        """What a client must remember for its next round: its optimiser's state, then its clip if that is adaptive.

        A clip that follows a belief has that between the two.
        """
        row = to_row(self.state)
        if self.adaptive is None:
            return row
        between = [self.belief] if self.adaptive.rate is None else []
        return np.concatenate([row, *between, [self.clip]])

    def remember(self, memory: Vector) -> None:
        """Go back to what :attr:`memory` was; a clip that never was one is its start (a memory of zeros)."""
        self.state = from_row(self.optimiser, memory[: row_length(self.optimiser, self.plan.dimension)])
        if self.adaptive is not None:
            self.clip = float(memory[-1]) if memory[-1] > 0 else self.settings.clip
            if self.adaptive.rate is None:
                self.belief = memory[row_length(self.optimiser, self.plan.dimension) : -1].copy()

    def resume(self, memory: Vector, done: int) -> None:
        """Go on after ``done`` rounds: remember what :attr:`memory` was then, and count again who took part in them.

        Batches and noise are functions of the key and the round; correlated noise draws its earlier rounds again.
        """
        self._enter(max(done - 1, 0))
        self.remember(memory)
        if self._correlation is None:
            return
        self._attendance = Attendance(self._correlation, self.targets.size)  # it may have gone farther already
        for turn in range(done):
            self._batch(turn)

    def update(self, model: Vector, turn: int) -> Vector:
        """Return what the client subtracts from its model and sends in this round.

        Everything is computed after the noise. While an adaptive clip is so large that its noise would throw the model
        about, steps are shorter in proportion.
        """
        self._enter(turn)
        shorter = self.method.shorter(self.index, self.clip)
        pull = add_answer(self.plan, model, self.release(model, turn), turn) + self.plan.model.l2 * model
        self.state = advance(self.optimiser, self.state, pull if shorter == 1.0 else shorter * pull)
        toward = decayed(self.optimiser, heading(self.optimiser, self.state), model + self._start)
        step = self.settings.step(turn - self._first) * toward
        if self.method.compression.kind == "none":
            return step
        return compressed(self.method, step, self.entropy.stream(f"dpsgd compression {self.index}", turn))

    def release(self, model: Vector, turn: int) -> Vector:
        """Return the noised mean gradient of the round's batch: the one thing that is computed from records.

        An empty batch sends its noise like any other.
        """
        self._enter(turn)
        if self.adaptive is not None:
            return self._adapted(self.adaptive, self.noised_units(self.adaptive, model, turn), turn)
        unit, settings = 2.0**self.plan.grid, self.settings
        total = self.total(model, self._batch(turn))
        noised = np.rint(total / unit)
        noised += self._noise(turn, settings.noise * settings.clip / unit, total.size)
        np.clip(noised, -_LARGEST, _LARGEST, out=noised)
        noised *= unit if self.method.clipping == "batch" else unit / self.divisor
        return noised

    def _noise(self, turn: int, steps: float, size: int) -> Vector | NDArray[np.int64]:
        """Return the noise of a round in whole grid steps, correlated with that of earlier rounds if the plan says so.

        It is a function of the key and the round alone.
        """
        label = f"dpsgd noise {self.index}"
        if self._correlation is None:
            return rounded_normal(self.entropy.stream(label, turn), steps, size)
        if self._stream is None:
            self._stream = CorrelatedNoise(self._correlation.factor, self.entropy, label, steps, size, self.rounds)
        return self._stream.at(turn)

    def noised_units(self, rule: AdaptiveClip, model: Vector, turn: int) -> Vector:
        """Return the noised sum of the round's batch in units of the present clip, the noised votes after it.

        A record's gradient and its vote together have norm at most 1. Each record is computed and rounded on its own.
        """
        unit, chosen, loss = 2.0**self.plan.grid, self._batch(turn), self.plan.model.loss
        total, votes = np.zeros(self.plan.dimension + 1), 0
        for first in range(0, chosen.size, self._part):
            part = chosen[first : first + self._part]
            rows = np.take(self.features, part, axis=0, out=self._room[: part.size], mode="clip")
            targets, norms, weights = self.targets[part], self._norms[part], np.full(part.size, rule.of_sum / self.clip)
            found, lost = loss.gradient(model, rows, targets, clip=self.clip, weights=weights, norms=norms, grain=unit)
            total[:-1] += found
            self.dropped += lost
            lengths = loss.lengths(model, rows, targets, norms)
            level = rule.level(self.clip)
            votes += int(np.count_nonzero(lengths <= level)) - int(np.count_nonzero(lengths > level))
        steps = np.rint(total / unit)
        steps[-1] = votes * rule.vote(within=True, weight=1.0, unit=unit)
        stream = self.entropy.stream(f"dpsgd noise {self.index}", turn)
        steps += rounded_normal(stream, self.settings.noise / unit, steps.size)
        np.clip(steps, -_LARGEST, _LARGEST, out=steps)
        return steps * unit

    def _adapted(self, rule: AdaptiveClip, noised: Vector, turn: int) -> Vector:
        """Return the mean gradient that a noised sum stands for, and move the clip by its votes."""
        mean = noised[:-1] * (self.clip / (rule.of_sum * self.divisor))
        counted, done = float(noised[-1]) / self.divisor, (turn + 1) / self.settings.rounds
        start, clip = self.settings.clip, self.clip
        if rule.rate is not None:
            self.clip = rule.following(clip, start, counted, done)
            return mean
        deviation = vote_deviation(self.settings.noise, rule.of_count, self.divisor)
        within = 0.5 + counted / (2 * rule.of_count)
        level, weight = math.log(clip / start), rule.slower(done)
        self.belief = moved(self.belief, level, within, deviation, rule.quantile, weight)
        self.clip = start * math.exp(believed(self.belief))
        return mean

    def total(self, model: Vector, chosen: NDArray[np.int64]) -> Vector:
        """Return the sum of clipped gradients; with batch clipping the clipped mean.

        Where every record picks its round, each is rounded to the grid on its own: it adds the same to any batch.
        """
        clip = self.settings.clip if self.method.clipping == "individual" else _NO_CLIP
        grain = 2.0**self.plan.grid if self.method.apart(self.plan.model) else None
        loss, total, dropped = self.plan.model.loss, np.zeros(self.plan.dimension), 0
        for first in range(0, chosen.size, self._part):
            part = chosen[first : first + self._part]
            rows = np.take(self.features, part, axis=0, out=self._room[: part.size], mode="clip")
            found, lost = loss.gradient(
                model, rows, self.targets[part], clip=clip, norms=self._norms[part], grain=grain
            )
            total += found
            dropped += lost
        self.dropped += dropped
        if self.method.clipping == "individual":
            return total
        mean = total / self.divisor
        norm = float(np.sqrt(np.sum(mean * mean)))
        return mean if norm <= self.settings.clip else mean * (self.settings.clip / norm)
