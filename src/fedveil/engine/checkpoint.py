"""Checkpoints: the hidden state of an interrupted run in one private file, protected by a checksum.

The file has a line naming the format, a line of JSON, the bytes of the state (little-endian), and the SHA-256 of all
that. The state is a model that nobody may see before the end, so the file never leaves the private folder.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.checks import require
from fedveil.core.errors import BadValue, why
from fedveil.core.strict_json import read_object
from fedveil.engine.files import write_atomically

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
        found = Checkpoint.from_bytes(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadValue(
            f"The checkpoint {path} cannot be used ({why(error)}). Remove it to begin the run again."
        ) from error
    for name, mine, wanted in (("plan", found.plan, plan), ("run", found.run, run)):
        hint = "Take another folder, or remove the checkpoint to begin again."
        require(mine == wanted, f"The checkpoint {path}", f"belong to {name} {wanted}", mine, hint)
    return found
