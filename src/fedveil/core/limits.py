"""Largest sizes that are accepted, checked from headers, names and counts before anything of that size is allocated.

Page: docs/limits.md. Each limit is far above what anybody needs and far below what stops a machine.
"""

from typing import Final

from fedveil.core.errors import require

CELLS: Final = 2 * 10**9  # numbers in all rows of a source: 16 GB as float64
COLUMNS: Final = 10**6  # columns of a file
LINE: Final = 2**26  # characters of one line of a text file
TEXT: Final = 1000  # characters of a label, a category or a client's name
UNPACKED: Final = 2**28  # bytes that any file may unpack to, however small it is
RATIO: Final = 200  # or this many times its own size, if that is more
INFLATED: Final = 2**24  # bytes that any gzip file may unpack to: a megabyte of short lines is a second of work
INFLATION: Final = 50  # or this many times its own size, if that is more
TABLES: Final = 2**26  # characters of a TOML file
KEYS: Final = 100_000  # keys and tables of a TOML file
NESTED: Final = 32  # parts of a dotted key, and brackets within brackets, of a TOML file
FILE: Final = 2**31  # bytes of a file that is read whole: a model, a certificate, a study
ROUNDS: Final = 2_000_000  # rounds of all passes of a hidden run
PASSES: Final = 10_000  # passes of a hidden run
PARAMETERS: Final = 10**8  # numbers of a model
MEMORY: Final = 2**32  # bytes that a query, or a batch of a Feather file, may take
ENVELOPE: Final = 2**28  # bytes of one message between an aggregator and a site
FRAME: Final = 2**30  # bytes of several messages in one frame of the aggregator's relay
BLOCKS: Final = 100_000  # parts of one frame


def check_cells(file: str, rows: int, columns: int) -> None:
    """Refuse data that would not fit in memory as dense rows."""
    hint = "Rows are kept dense; choose fewer columns (data.columns) or rows."
    require(rows * max(columns, 1) <= CELLS, file, f"hold at most {CELLS:g} numbers", rows * columns, hint)


def check_columns(file: str, columns: int) -> None:
    """Refuse more columns than any model could use."""
    require(columns <= COLUMNS, file, f"have at most {COLUMNS:g} columns", columns, "Is data.delimiter right?")


def check_unpacked(file: str, packed: int, unpacked: int) -> None:
    """Refuse a small file that unpacks to a very large one.

    ``unpacked`` is in bytes, as the header of the file states it.
    """
    most = most_unpacked(packed)
    hint = "Store it without compression if it is meant to be so large."
    require(unpacked <= most, file, f"unpack to at most {most} bytes ({RATIO} times its size)", unpacked, hint)


def check_inflated(file: str, packed: int, unpacked: int) -> None:
    """Refuse a small gzip file that unpacks to a very large one; ``unpacked``: what came out of it."""
    most = max(INFLATED, INFLATION * packed)
    hint = "Unpack it first (gunzip) if it is meant to be so large."
    require(unpacked <= most, file, f"unpack to at most {most} bytes ({INFLATION} times its size)", unpacked, hint)


def most_unpacked(packed: int) -> int:
    """Return how many bytes a file of this size may unpack to."""
    return max(UNPACKED, RATIO * packed)
