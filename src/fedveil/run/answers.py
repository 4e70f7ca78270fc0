"""Who answered in each round of a run by parts, kept privately: a round that is added up again has the same answers.

A share of the noise is a function of the key and the round. If a round that was added up once were added up again over
other clients, the two sums would differ by single messages, and the rounds after it would meet other models with the
same noise, whose difference is no noise at all. So who is in a round is on the disk before it is added up, and stays.
Page: docs/theory/noise-shares.md.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedveil.algorithms.shares import Fails
from fedveil.errors import BadValue, FedveilError
from fedveil.run.files import write_atomically
from fedveil.sums.seam import Summed, Summing, Whole

NAME = "answers"  # in the private folder: who is missing may tell the order of the rounds
OF_PREPARATION = "answers_of_preparation"


@dataclass(slots=True, eq=False)
class Answers:
    """Stands between a run and what adds up its rounds. ``kept``: who was missing from each round that was added up."""

    path: Path
    asks: Fails
    sums: Summing
    kept: dict[int, frozenset[int]]
    _missing: dict[int, set[int]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, run: str, asks: Fails, sums: Summing) -> "Answers":
        """What this run has kept; a file of another run is begun anew. A line that was cut off counts as not written:
        its round was not added up.
        """
        head = json.dumps(run).encode() + b"\n"
        found = path.read_bytes() if path.exists() else b""
        whole = found[: found.rfind(b"\n") + 1]
        if not whole.startswith(head):
            whole = head
        if whole != found:
            write_atomically(path, whole)
        return cls(path, asks, sums, _read(path, whole[len(head) :]))

    def fails(self, turn: int, client: int) -> bool:
        """Whether a client is missing: as it was, in a round that was added up; else as it is now."""
        if turn in self.kept:
            return client in self.kept[turn]
        missing = self.asks(turn, client)
        if missing:
            self._missing.setdefault(turn, set()).add(client)
        return missing

    def add_up(self, turn: int, parts: Mapping[int, Whole], /) -> Summed:
        """The round's sum; a round whose sum was refused may be asked for again, of others."""
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
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, json.dumps([turn, missing]).encode() + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)


def _read(path: Path, lines: bytes) -> dict[int, frozenset[int]]:
    kept: dict[int, frozenset[int]] = {}
    try:
        for turn, missing in map(json.loads, lines.splitlines()):
            if missing is None:
                kept.pop(turn, None)
            else:
                kept[turn] = frozenset(missing)
    except (ValueError, TypeError) as error:
        raise BadValue(
            f"{path} must be as the run wrote it, and it is not: {error}. Begin in another folder."
        ) from error
    return kept
