"""How one client protects its records in every round, and what is charged for all its rounds together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from fedveil.core.errors import require
from fedveil.core.fields import check_fields, count, listed, real
from fedveil.core.values import Vector, number, whole
from fedveil.data.records import DataShape
from fedveil.privacy.guarantee import Neighbours
from fedveil.privacy.mechanism import Gaussian, IndependentGaussian, Mechanism, Numbers, Repeat, SampledGaussian

Sampling = Literal["poisson", "fixed-size", "shuffled", "independent", "cyclic"]
DEALT = ("shuffled", "cyclic")  # nobody draws: a record's batch has a fixed size, and the record a fixed place in it
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

    def steps(self) -> Vector:
        """Return the step sizes of all rounds."""
        return np.broadcast_to(np.asarray(self.step_size, dtype=np.float64), (self.rounds,))

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
        if sampling in ("shuffled", "cyclic"):
            return Repeat(of=Gaussian(noise_multiplier=noise, neighbours=neighbours), times=passes)
        if sampling == "independent":
            a_pass = IndependentGaussian(rounds=self.batches_a_pass, noise_multiplier=noise, neighbours=neighbours)
            return Repeat(of=a_pass, times=passes)
        law: Literal["poisson", "fixed-size"] = "poisson" if sampling == "poisson" else "fixed-size"
        once = SampledGaussian(sampling=law, rate=self.rate, noise_multiplier=noise, neighbours=neighbours)
        return Repeat(of=once, times=self.rounds)


def class_rate(rate: float, classes: int) -> float:
    """Return the chance of a record's coin in a round of its own class, where ``rate`` of all records are expected."""
    return min(1.0, rate * classes)


def checked_weights(given: Any) -> tuple[float, ...]:
    """Return the weights of the clients' updates as plain numbers that sum to 1; none is allowed too."""
    require(isinstance(given, list | tuple), "algorithm.weights", "be a list of numbers", given)
    weights = tuple(number("algorithm.weights", value) for value in given)
    require(all(0 <= w < math.inf for w in weights), "algorithm.weights", "be non-negative", list(weights))
    whole_sum = not weights or abs(math.fsum(weights) - 1) <= 1e-9
    require(whole_sum, "algorithm.weights", "sum to 1", math.fsum(weights))
    return weights


def check_picks(rounds: int, data: DataShape) -> None:
    """Refuse passes of more rounds than some client has records: it would often have nothing but noise to send."""
    hint = "Take fewer rounds a pass, or sample with poisson."
    rule = f"be at most the {data.smallest_client} records of the smallest client for independent sampling"
    require(rounds <= data.smallest_client, "schedule.rounds", rule, rounds, hint)


def checked_stops(given: Any, client_settings: Sequence[ClientSettings], segments: bool) -> tuple[int, ...]:
    """Return the rounds after which clients stop using records, as plain numbers: one for each of their settings."""
    require(isinstance(given, list | tuple), "method.stops", "be a list of numbers", given)
    stops = tuple(whole("method.stops", value) for value in given)
    fits = len(stops) == len(client_settings) and not segments
    require(fits, "method.stops", "hold one number for each of the client settings, without segments", stops)
    fine = all(1 <= k <= settings.rounds for k, settings in zip(stops, client_settings, strict=True))
    require(fine, "method.stops", "lie between 1 and the rounds of each", stops)
    return stops


# The network of a simulated run: speeds of clients, delays and losses of messages. All of it is public.


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Times are in rounds of a client of speed 1.

    ``speeds``: rounds per unit of time, one for each client (none: all 1); ``jitter``: spread of the time of a round;
    ``delay``: mean time of a message on its way (exponential, so messages overtake each other); ``loss``: chance that
    it never arrives; ``window``: how long the server collects before it mixes and broadcasts; ``max_lag``: rounds that
    a client continues without a newer model; ``seed``: the seed of all this.

    Three rules, each None where it is not used. ``max_deviation``: a client whose own model is
    farther than this from the last global one waits for a newer one, so 0 makes all rounds synchronous.
    ``participants``: how many clients, drawn at random, are asked in each window. ``window_steps``: by what the steps
    of all clients are multiplied in each window; the last number holds for all later windows.
    """

    speeds: tuple[float, ...] = listed(1e-6, 1e6, default=(), rule="be positive and lie in [1e-6, 1e6]", least=0)
    jitter: float = real(0, 1, open_high=True, default=0.0)
    delay: float = real(0, math.inf, open_high=True, default=0.0, rule="be finite and non-negative")
    loss: float = real(0, 0.9, default=0.0, hint="Where hardly anything arrives nothing is learned.")
    window: float = real(0.01, 1e6, default=1.0)
    max_lag: int = count(1, 10**9, default=10)
    seed: int = count(0, default=0)
    max_deviation: float | None = real(0, math.inf, open_high=True, rule="be finite and non-negative")
    participants: int | None = count(1)
    window_steps: tuple[float, ...] | None = listed(
        1e-9, 1, rule="lie in (0, 1]", hint="They multiply the clients' own steps, which state the largest."
    )

    def __post_init__(self) -> None:
        check_fields(self, "algorithm.network")

    def step(self, window: int) -> float:
        """Return the factor on all steps in a window, counted from 0."""
        return 1.0 if self.window_steps is None else self.window_steps[min(window, len(self.window_steps) - 1)]

    @property
    def alone(self) -> bool:
        """True if a single client needs no clock: messages arrive at once, and no rule speaks of windows."""
        ruled = (self.max_deviation, self.participants, self.window_steps) != (None, None, None)
        return self.instant and not ruled

    @property
    def instant(self) -> bool:
        """True if every message arrives at once; then a single client needs no clock."""
        return self.delay == 0 and self.loss == 0

    @property
    def together(self) -> bool:
        """True if all clients do their rounds in step, and the server waits for complete ones."""
        free = self.max_deviation is None and self.participants is None
        return (
            free and self.instant and self.jitter == 0 and set(self.speeds) <= {1.0} and self.window == int(self.window)
        )
