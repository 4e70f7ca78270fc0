"""Plain CSV files fast, through pyarrow where it is installed: numbers as numbers, categories as texts.

Only what Python's own reader would understand in the same way is read here. At anything else (a text among numbers,
quotes after a space, rows of unequal length) it stops with :class:`NotPlain`, and the careful reader takes over from
the first record that was not handed out.
"""

import importlib
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.data.column import Cells
from fedveil.data.read_csv import delimiter_of
from fedveil.data.spec import Source
from fedveil.files import open_file

_BLOCK = 2**21  # bytes read at a time: about what a processor keeps close


class NotPlain(Exception):
    """The file is not plain enough for this reader."""


def arrow_chunks(
    source: Source, path: Path, names: tuple[str, ...], wanted: Mapping[str, bool], rows: int
) -> Generator[dict[str, Cells]]:
    """Named columns of some records at a time."""
    usual = source.decimal == "." and source.thousands is None
    if path.suffix == ".gz" or not source.header or len(names) == 1 or not usual:
        raise NotPlain
    try:
        arrow, reader = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.csv")
    except ImportError as error:
        raise NotPlain from error
    here = [name for name in names if name in wanted]
    kinds = {name: arrow.float64() if wanted[name] else arrow.string() for name in here}
    if not here:
        raise NotPlain
    try:
        with open_file(path) as stream:
            head = stream.readline()
            if not head.strip(b"\xef\xbb\xbf \t\r\n") or head.count(b'"') % 2:  # the header is not the first line
                raise NotPlain
            stream.seek(0)
            options = {
                "read_options": reader.ReadOptions(block_size=_BLOCK, column_names=list(names), skip_rows=1),
                "parse_options": reader.ParseOptions(delimiter=delimiter_of(source, path)),
                "convert_options": reader.ConvertOptions(
                    include_columns=here,
                    column_types=kinds,
                    null_values=[*source.missing],
                    strings_can_be_null=False,
                ),
            }
            with reader.open_csv(stream, **options) as opened:  # closed, or its threads would outlive us
                for batch in _ahead(opened):
                    for start in range(0, batch.num_rows, rows):
                        part = batch.slice(start, rows)
                        yield {name: _cells(part.column(name), wanted[name]) for name in here}
    except arrow.ArrowInvalid as error:
        raise NotPlain from error


def _ahead(batches: Iterator[Any]) -> Generator[Any]:
    """Return the same batches; while one is worked on, another thread reads the next."""
    with ThreadPoolExecutor(1) as other:
        coming = other.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = other.submit(next, batches, None)
            yield batch


def _cells(column: Any, numbers: bool) -> Cells:
    if numbers:
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    coded = column.dictionary_encode()  # categories repeat: look at every word once
    words = [text.strip() for text in coded.dictionary.to_pylist()]
    if any('"' in word or "\0" in word for word in words):
        raise NotPlain
    return np.asarray(np.array(words, dtype=np.str_)[coded.indices.to_numpy(zero_copy_only=False)])
