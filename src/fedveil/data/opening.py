"""Open files, with gzip by suffix, and turn every kind of failure into one sentence."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.limits import LINE, check_unpacked


@contextmanager
def failing_clearly(file: str) -> Iterator[None]:
    """Turn errors of the operating system and of decoders into one sentence about the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadValue(
            f"{file} must be a file, but there is none; paths are relative to the study's folder."
        ) from error
    except (IsADirectoryError, PermissionError) as error:
        raise BadValue(f"{file} must be a readable file: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadValue(f"{file} must be UTF-8 text: {error.reason} at byte {error.start}.") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadValue(f"{file} must be a whole gzip file: {error}.") from error
    except MemoryError as error:
        raise BadValue(f"{file} must fit in this machine's memory, and it does not. Choose fewer columns.") from error


@contextmanager
def damage_told(file: str, kind: str) -> Iterator[None]:
    """Turn any error of a binary decoder on damaged bytes into one sentence."""
    try:
        yield
    except BadValue:
        raise
    except Exception as error:  # libraries raise almost anything here: KeyError, SyntaxError, MemoryError, ...
        told = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadValue(f"{file} must be {kind}: {told}.") from error


@contextmanager
def bytes_of(path: Path) -> Iterator[IO[bytes]]:
    """Open a file's bytes, unpacked if its name ends in .gz."""
    with failing_clearly(path.name):
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as unpacked:
                yield io.BufferedReader(_Capped(unpacked, path.name, path.stat().st_size))
        else:
            with path.open("rb") as plain:
                yield plain


class _Capped(io.RawIOBase):
    """The unpacked content of a gzip file, limited by the file's size, so that a decompression bomb is refused."""

    def __init__(self, unpacked: gzip.GzipFile, file: str, packed: int) -> None:
        self._unpacked, self._file, self._packed, self._read = unpacked, file, packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        part = self._unpacked.read(len(buffer))
        self._read += len(part)
        check_unpacked(self._file, self._packed, self._read)
        buffer[: len(part)] = part
        return len(part)


def lines_of(text: IO[str], file: str) -> Iterator[str]:
    """Yield lines of bounded length; a line that never ends is refused before it fills the memory."""
    number = 0
    while line := text.readline(LINE):
        number += 1
        require(len(line) < LINE, f"{file}, line {number},", f"have fewer than {LINE} characters", "more")
        yield line


@contextmanager
def text_of(path: Path) -> Iterator[IO[str]]:
    """Open a file's text; a byte-order mark is skipped."""
    with bytes_of(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        yield text
