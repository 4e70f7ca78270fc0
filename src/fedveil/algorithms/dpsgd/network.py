"""The network of a simulated run: speeds of clients, delays and losses of messages. All of it is public."""

import math
from dataclasses import dataclass
from typing import Any

from fedveil.checks import require
from fedveil.values import number, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Times are in rounds of a client of speed 1.

    ``speeds``: rounds per unit of time, one for each client (none: all 1); ``jitter``: spread of the time of a round;
    ``delay``: mean time of a message on its way (exponential, so messages overtake each other); ``loss``: chance that
    it never arrives; ``window``: how long the server collects before it mixes and broadcasts; ``max_lag``: rounds that
    a client continues without a newer model; ``network_seed``: the seed of all this.

    Three rules, each None (and then not written) where it is not used. ``max_deviation``: a client whose own model is
    farther than this from the last global one waits for a newer one, so 0 makes all rounds synchronous.
    ``participants``: how many clients, drawn at random, are asked in each window. ``window_steps``: by what the steps
    of all clients are multiplied in each window; the last number holds for all later windows.
    """

    speeds: tuple[float, ...] = ()
    jitter: float = 0.0
    delay: float = 0.0
    loss: float = 0.0
    window: float = 1.0
    max_lag: int = 10
    network_seed: int = 0
    max_deviation: float | None = None
    participants: int | None = None
    window_steps: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        given: Any = self.speeds
        require(isinstance(given, list | tuple), "algorithm.speeds", "be a list of numbers", given)
        object.__setattr__(self, "speeds", tuple(number("algorithm.speeds", value) for value in given))
        fine = all(1e-6 <= speed <= 1e6 for speed in self.speeds)
        require(fine, "algorithm.speeds", "be positive and lie in [1e-6, 1e6]", list(self.speeds))
        for name in ("jitter", "delay", "loss", "window"):
            object.__setattr__(self, name, number(f"algorithm.{name}", getattr(self, name)))
        for name in ("max_lag", "network_seed"):
            object.__setattr__(self, name, whole(f"algorithm.{name}", getattr(self, name)))
        require(0 <= self.jitter < 1, "algorithm.jitter", "lie in [0, 1)", self.jitter)
        require(0 <= self.delay < math.inf, "algorithm.delay", "be finite and non-negative", self.delay)
        hint = "Where hardly anything arrives nothing is learned."
        require(0 <= self.loss <= 0.9, "algorithm.loss", "lie in [0, 0.9]", self.loss, hint)
        require(1e-2 <= self.window <= 1e6, "algorithm.window", "lie in [0.01, 1e6]", self.window)
        require(1 <= self.max_lag <= 10**9, "algorithm.max_lag", "be at least 1", self.max_lag)
        require(0 <= self.network_seed < 2**63, "algorithm.network_seed", "lie in [0, 2**63)", self.network_seed)

        self._check_rules()

    def _check_rules(self) -> None:
        if self.max_deviation is not None:
            most = number("algorithm.max_deviation", self.max_deviation)
            require(0 <= most < math.inf, "algorithm.max_deviation", "be finite and non-negative", most)
            object.__setattr__(self, "max_deviation", most)
        if self.participants is not None:
            object.__setattr__(self, "participants", whole("algorithm.participants", self.participants))
            require(self.participants >= 1, "algorithm.participants", "be at least 1", self.participants)
        given: Any = self.window_steps
        if given is not None:
            listed = isinstance(given, list | tuple) and len(given) >= 1
            require(listed, "algorithm.window_steps", "be a list of at least one number", given)
            steps = tuple(number("algorithm.window_steps", value) for value in given)
            hint = "They multiply the clients' own steps, which state the largest."
            require(all(1e-9 <= s <= 1 for s in steps), "algorithm.window_steps", "lie in (0, 1]", list(steps), hint)
            object.__setattr__(self, "window_steps", steps)

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
