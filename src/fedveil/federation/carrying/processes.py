"""Child processes: each in its own session, watched, stopped by its process id, and ended with whoever started it."""

import ctypes
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

from fedveil.core.errors import FedveilError

_GRACE: Final = 5.0  # seconds between asking a process to end and killing it
PARENT: Final = "FEDVEIL_PARENT"  # in the environment: the process with which this one is to end
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of Linux
SAFE: Final = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}


class DidNotStart(FedveilError):
    """A process ended or stayed silent before it was ready."""


def free_port(first: int = 0) -> int:
    """Return a port of the loopback interface that is free now; the ``first`` one if it is."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", first))
        except OSError:
            return free_port()
        return int(probe.getsockname()[1])


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with a separate Flower home, no telemetry, and this Python's programs first."""
    programs = str(Path(sys.executable).parent)
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **SAFE, "PATH": path, "FLWR_HOME": str(home), **(extra or {})}


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Have the system end this process when the one that started it for a trial is gone, however that ended."""
    parent = os.environ.pop(PARENT, "")
    if not parent:
        return
    with suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, int(number))
    if str(os.getppid()) != parent:  # it was gone already
        os.kill(os.getpid(), number)


@dataclass(slots=True)
class Started:
    """A started process, its name and its log file."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    start: int = 0  # where its part of the log begins

    @property
    def alive(self) -> bool:
        """Return whether the process is still running."""
        return self.process.poll() is None

    def tail(self, size: int = 2000) -> str:
        """Return the end of its output."""
        return self.written()[-size:]

    def written(self) -> str:
        """Return all of its output."""
        return self.log.read_bytes()[self.start :].decode("utf-8", "replace")

    def wait_for(self, text: str, patience: float) -> None:
        """Wait until the process has written this text."""
        end = time.monotonic() + patience
        while text not in self.written():
            if not self.alive or time.monotonic() > end:
                raise DidNotStart(f"{self.name} did not become ready; it wrote: {self.tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process at once, with all that it started."""
        _signal_session(self.process, signal.SIGKILL)
        self.process.wait()

    def ask(self) -> None:
        """Ask the process to end."""
        if self.alive:
            self.process.terminate()

    def stop(self) -> None:
        """Ask the process to end, wait a little, then kill it, with all that it started."""
        if self.alive:
            self.ask()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=_GRACE)
        _signal_session(self.process, signal.SIGKILL)
        self.process.wait()


def _signal_session(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Send a signal to the process group, and to members of its session that have groups of their own."""
    if process.poll() is not None and not _session(process.pid)[1:]:
        return  # its process id may belong to another process by now
    for member in _session(process.pid)[0 if process.poll() is None else 1 :]:
        try:
            os.kill(member, number)
        except ProcessLookupError:
            continue


def _session(leader: int) -> list[int]:
    """Return the process ids of a session from /proc; the session has the id of its leader."""
    members = [leader]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if int(fields[3]) == leader and int(entry.name) != leader:
            members.append(int(entry.name))
    return members


@final
@dataclass(slots=True)
class Processes:
    """All processes that were started here; leaving the block stops them, last first, whatever happened."""

    home: Path
    logs: Path
    apart: bool = True  # in their own sessions; otherwise whoever stops this process's session stops them too
    started: list[Started] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str], extra: Mapping[str, str] | None = None) -> Started:
        """Start a process; its output goes to its own log file."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        before = log.stat().st_size if log.exists() else 0
        out: IO[bytes]
        with log.open("ab") as out:
            process = subprocess.Popen(  # noqa: S603  the commands are our own
                list(command),
                env=environment(self.home, {**(extra or {}), PARENT: str(os.getpid())}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=self.apart,
            )
        started = Started(name, process, log, before)
        self.started.append(started)
        return started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self.started:
            one.ask()  # all at once, because each takes a second or two
        waiting = list(self.started)
        while waiting:
            try:
                waiting[-1].stop()
                waiting.pop()
            except KeyboardInterrupt:  # the user is impatient: stop waiting, but still leave nothing behind
                for one in waiting:
                    one.kill()
