"""The network of a simulated run: speeds of clients, delays and losses of messages. All of it is public."""

import math
from dataclasses import dataclass

from fedveil.core.fields import check_fields, count, listed, real


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
