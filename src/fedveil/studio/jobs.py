"""Long work in processes of its own: each job has a folder, holds a lock while it lives, and says there how far it is.

The studio may be stopped, killed or started again: jobs go on, and what they said is found again. Whether a job lives
is known from its lock, which no process can forget to give back; a job with neither lock nor outcome was killed.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedveil.core.errors import require
from fedveil.core.files import write_atomically
from fedveil.core.strict_json import read_object
from fedveil.engine.files import private_folder

FOLDER: Final = ".fedveil-studio"
REQUEST, PROGRESS, OUTCOME, LOCK, LOG = "request.json", "progress.json", "outcome.json", "lock", "log"
# -P: nothing is imported from the working folder, whatever lies there
RUNNER: Final = (sys.executable, "-P", "-m", "fedveil.studio.runner")
_started: list[subprocess.Popen[bytes]] = []  # by this process: each is asked for its end, so that none stays a zombie


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as its folder describes it."""

    name: str
    request: Mapping[str, Any]
    progress: Mapping[str, Any]
    outcome: Mapping[str, Any] | None
    alive: bool
    pid: int | None

    @property
    def state(self) -> str:
        """Return running, done, refused, stopped or killed."""
        if self.outcome is not None:
            return str(self.outcome["state"])
        return "running" if self.alive else "killed"


def begin(root: Path, request: Mapping[str, Any], modules: Sequence[str] = ()) -> str:
    """Start a job in the working folder ``root`` and return its name; ``modules``: code that may be run for it."""
    place = private_folder(private_folder(root / FOLDER) / "jobs")
    name = os.urandom(8).hex()
    folder = private_folder(place / name)
    write_atomically(folder / REQUEST, json.dumps(request).encode())
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the process inherits it: there is no moment in which the job seems dead
        with (folder / LOG).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603
                [*RUNNER, str(folder), *modules],
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
        os.pwrite(lock, str(process.pid).encode(), 0)
    finally:
        os.close(lock)
    _started.append(process)
    return name


def jobs(root: Path) -> list[Job]:
    """Return all jobs of the working folder, newest first."""
    _started[:] = [process for process in _started if process.poll() is None]
    place = root / FOLDER / "jobs"
    folders = sorted(place.iterdir(), key=lambda one: one.stat().st_mtime, reverse=True) if place.is_dir() else []
    return [job_of(root, one.name) for one in folders if (one / REQUEST).exists()]


def job_of(root: Path, name: object) -> Job:
    """Return one job."""
    known = isinstance(name, str) and len(name) == 16 and all(letter in "0123456789abcdef" for letter in name)
    folder = root / FOLDER / "jobs" / str(name)
    require(known and (folder / REQUEST).exists(), "The job", "be one of this working folder", str(name)[:40])
    alive, pid = _living(folder / LOCK)  # first: an outcome that appears in between is seen below
    return Job(
        name=str(name),
        request=_read(folder / REQUEST) or {},
        progress=_read(folder / PROGRESS) or {},
        outcome=_read(folder / OUTCOME),
        alive=alive,
        pid=pid,
    )


def stop(root: Path, name: object) -> None:
    """Ask a living job to stop, as Ctrl-C would; it keeps what it has done."""
    job = job_of(root, name)
    require(job.state == "running" and job.pid is not None, "The job", "be running to be stopped", job.state)
    with suppress(ProcessLookupError):
        os.kill(job.pid or 0, signal.SIGINT)


def _living(lock: Path) -> tuple[bool, int | None]:
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False, None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
        return True, int(said) if said.isdecimal() else None
    finally:
        os.close(handle)
    return False, None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return read_object(path.read_bytes(), path.name)
    except (OSError, ValueError):
        return None


def run_state(folder: Path, mine: list[Job]) -> str:
    """Return the state of a run's folder: running, finished, or interrupted (it can go on)."""
    busy = any(
        job.state == "running" and job.request.get("out") == str(folder) and job.request["kind"] != "audit"
        for job in mine
    )
    if busy or _in_use(folder / "private" / "lock"):
        return "running"
    finished = (folder / "certificate.json").exists() and (folder / "report.html").exists()
    return "finished" if finished else "interrupted"


def _in_use(lock: Path) -> bool:
    """Return whether the process that says that it works in a folder lives; its lock itself is never touched."""
    try:
        pid = int(lock.read_text(encoding="ascii").strip() or "0")
        return pid > 0 and Path(f"/proc/{pid}").exists()
    except (OSError, ValueError):
        return False
