"""The folder of a run: a private part that only its owner can read, used by one process at a time."""

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedveil.core.errors import BadValue, FedveilError
from fedveil.core.files import PART, PRIVATE, PUBLIC, CannotWrite, why_not, write_atomically

__all__ = [
    "PRIVATE",
    "PUBLIC",
    "CannotWrite",
    "FolderInUse",
    "clear_parts",
    "private_folder",
    "sole_use",
    "wait_for_user",
    "write_atomically",
    "write_notes",
]

NOTES = "preparation_notes.json"  # in the private folder
_PAUSE, _LOOKS = 0.1, 50  # seconds between two looks at a lock; how many find it free before its user has gone


class FolderInUse(FedveilError):
    """Another process is working in this folder."""


def private_folder(path: Path) -> Path:
    """Return a folder that only its owner can enter.

    It is created if absent, closed to others if open, and refused if it is a symbolic link.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        result = path.lstat()
        if not stat.S_ISDIR(result.st_mode):
            raise BadValue(f"{path} must be a folder of its own, and it is a link. Remove it, or name another place.")
        if (
            stat.S_IMODE(result.st_mode) != 0o700
        ):  # created by something else, or under a umask that locks out its owner
            path.chmod(0o700)
    except FileExistsError as error:
        raise BadValue(f"{path} must be a folder, and a file is there. Remove it, or name another place.") from error
    except OSError as error:
        raise CannotWrite(why_not(path, 0, error)) from error
    return path


@contextmanager
def sole_use(private: Path) -> Iterator[None]:
    """Lock a run's private folder for this process; a process that dies in any way releases the lock.

    Remains of an interrupted write, here and in the parent folder, are removed.
    """
    handle = _lock(private / "lock")
    try:
        clear_parts(private)
        clear_parts(private.parent)
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)  # the file stays: after removing it, two processes could lock two files of the same name


def wait_for_user(
    private: Path,
    done: Callable[[], bool],
    waiting: Callable[[], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Wait while another process works in a run's folder, until it is ``done`` or has gone; ``waiting`` is told once.

    The lock itself is not touched: to hold it for a moment could stop that process from taking it again. It lets go of
    it between two parts of its work, so a free lock means an end only after a while.
    """
    free, told = 0, False
    while free < _LOOKS:
        if _held(private / "lock"):
            if not told:
                waiting()
            free, told = 0, True
        elif not told or done():
            return
        else:
            free += 1
        pause(_PAUSE)


def _held(lock: Path) -> bool:
    """Return whether the process that the lock names holds it, as Linux lists them; elsewhere False."""
    try:
        inode, user = lock.stat().st_ino, lock.read_text(encoding="ascii").strip()
        listed = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return False
    return any(row[1] == "FLOCK" and row[4] == user and row[5].endswith(f":{inode}") for row in listed if len(row) > 5)


def clear_parts(folder: Path) -> None:
    """Remove the unfinished files that killed writes left in a folder; nobody else may be writing there."""
    for part in folder.glob(f".*{PART}"):
        part.unlink(missing_ok=True)


def _lock(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE)
    except OSError as error:
        raise CannotWrite(why_not(path, 0, error)) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
        os.close(handle)
        who = f"process {holder}" if holder else "another process"
        raise FolderInUse(f"{path.parent.parent} is in use by {who}; wait for it, or name another folder.") from error
    except OSError as error:
        os.close(handle)
        raise CannotWrite(why_not(path, 0, error)) from error
    return handle


def write_notes(notes: list[str], private: Path) -> list[str]:
    """Keep notes where only the data holder reads, and return them."""
    text = json.dumps({"format": 1, "notes": notes}, indent=1) + "\n"
    write_atomically(private / NOTES, text.encode())
    return notes
