"""What a run needs from outside and tells to the outside: time and randomness, progress, and that it was stopped."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from fedveil.core.errors import Interrupted as Interrupted  # where it was before
from fedveil.stages.adding import Fails, nobody_fails


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run: rounds done, rounds in all, rounds per second, and what the run was charged."""

    round: int
    total: int
    rate: float
    epsilon: float


@dataclass(frozen=True, slots=True)
class System:
    """What the run needs from outside (time, randomness); tests pass their own."""

    random: Callable[[int], bytes] = os.urandom
    seconds: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    checkpoint_every: float = 5.0
    note: Callable[[str], None] = lambda text: None  # tells the data holder, and nobody else
    tell: Callable[[str], None] = lambda _: None  # is told what is being done
    fails: Fails = nobody_fails  # which clients fail to answer in which round, if clients share the noise
