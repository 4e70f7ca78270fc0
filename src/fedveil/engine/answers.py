"""Who answered in each round of a run whose clients share the noise, kept privately on the disk.

A round that is added up again must have the same answers. A share of the noise is a function of the key and the round.
If a round were added up a second time over other clients, the two sums would differ by single messages, and the later
rounds would meet other models with the same noise, so that the noise cancels in the difference. Therefore the list of
clients in a round is on the disk before the round is added up, and does not change. Page: docs/theory/noise-shares.md.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedveil.core.errors import BadValue, FedveilError
from fedveil.core.strict_json import read_json
from fedveil.engine.files import write_atomically
from fedveil.stages.adding import Fails
from fedveil.sums.seam import Summed, Summing, Whole

NAME = "answers"  # in the private folder: who is missing may tell the order of the rounds
OF_PREPARATION = "answers_of_preparation"
OF_EVALUATION = "answers_of_evaluation"


@dataclass(slots=True, eq=False)
class Answers:
    """Wraps what adds up the rounds of a run. ``kept``: who was missing from each round that was added up."""

    path: Path
    head: bytes
    asks: Fails
    sums: Summing
    kept: dict[int, frozenset[int]]
    _missing: dict[int, set[int]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, run: str, asks: Fails, sums: Summing) -> "Answers":
        """Open the answers that this run has kept; a file of another run is replaced.

        A line that was cut off counts as not written, because its round was not added up. Where one party draws the
        noise no round is ever added up here, and nothing is written.
        """
        head = json.dumps(run).encode() + b"\n"
        if not path.exists():
            return cls(path, head, asks, sums, {})
        result = path.read_bytes()
        whole = result[: result.rfind(b"\n") + 1]
        if not whole.startswith(head):
            whole = head
        if whole != result:
            write_atomically(path, whole)
        return cls(path, head, asks, sums, _read(path, whole[len(head) :]))

    def fails(self, turn: int, client: int) -> bool:
        """Return whether a client is missing: as recorded for a round that was added up, otherwise as it is now."""
        if turn in self.kept:
            return client in self.kept[turn]
        missing = self.asks(turn, client)
        if missing:
            self._missing.setdefault(turn, set()).add(client)
        return missing

    def add_up(self, turn: int, parts: Mapping[int, Whole], /) -> Summed:
        """Return the sum of a round. If it was refused, the round may be asked again of other clients."""
        missing = frozenset(self._missing.pop(turn, ()))
        if turn not in self.kept:
            self._write(turn, sorted(missing))
            self.kept[turn] = missing
        try:
            return self.sums(turn, parts)
        except FedveilError:
            self._write(turn, None)
            del self.kept[turn]
            raise

    def _write(self, turn: int, missing: list[int] | None) -> None:
        if not self.path.exists():
            write_atomically(self.path, self.head)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, json.dumps([turn, missing]).encode() + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)


def _read(path: Path, lines: bytes) -> dict[int, frozenset[int]]:
    kept: dict[int, frozenset[int]] = {}
    try:
        for line in lines.splitlines():
            turn, missing = read_json(line, path.name)
            if missing is None:
                kept.pop(turn, None)
            else:
                kept[turn] = frozenset(missing)
    except (ValueError, TypeError) as error:
        raise BadValue(
            f"{path} must be as the run wrote it, and it is not: {error}. Begin in another folder."
        ) from error
    return kept
