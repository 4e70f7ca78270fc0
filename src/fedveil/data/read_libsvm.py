"""Read sparse text, one record a line: ``label index:value ...``; the number of features is stated, never learned."""

import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedveil.core.checks import require
from fedveil.core.limits import check_cells
from fedveil.data.cells import Texts, numbers_of
from fedveil.data.opening import lines_of, text_of
from fedveil.data.spec import Source
from fedveil.data.table import Opened, block_of


def open_libsvm(source: Source, path: Path) -> Opened:
    """Return the rows of one file, dense; columns are named 1 to ``features``."""
    count = source.reading.features
    hint = "The largest index that occurs would be learned from the data."
    require(count is not None, "data.features", "state how many features a libsvm file has", count, hint)
    width = count or 0
    labels: list[str] = []
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    with text_of(path) as text:
        for number, line in enumerate(lines_of(text, path.name), start=1):
            words = line.partition("#")[0].split()
            where = f"{path.name}, line {number}"
            if not words:  # blank, or only a comment
                continue
            columns_here, values_here = _pairs(words[1:], width, where)
            rows.extend([len(labels)] * len(columns_here))
            columns.extend(columns_here)
            values.extend(values_here)
            labels.append(words[0])
            check_cells(path.name, len(labels), width)
    block = np.zeros((len(labels), width))
    block[rows, columns] = values
    used = 1 + max(columns, default=-1)  # data.features may state more, but that is not part of the file
    missing = frozenset(source.reading.missing)
    target = numbers_of(Texts.of(labels), missing, "label", lambda row: f"{path.name}, record {row + 1}")
    names = tuple(str(j) for j in range(1, width + 1))
    return block_of(block, target, names, path.name, "record", held=names[:used])


def _pairs(words: list[str], width: int, where: str) -> tuple[list[int], list[float]]:
    """Return the columns (from 0) and values of one line."""
    columns, values, last = [], [], 0
    for word in words:
        column, value = _pair(word)
        if not (last < column <= width and -math.inf < value < math.inf):
            rule = f"hold index:value pairs, indices increasing from 1 to data.features ({width}), values finite"
            require(False, where, rule, word)
        columns.append(column - 1)
        values.append(value)
        last = column
    return columns, values


@lru_cache(maxsize=65536)  # cached, because binary features repeat a few words on every line
def _pair(word: str) -> tuple[int, float]:
    """Return index and value; index 0, which is not allowed, if the word is not a pair."""
    index, _, value = word.partition(":")
    try:
        return (int(index), float(value)) if index.isdecimal() and "_" not in value else (0, 0.0)
    except ValueError:
        return 0, 0.0
