"""Files and folders with the modes they are meant to have: whole or absent, and whatever the umask says.

A private file is for its owner alone (600, in folders of 700); a public one may be read by all and written by its
owner (644, in folders of 755). Both are set, not asked for: a umask of 000 opens nothing, one of 077 closes nothing.
"""

import errno
import os
import tempfile
from pathlib import Path
from typing import Final, Literal

from fedveil.errors import FedveilError

PRIVATE: Literal[0o600] = 0o600
PUBLIC: Literal[0o644] = 0o644
PART: Final = ".part"  # how the name of an unfinished file ends
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class CannotWrite(FedveilError):
    """A file could not be written; what stood there before stands there still."""


def write_atomically(path: Path, data: bytes, mode: Literal[0o600, 0o644] = PRIVATE) -> None:
    """Put ``data`` at ``path``: at any moment, also after a crash, the old file or the new one is there, whole."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)  # mode 600 at once
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
        raise CannotWrite(why_not(path, len(data), error)) from error


def link_new(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``, private, unless something is there: then ``FileExistsError``.

    The name appears when the whole file is on the disk, and has been read back. Until then the file has no name where
    the system can do that, so a process that is killed leaves nothing; elsewhere it has one that ends in ``.part``.
    """
    handle, name = _unnamed(path)
    try:
        os.fchmod(handle, PRIVATE)
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        if os.pread(handle, len(data) + 1, 0) != data:
            raise OSError(errno.EIO, "what was written is not what is read back")
        source = f"/proc/self/fd/{handle}" if name is None else name
        os.link(source, path, src_dir_fd=handle, follow_symlinks=True)  # the number is not used with a whole path
    finally:
        os.close(handle)
        if name is not None:
            Path(name).unlink(missing_ok=True)
    sync_folder(path.parent)


def _unnamed(path: Path) -> tuple[int, str | None]:
    """An open file in the folder of ``path``, and its name if it must have one."""
    try:
        if Path("/proc/self/fd").is_dir():
            return os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, PRIVATE), None
    except (AttributeError, OSError):  # another system, or a file system that cannot
        pass
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)


def why_not(path: Path, size: int, error: OSError) -> str:
    """One sentence for a file or folder that could not be written."""
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


def public_folder(path: Path) -> Path:
    """The folder, made if absent with its parents, as one that all may look into; one that is there stays as it is."""
    return _folder(path, 0o755)


def owners_folder(path: Path) -> Path:
    """The folder, made if absent as one for its owner alone; one that is there stays as it is."""
    _folder(path.absolute().parent, 0o755)
    return _folder(path, 0o700)


def _folder(path: Path, mode: int) -> Path:
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        try:
            one.mkdir(mode=mode)
        except FileExistsError:  # another process was quicker, and has chosen its mode
            if not one.is_dir():
                raise
        else:
            one.chmod(mode)
    path.mkdir(exist_ok=True)  # complains if a file is there
    return path
