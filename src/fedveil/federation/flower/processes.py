"""Processes that this one started: each in a session of its own, watched by its number, stopped by its number."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self, final

from fedveil.errors import FedveilError

_GRACE: Final = 5.0  # seconds between asking and ending
SAFE: Final = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}


class DidNotStart(FedveilError):
    """A process ended or stayed silent before it was ready."""


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with a Flower home of its own, no telemetry, and this Python's programs first."""
    programs = str(Path(sys.executable).parent)
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **SAFE, "PATH": path, "FLWR_HOME": str(home), **(extra or {})}


@dataclass(slots=True)
class Started:
    """One process, its name and where it writes."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    start: int = 0  # where its part of the log begins

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def tail(self, size: int = 2000) -> str:
        """The end of what it wrote."""
        return self.written()[-size:]

    def written(self) -> str:
        """All that it wrote."""
        return self.log.read_bytes()[self.start :].decode("utf-8", "replace")

    def wait_for(self, text: str, patience: float) -> None:
        """Until it has written this."""
        end = time.monotonic() + patience
        while text not in self.written():
            if not self.alive or time.monotonic() > end:
                raise DidNotStart(f"{self.name} did not become ready; it wrote: {self.tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """At once, with all that it started."""
        _signal_session(self.process, signal.SIGKILL)
        self.process.wait()

    def ask(self) -> None:
        """Ask it to end."""
        if self.alive:
            self.process.terminate()

    def stop(self) -> None:
        """Ask it, wait a little, end it; what it started goes with it."""
        if self.alive:
            self.ask()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=_GRACE)
        _signal_session(self.process, signal.SIGKILL)
        self.process.wait()


def _signal_session(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """To the group that the process leads and to members of its session that made groups of their own."""
    if process.poll() is not None and not _session(process.pid)[1:]:
        return  # its number may belong to somebody else by now
    for member in _session(process.pid)[0 if process.poll() is None else 1 :]:
        try:
            os.kill(member, number)
        except ProcessLookupError:
            continue


def _session(leader: int) -> list[int]:
    """The processes of a session, from /proc: the leader's number is the session's number."""
    found = [leader]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if int(fields[3]) == leader and int(entry.name) != leader:
            found.append(int(entry.name))
    return found


@final
@dataclass(slots=True)
class Processes:
    """All that were started here; leaving the block stops them, last first, whatever happened."""

    home: Path
    logs: Path
    apart: bool = True  # in sessions of their own; else whoever stops this process's session stops them too
    started: list[Started] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str], extra: Mapping[str, str] | None = None) -> Started:
        """Start one; it writes to a log of its own."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        before = log.stat().st_size if log.exists() else 0
        out: IO[bytes]
        with log.open("ab") as out:
            process = subprocess.Popen(  # noqa: S603  the commands are our own
                list(command),
                env=environment(self.home, extra),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=self.apart,
            )
        found = Started(name, process, log, before)
        self.started.append(found)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self.started:
            one.ask()  # all at once: each takes a second or two
        waiting = list(self.started)
        while waiting:
            try:
                waiting[-1].stop()
                waiting.pop()
            except KeyboardInterrupt:  # somebody is impatient: no more waiting, but still nothing is left behind
                for one in waiting:
                    one.kill()
