"""Keep the state of a resumable run on the disk, privately: every few seconds, and when the run stops.

A state that is large is written less often, so that writing takes a small part of the time. A checkpoint is one file
with a line naming the format, a line of JSON, the bytes of the state (little-endian), and the SHA-256 of all that. The
state is a model that nobody may see before the end, so the file never leaves the private folder.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import BadValue, require, why
from fedveil.core.strict_json import read_object
from fedveil.engine.files import write_atomically
from fedveil.stages.train.acting import Done, Rounds

State = NDArray[np.int64] | NDArray[np.float64]
_FORMAT = b"fedveil checkpoint 1\n"
_TYPES = {"<i8": np.int64, "<f8": np.float64}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The state of a run after ``round`` rounds, with counts such as the number of updates dropped."""

    plan: str
    run: str
    round: int
    state: State
    counts: Mapping[str, int]

    def __post_init__(self) -> None:
        require(isinstance(self.plan, str) and self.plan, "Checkpoint.plan", "be the plan's hash", self.plan)
        require(isinstance(self.run, str) and self.run, "Checkpoint.run", "be the run's name", self.run)
        require(type(self.round) is int and self.round >= 0, "Checkpoint.round", "be at least 0", self.round)
        given: Any = self.state
        flat = isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype in (np.int64, np.float64)
        require(flat, "Checkpoint.state", "be one row of int64 or float64", getattr(given, "dtype", type(given)))
        require(np.all(np.isfinite(given)), "Checkpoint.state", "be finite", "a number that is not")
        counts = dict(self.counts)
        whole = all(isinstance(k, str) and type(v) is int and v >= 0 for k, v in counts.items())
        require(whole, "Checkpoint.counts", "be whole numbers by name", counts)
        kept = given.copy()
        kept.flags.writeable = False
        object.__setattr__(self, "state", kept)
        object.__setattr__(self, "counts", MappingProxyType(counts))

    def to_bytes(self) -> bytes:
        """Return the content of the checkpoint file."""
        kind = next(name for name, dtype in _TYPES.items() if self.state.dtype == dtype)
        head = {
            "plan": self.plan,
            "run": self.run,
            "round": self.round,
            "counts": dict(self.counts),
            "type": kind,
            "size": self.state.size,
        }
        line = json.dumps(head, sort_keys=True, ensure_ascii=True).encode("ascii")
        body = b"".join((_FORMAT, line, b"\n", self.state.astype(kind, copy=False).data))
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Checkpoint":
        """Read what :meth:`to_bytes` wrote; raise ``ValueError`` if any byte is missing, wrong or extra."""
        body, checksum = data[:-32], data[-32:]
        if not body.startswith(_FORMAT) or hashlib.sha256(body).digest() != checksum:
            raise ValueError("it is cut short or damaged")
        line, _, raw = body[len(_FORMAT) :].partition(b"\n")
        head = read_object(line, "its head")
        kind, size = np.dtype(head.pop("type")), head.pop("size")
        if kind.str not in _TYPES or len(raw) != 8 * size:
            raise ValueError("its state has another size than it says")
        state: Any = np.frombuffer(raw, dtype=kind).astype(_TYPES[kind.str])
        return cls(**head, state=state)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint at ``path``; the old one stays complete until the new one is on the disk."""
    write_atomically(path, checkpoint.to_bytes())


def load_checkpoint(path: Path, *, plan: str, run: str) -> Checkpoint | None:
    """Return the checkpoint of this plan and run, or None if there is no file; refuse any other file."""
    try:
        result = Checkpoint.from_bytes(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadValue(
            f"The checkpoint {path} cannot be used ({why(error)}). Remove it to begin the run again."
        ) from error
    for name, mine, wanted in (("plan", result.plan, plan), ("run", result.run, run)):
        hint = "Take another folder, or remove the checkpoint to begin again."
        require(mine == wanted, f"The checkpoint {path}", f"belong to {name} {wanted}", mine, hint)
    return result


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
        result = load_checkpoint(self.path, plan=self.mark, run=self.run)
        if result is not None:
            state = np.array(result.state, dtype=np.float64)
            self._last = self.resumed(result.round, state, result.counts.get("dropped", 0))
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
            result = Checkpoint(plan=self.mark, run=self.run, round=last.round, state=last.position, counts=counts)
            save_checkpoint(self.path, result)

    def advice(self, total: int) -> str:
        """Return a sentence that says what to do after the run was stopped."""
        if self.resumed is None or self._repeats:
            return "Stopped; begin again with the same command and --resume."
        done = 0 if self._last is None else self._last.round
        return f"Stopped after round {done} of {total}; go on with the same command and --resume."
