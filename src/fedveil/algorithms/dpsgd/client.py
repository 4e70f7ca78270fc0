"""One client of DP-SGD: a batch, its clipped sum, noise on the grid, a step. Everything it sends is already noised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedveil.algorithms.dpsgd.batch import Sampler
from fedveil.algorithms.dpsgd.client_settings import ClientSettings
from fedveil.algorithms.dpsgd.compress import compressed
from fedveil.algorithms.dpsgd.method import DpSgd
from fedveil.data.rows import row_norms
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.values import Vector

if TYPE_CHECKING:
    from fedveil.plan import Plan

_LARGEST = 2.0**52  # grid steps: sums with noise stay exact in float64
_NO_CLIP = 1e99
_PART = 512  # rows gathered and used at a time: they stay in the processor's cache


@dataclass(slots=True, eq=False)
class Client:
    """A client's records, its settings, and its memory between rounds: the velocity, and how many records failed."""

    plan: Plan
    method: DpSgd
    index: int
    features: Vector
    targets: Vector
    entropy: Entropy
    dropped: int = 0
    settings: ClientSettings = field(init=False)
    _norms: Vector = field(init=False)
    _room: Vector = field(init=False)
    velocity: Vector = field(init=False)
    _sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        self.settings = self.method.settings(self.index)
        rows, width = self.features.shape
        self._norms = row_norms(self.features)
        self._room = np.empty((min(rows, _PART), width))
        self.velocity = np.zeros(self.plan.dimension)
        self._sampler = Sampler(self.settings, self.method.sampling, rows, self.entropy, self.index)

    @property
    def divisor(self) -> float:
        """The planned batch size: rate times records, whatever the draws say."""
        return self.method.divisor(self.settings, self.targets.size)

    def update(self, model: Vector, turn: int) -> Vector:
        """Return what the client subtracts from its model and sends in this round.

        Everything is computed after the noise.
        """
        mean = self.release(model, turn)
        self.velocity = self.method.momentum * self.velocity + (mean + self.plan.model.l2 * model)
        step = self.settings.step(turn) * self.velocity
        if self.method.compression == "none":
            return step
        return compressed(self.method, step, self.entropy.stream(f"dpsgd compression {self.index}", turn))

    def release(self, model: Vector, turn: int) -> Vector:
        """Return the noised mean gradient of the round's batch: the one thing that is computed from records.

        An empty batch sends its noise like any other.
        """
        unit, settings = 2.0**self.plan.grid, self.settings
        total = self.total(model, self._sampler.batch(turn))
        noise = rounded_normal(
            self.entropy.stream(f"dpsgd noise {self.index}", turn), settings.noise * settings.clip / unit, total.size
        )
        noised = np.rint(total / unit)
        noised += noise
        np.clip(noised, -_LARGEST, _LARGEST, out=noised)
        noised *= unit if self.method.clipping == "batch" else unit / self.divisor
        return noised

    def total(self, model: Vector, chosen: NDArray[np.int64]) -> Vector:
        """Return the sum of clipped gradients; with batch clipping the clipped mean.

        Where every record picks its round, each is rounded to the grid on its own: it adds the same to any batch.
        """
        clip = self.settings.clip if self.method.clipping == "individual" else _NO_CLIP
        grain = 2.0**self.plan.grid if self.method.apart else None
        loss, total, dropped = self.plan.model.loss, np.zeros(self.plan.dimension), 0
        for first in range(0, chosen.size, _PART):
            part = chosen[first : first + _PART]
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
