"""Opening files: gzip by its suffix, and one sentence for every way in which that fails."""

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
    """Turn what the operating system and the decoders raise into one sentence about the file."""
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
    """Turn whatever a decoder of binary files raises over damaged bytes into one sentence."""
    try:
        yield
    except BadValue:
        raise
    except Exception as error:  # libraries raise almost anything here: KeyError, SyntaxError, MemoryError, ...
        told = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadValue(f"{file} must be {kind}: {told}.") from error


@contextmanager
def bytes_of(path: Path) -> Iterator[IO[bytes]]:
    """A file's bytes, unpacked when its name ends in .gz."""
    with failing_clearly(path.name):
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as unpacked:
                yield io.BufferedReader(_Capped(unpacked, path.name, path.stat().st_size))
        else:
            with path.open("rb") as plain:
                yield plain


class _Capped(io.RawIOBase):
    """What a gzip file unpacks to, up to what a file of its size may; a bomb is refused where it passes that."""

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
    """Lines of bounded length: one that never ends is refused before it is in memory."""
    number = 0
    while line := text.readline(LINE):
        number += 1
        require(len(line) < LINE, f"{file}, line {number},", f"have fewer than {LINE} characters", "more")
        yield line


@contextmanager
def text_of(path: Path) -> Iterator[IO[str]]:
    """A file's text; a byte-order mark is skipped."""
    with bytes_of(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        yield text
