"""Open files, with gzip by suffix, and turn every kind of failure into one sentence."""

import gzip
import importlib
import io
import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedveil.core.errors import BadValue, require, why
from fedveil.core.files import open_file
from fedveil.core.limits import LINE, MEMORY, check_inflated

# The door to pyarrow, which is loaded when something is read: --help and accounting do without it.


class _Library:
    """A module that is imported when its first name is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


arrow: Any = _Library("pyarrow")
compute: Any = _Library("pyarrow.compute")
csv: Any = _Library("pyarrow.csv")
parquet: Any = _Library("pyarrow.parquet")
dataset: Any = _Library("pyarrow.dataset")
ipc: Any = _Library("pyarrow.ipc")


_PIECE = 2**20  # bytes at a time


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
    except OSError as error:
        raise BadValue(f"{file} must be a readable file: {why(error)}.") from error
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
            _check_inflated(path)
            with open_file(path) as packed, gzip.open(packed, "rb") as unpacked:
                yield io.BufferedReader(unpacked)
        else:
            with open_file(path) as plain:
                yield plain


@contextmanager
def native(path: Path) -> Iterator[Any]:
    """Open a file as Arrow reads it, unpacked if its name ends in .gz; what it unpacks to was checked before.

    Arrow reads ahead in a thread of its own, which must not need Python when Python has ended.
    """
    with failing_clearly(path.name):
        open_file(path).close()  # refuses what is no ordinary file
        with arrow.OSFile(str(path)) as stream:
            yield arrow.CompressedInputStream(stream, "gzip") if path.suffix == ".gz" else stream


def _check_inflated(path: Path) -> None:
    """Refuse a decompression bomb before a line of it is read: unpacking takes a hundredth of the time."""
    packed, found = path.stat().st_size, 0
    with open_file(path) as file, gzip.open(file, "rb") as unpacked:
        while part := unpacked.read(_PIECE):
            found += len(part)
            check_inflated(path.name, packed, found)


def lines_of(text: IO[str], file: str) -> Iterator[str]:
    """Yield lines of bounded length; a line that never ends is refused before it fills the memory."""
    number = 0
    while line := text.readline(LINE):
        number += 1
        if len(line) >= LINE:  # asked first: the words of a refusal for every line take longer than the line
            require(False, f"{file}, line {number},", f"have fewer than {LINE} characters", "more")
        yield line


@contextmanager
def text_of(path: Path) -> Iterator[IO[str]]:
    """Open a file's text; a byte-order mark is skipped."""
    with bytes_of(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        yield text


@contextmanager
def memory_limit() -> Iterator[None]:
    """Let a library take so much more memory and no more: functions of texts make gigabytes of a few letters.

    A database counts its tables against a limit of its own, and not the texts that it is just making.
    """
    pages = Path("/proc/self/statm")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if not pages.exists():  # an operating system that does not say
        yield
        return
    here = int(pages.read_text(encoding="ascii").split()[0]) * resource.getpagesize() + MEMORY
    known = [limit for limit in (here, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
