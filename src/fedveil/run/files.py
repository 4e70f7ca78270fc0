"""Files of a run: whole or absent, private ones closed to others, one process to a folder."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from fedveil.errors import BadValue, FedveilError

PRIVATE: Literal[0o600] = 0o600
PUBLIC: Literal[0o644] = 0o644
_PART = ".part"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class CannotWrite(FedveilError):
    """A file could not be written; what stood there before stands there still."""


class FolderInUse(FedveilError):
    """Another process is working in this folder."""


def write_atomically(path: Path, data: bytes, mode: Literal[0o600, 0o644] = PRIVATE) -> None:
    """Put ``data`` at ``path``: at any moment, also after a crash, the old file or the new one is there, whole."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)  # mode 600 at once
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise CannotWrite(_sentence(path, len(data), error)) from error


def _sentence(path: Path, size: int, error: OSError) -> str:
    if error.errno in _FULL:
        return f"There is no room for {path} ({size} bytes), and nothing was changed; free some space and run again."
    return f"{path} cannot be written ({error.strerror or error}), and nothing was changed."


def sync_folder(folder: Path) -> None:
    """Make names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def private_folder(path: Path) -> Path:
    """A folder that only its owner can enter; made if absent, closed if open, refused if it is a link elsewhere."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise BadValue(f"{path} must be a folder of its own, and it is a link. Remove it, or name another place.")
        if stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    except FileExistsError as error:
        raise BadValue(f"{path} must be a folder, and a file is there. Remove it, or name another place.") from error
    except OSError as error:
        raise CannotWrite(_sentence(path, 0, error)) from error
    return path


@contextmanager
def sole_use(private: Path) -> Iterator[None]:
    """Hold a run's private folder alone; a process that dies, however it dies, lets go.

    What an interrupted write left behind, here and in the folder above, is cleared.
    """
    handle = _lock(private / "lock")
    try:
        for folder in (private, private.parent):
            for part in folder.glob(f".*{_PART}"):
                part.unlink(missing_ok=True)
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)  # the file stays: removing it would let two processes lock two files of one name


def _lock(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE)
    except OSError as error:
        raise CannotWrite(_sentence(path, 0, error)) from error
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
        raise CannotWrite(_sentence(path, 0, error)) from error
    return handle
