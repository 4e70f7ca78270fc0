"""Keep the state of a resumable run on the disk, privately: every few seconds, and when the run stops.

A state that is large is written less often, so that writing takes a small part of the time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, final

import numpy as np

from fedveil.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedveil.stages.train.acting import Done, Rounds

_PART: Final = 20  # writing takes at most about one second in so many


class Clock(Protocol):
    """Tells the time, and how many seconds pass at least between two checkpoints; 0: one is kept after every round."""

    @property
    def seconds(self) -> Callable[[], float]: ...  # noqa: D102
    @property
    def checkpoint_every(self) -> float: ...  # noqa: D102


@final
@dataclass(slots=True)
class Keeper:
    """Saves checkpoints.

    ``mark`` identifies plan and data, so that no other run resumes here; ``resumed`` None: none kept. Nor is one kept
    of a run that tells its rounds alone.
    """

    path: Path
    mark: str
    run: str
    resumed: Callable[[int, Any, int], Any] | None
    clock: Clock
    _last: Any = field(default=None, init=False)
    _due: float = field(default=0.0, init=False)
    _repeats: bool = field(default=False, init=False)

    def begun(self) -> Any:
        """Return the state to resume from; None to start from the beginning."""
        self._due = self.clock.seconds() + self.clock.checkpoint_every
        if self.resumed is None:
            return None
        found = load_checkpoint(self.path, plan=self.mark, run=self.run)
        if found is not None:
            state = np.array(found.state, dtype=np.float64)
            self._last = self.resumed(found.round, state, found.counts.get("dropped", 0))
        return self._last

    def note(self, state: Done) -> None:
        """Take the state after a round; save it if the last checkpoint is old enough."""
        if self.resumed is None or isinstance(state, Rounds):
            self._repeats = self._last is None
            return
        self._last = state
        began = self.clock.seconds()
        if began >= self._due:
            self.save()
            ended, every = self.clock.seconds(), self.clock.checkpoint_every
            self._due = ended + (max(every, _PART * (ended - began)) if every > 0 else 0.0)

    def save(self) -> None:
        """Write the latest state, if there is one."""
        if self._last is not None:
            last, counts = self._last, {"dropped": self._last.dropped}
            found = Checkpoint(plan=self.mark, run=self.run, round=last.round, state=last.position, counts=counts)
            save_checkpoint(self.path, found)

    def advice(self, total: int) -> str:
        """Return a sentence that says what to do after the run was stopped."""
        if self.resumed is None or self._repeats:
            return "Stopped; begin again with the same command and --resume."
        done = 0 if self._last is None else self._last.round
        return f"Stopped after round {done} of {total}; go on with the same command and --resume."
