"""Ask a worker process, one question at a time; a question that nobody waits for any more is dropped."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fedveil.core.strict_json import read_object
from fedveil.studio.sentences import Refused

# -P: nothing is imported from the working folder, whatever lies there
WORKER: Final = (sys.executable, "-P", "-m", "fedveil.studio.worker")

_LONG: Final = 2.0  # seconds after which an answer that nobody waits for any more is broken off
_NEWER: Final = "A newer question was asked meanwhile."


class Superseded(Refused):
    """A newer question of the same kind has made this one pointless."""


class Asker:
    """A worker and the queue before it. ``folder``: where it works."""

    def __init__(self, folder: Path, command: Sequence[str] = WORKER) -> None:
        self._folder, self._command = folder, command
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._latest: dict[str, int] = {}
        self._count = 0
        self._counting = threading.Lock()
        self._closed = False
        self._busy: tuple[str, float] | None = None  # the kind of the question that is being answered, since when
        self._asked = 0  # its number

    def ask(self, name: str, arguments: dict[str, Any], kind: str = "") -> Any:
        """Return the answer; raise :class:`Refused` with the worker's sentence.

        ``kind``: of several questions of the same kind that wait, only the newest is asked.
        """
        turn = self._turn(kind)
        line = json.dumps({"name": name, "arguments": arguments}, allow_nan=False).encode() + b"\n"
        while not self._lock.acquire(timeout=0.1):
            self._break_off(kind, turn)
        try:
            if kind and self._latest[kind] != turn:
                raise Superseded(_NEWER)
            self._busy, self._asked = (kind, time.monotonic()), turn
            answer = self._exchange(line)
        finally:
            self._busy = None
            self._lock.release()
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer["answer"]

    def _break_off(self, kind: str, turn: int) -> None:
        """End the worker if it works on an older question of the same kind, and has done so for a while."""
        busy, process = self._busy, self._process
        if busy is None or process is None or not kind or busy[0] != kind or self._latest[kind] != turn:
            return
        if time.monotonic() - busy[1] > _LONG:
            process.kill()

    def _turn(self, kind: str) -> int:
        with self._counting:
            self._count += 1
            self._latest[kind] = self._count
            return self._count

    def _exchange(self, line: bytes) -> dict[str, Any]:
        process = self._running()
        if process.stdin is None or process.stdout is None:
            raise Refused("The worker cannot be reached.")
        try:
            process.stdin.write(line)
            process.stdin.flush()
            said = process.stdout.readline()
        except OSError:
            said = b""
        if not said:
            self._process = None
            _end(process)
            if self._superseded():
                raise Superseded(_NEWER)
            raise Refused("The calculation was broken off: its process ended. Ask again, with fewer rounds or records.")
        return read_object(said, "The answer")

    def _superseded(self) -> bool:
        """Return whether a newer question of the kind that is being answered waits."""
        return self._busy is not None and self._busy[0] != "" and self._latest[self._busy[0]] != self._asked

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise Refused("The studio is closing.")
        if self._process is None or self._process.poll() is not None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, cwd=self._folder)  # noqa: S603
        return self._process

    def close(self) -> None:
        """End the worker; a question that is being answered is refused."""
        self._closed = True
        if self._process is not None:
            _end(self._process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and close what led to it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not sent to a dead process cannot be sent now
                pipe.close()
