"""Opening files: gzip by its suffix, and one sentence for every way in which that fails."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedveil.errors import BadValue


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
                yield io.BufferedReader(unpacked)
        else:
            with path.open("rb") as plain:
                yield plain


@contextmanager
def text_of(path: Path) -> Iterator[IO[str]]:
    """A file's text; a byte-order mark is skipped."""
    with bytes_of(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        yield text
