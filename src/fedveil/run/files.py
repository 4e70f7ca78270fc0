"""The folder of a run: a private part closed to others, and one process to it."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedveil.errors import BadValue, FedveilError
from fedveil.files import PART, PRIVATE, PUBLIC, CannotWrite, why_not, write_atomically

__all__ = [
    "PRIVATE",
    "PUBLIC",
    "CannotWrite",
    "FolderInUse",
    "clear_parts",
    "private_folder",
    "sole_use",
    "write_atomically",
]


class FolderInUse(FedveilError):
    """Another process is working in this folder."""


def private_folder(path: Path) -> Path:
    """A folder that only its owner can enter; made if absent, closed if open, refused if it is a link elsewhere."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise BadValue(f"{path} must be a folder of its own, and it is a link. Remove it, or name another place.")
        if stat.S_IMODE(found.st_mode) != 0o700:  # made by others, or under a umask that closes it to its owner
            path.chmod(0o700)
    except FileExistsError as error:
        raise BadValue(f"{path} must be a folder, and a file is there. Remove it, or name another place.") from error
    except OSError as error:
        raise CannotWrite(why_not(path, 0, error)) from error
    return path


@contextmanager
def sole_use(private: Path) -> Iterator[None]:
    """Hold a run's private folder alone; a process that dies, however it dies, lets go.

    What an interrupted write left behind, here and in the folder above, is cleared.
    """
    handle = _lock(private / "lock")
    try:
        clear_parts(private)
        clear_parts(private.parent)
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)  # the file stays: removing it would let two processes lock two files of one name


def clear_parts(folder: Path) -> None:
    """Remove what writes that were killed left in a folder; nobody else may be writing there."""
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
