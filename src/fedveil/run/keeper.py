"""Keep the state of a resumable run on the disk, privately: every few seconds, and when the run stops."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np

from fedveil.algorithms.acting import Done
from fedveil.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


class Clock(Protocol):
    """Tells the time, and how many seconds may pass between two checkpoints."""

    @property
    def seconds(self) -> Callable[[], float]: ...  # noqa: D102
    @property
    def checkpoint_every(self) -> float: ...  # noqa: D102


@final
@dataclass(slots=True)
class Keeper:
    """Saves checkpoints.

    ``mark`` identifies plan and data, so that no other run resumes here; ``resumed`` None: none kept.
    """

    path: Path
    mark: str
    run: str
    resumed: Callable[[int, Any, int], Any] | None
    clock: Clock
    _last: Any = field(default=None, init=False)
    _saved: float = field(default=0.0, init=False)

    def begun(self) -> Any:
        """Return the state to resume from; None to start from the beginning."""
        self._saved = self.clock.seconds()
        if self.resumed is None:
            return None
        found = load_checkpoint(self.path, plan=self.mark, run=self.run)
        if found is not None:
            state = np.array(found.state, dtype=np.float64)
            self._last = self.resumed(found.round, state, found.counts.get("dropped", 0))
        return self._last

    def note(self, state: Done) -> None:
        """Take the state after a round; save it if the last checkpoint is old enough."""
        if self.resumed is None:
            return
        self._last = state
        if self.clock.seconds() - self._saved >= self.clock.checkpoint_every:
            self.save()
            self._saved = self.clock.seconds()

    def save(self) -> None:
        """Write the latest state, if there is one."""
        if self._last is not None:
            last, counts = self._last, {"dropped": self._last.dropped}
            found = Checkpoint(plan=self.mark, run=self.run, round=last.round, state=last.position, counts=counts)
            save_checkpoint(self.path, found)

    def advice(self, total: int) -> str:
        """Return a sentence that says what to do after the run was stopped."""
        if self.resumed is None:
            return "Stopped; begin again with the same command and --resume."
        done = 0 if self._last is None else self._last.round
        return f"Stopped after round {done} of {total}; go on with the same command and --resume."
