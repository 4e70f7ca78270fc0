"""Write files and folders with fixed permissions, and never leave a file half written.

A private file can be read by its owner only (mode 600, in folders of mode 700); a public file can be read by everyone
and written by its owner (644, in folders of 755). The modes are set explicitly, so the umask changes nothing.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final, Literal

from fedveil.core.errors import BadValue, FedveilError
from fedveil.core.limits import FILE

PRIVATE: Literal[0o600] = 0o600
PUBLIC: Literal[0o644] = 0o644
PART: Final = ".part"  # suffix of a file that is still being written
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class CannotWrite(FedveilError):
    """A file could not be written; the file that was there before is unchanged."""


def write_atomically(path: Path, data: bytes | Iterable[bytes], mode: Literal[0o600, 0o644] = PRIVATE) -> None:
    """Put ``data`` at ``path``, whole or part by part.

    At any moment, even after a crash, either the old file or the new one is there, complete.
    """
    try:
        # mkstemp creates the file with mode 600
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        size = len(data) if isinstance(data, bytes) else 0
        raise CannotWrite(why_not(path, size, error)) from error


def link_new(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` as a private file; raise ``FileExistsError`` if the path exists.

    The name appears only after the whole file has been written to the disk and read back. Until then the file has no
    name where the system supports that, so a killed process leaves nothing behind; elsewhere its name ends in
    ``.part``.
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
        # src_dir_fd is ignored because the path is absolute
        os.link(source, path, src_dir_fd=handle, follow_symlinks=True)
    finally:
        os.close(handle)
        if name is not None:
            Path(name).unlink(missing_ok=True)
    sync_folder(path.parent)


def _unnamed(path: Path) -> tuple[int, str | None]:
    """Open a file in the folder of ``path``; return its handle, and its name if the system requires one."""
    try:
        if Path("/proc/self/fd").is_dir():
            return os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, PRIVATE), None
    except (AttributeError, OSError):  # another operating system, or a file system without unnamed files
        pass
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)


def why_not(path: Path, size: int, error: OSError) -> str:
    """Return one sentence that says why a file or folder could not be written."""
    if error.errno in _FULL:
        return f"There is no room for {path} ({size} bytes), and nothing was changed; free some space and run again."
    return f"{path} cannot be written ({error.strerror or error}), and nothing was changed."


def open_file(path: Path) -> IO[bytes]:
    """Open an ordinary file to be read; refuse a pipe, a device or a socket, which may block or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe, a device or a socket, not a file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: Path, most: int = FILE) -> bytes:
    """Return the bytes of an ordinary file; refuse one that is too large to be what it should be."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise BadValue(f"{path.name} must have at most {most} bytes, got {size}.")
        return file.read(size)


def sync_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that the names in it survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def public_folder(path: Path) -> Path:
    """Return the folder; create it and its parents, readable by everyone, if absent.

    The mode of an existing folder is not changed.
    """
    return _folder(path, 0o755)


def owners_folder(path: Path) -> Path:
    """Return the folder; create it, accessible to its owner only, if absent.

    The mode of an existing folder is not changed.
    """
    _folder(path.absolute().parent, 0o755)
    return _folder(path, 0o700)


def _folder(path: Path, mode: int) -> Path:
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        try:
            one.mkdir(mode=mode)
        except FileExistsError:  # another process created it first and chose its mode
            if not one.is_dir():
                raise
        else:
            one.chmod(mode)
    path.mkdir(exist_ok=True)  # raises if there is a file of this name
    return path
