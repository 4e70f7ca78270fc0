"""How one client protects its records in every round, and what is charged for all its rounds together."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from fedveil.checks import require
from fedveil.guarantee import Neighbours
from fedveil.mechanism import Gaussian, IndependentGaussian, Mechanism, Numbers, Repeat, SampledGaussian
from fedveil.values import number, whole

Sampling = Literal["poisson", "fixed-size", "shuffled", "independent"]
DRAWN = ("poisson", "independent")  # every record draws for itself, so the sizes of batches are random
Clipping = Literal["individual", "batch"]

MOST_ROUNDS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How one client guards its records.

    ``rate``: share of its records in a round; ``clip``: norm of what a record (or a batch) may contribute; ``noise``:
    standard deviation over ``clip``; ``step_size``: one for all rounds, or one per round.
    """

    rate: float
    rounds: int
    clip: float
    noise: float
    step_size: Numbers

    def __post_init__(self) -> None:
        for name in ("rate", "clip", "noise"):
            object.__setattr__(self, name, number(f"ClientSettings.{name}", getattr(self, name)))
        object.__setattr__(self, "rounds", whole("ClientSettings.rounds", self.rounds))
        require(1e-12 <= self.rate <= 1, "ClientSettings.rate", "lie in (0, 1]", self.rate, "Is it a batch size?")
        require(1 <= self.rounds <= MOST_ROUNDS, "ClientSettings.rounds", f"lie in [1, {MOST_ROUNDS}]", self.rounds)
        require(
            1e-9 <= self.clip <= 1e9,
            "ClientSettings.clip",
            "lie in [1e-9, 1e9]",
            self.clip,
            "Without it nothing bounds.",
        )
        hint = "Without noise there is no privacy; leave it out to have it calibrated."
        require(1e-6 <= self.noise <= 1e9, "ClientSettings.noise", "lie in [1e-6, 1e9]", self.noise, hint)
        given: Any = self.step_size
        steps = tuple(given) if isinstance(given, list | tuple) else (given,)
        steps = tuple(number("ClientSettings.step_size", value) for value in steps)
        fine = all(1e-15 <= value <= 1e15 for value in steps)
        require(fine, "ClientSettings.step_size", "be positive and lie in [1e-15, 1e15]", given)
        fits = not isinstance(given, list | tuple) or len(steps) == self.rounds
        require(fits, "ClientSettings.step_size", f"be one number or one per round, {self.rounds}", len(steps))
        object.__setattr__(self, "step_size", steps if isinstance(given, list | tuple) else steps[0])

    def step(self, turn: int) -> float:
        """Return the step size of a round, counted from 0."""
        return self.step_size[turn] if isinstance(self.step_size, tuple) else self.step_size

    @property
    def batches_a_pass(self) -> int:
        """Batches that fit in one shuffled pass; with independent draws the rounds among which a record picks."""
        return max(1, math.floor(1 / self.rate * (1 + 4e-16)))  # rounding of the rate must not cost a batch

    def size(self, records: int) -> int:
        """Return the size of a fixed batch of a client with so many records: never a larger share than ``rate``."""
        return math.floor(Fraction(self.rate) * records)

    def charged(self, sampling: Sampling, clipping: Clipping, neighbours: Neighbours) -> Mechanism:
        """Return what the client releases in all its rounds, as a mechanism.

        A clipped batch moves by up to 2 * clip whether a record is exchanged or left out. Where records draw for
        themselves it is charged for one contribution, so for half the noise; otherwise for an exchange, which is
        2 * clip already. A pass that was only begun is charged whole.
        """
        noise = self.noise
        if clipping == "batch" and sampling in DRAWN:
            noise /= 2
        elif clipping == "batch":
            neighbours = "replace-one"
        passes = -(-self.rounds // self.batches_a_pass)
        if sampling == "shuffled":
            return Repeat(of=Gaussian(noise_multiplier=noise, neighbours=neighbours), times=passes)
        if sampling == "independent":
            a_pass = IndependentGaussian(rounds=self.batches_a_pass, noise_multiplier=noise, neighbours=neighbours)
            return Repeat(of=a_pass, times=passes)
        once = SampledGaussian(sampling=sampling, rate=self.rate, noise_multiplier=noise, neighbours=neighbours)
        return Repeat(of=once, times=self.rounds)
