"""Records as a Python program has them, a data frame, named columns or a table of Arrow, as columns of Arrow."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from fedveil.core.errors import require
from fedveil.data.opening import arrow
from fedveil.data.typed import Column, column_of, is_nested

_MISSING: Final = ("NAType", "NaTType")  # of pandas, which need not be installed


def columns_of_frame(frame: Any) -> dict[str, Column]:
    """Return the columns of a frame of pandas or polars, of a table of Arrow or of a mapping, by their names."""
    if isinstance(frame, Mapping):
        given = {name: frame[name] for name in frame}
    else:
        titles = getattr(frame, "column_names", None)  # a table of Arrow has these, a frame of pandas or polars others
        titles = getattr(frame, "columns", None) if titles is None else titles
        require(titles is not None, "The data", "be a frame, a table or named columns", type(frame).__name__)
        names = [] if titles is None else list(titles)
        require(len({str(name) for name in names}) == len(names), "The frame", "name each column once", names[:20])
        given = {name: frame[name] for name in names}
    return {str(name): _column(str(name), values) for name, values in given.items()}


def _column(name: str, values: Any) -> Column:
    """Return one column; None, NaN and what pandas has for them are missing values.

    Truth values are numbers, also among gaps, and so are whole numbers; other objects of several kinds become texts.
    """
    if isinstance(values, arrow.Array | arrow.ChunkedArray):
        return values
    if hasattr(values, "to_arrow"):  # of polars
        return values.to_arrow()
    if not hasattr(values, "__arrow_array__") and not hasattr(values, "dtype"):
        values = np.asarray(values, dtype=None if _alike(values) else object)
    shape = np.shape(values)
    require(len(shape) == 1, f"The column {name!r}", "have one value a record", shape)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return column_of(values)
    try:
        result = arrow.array(values, from_pandas=True)
        if not is_nested(result.type):
            return result
    except (arrow.ArrowException, OverflowError):  # values of several kinds
        pass
    return arrow.array([_text(cell) for cell in values], type=arrow.string())


def _alike(values: Any) -> bool:
    """Whether a list holds values of one kind: numpy would spell numbers among texts, and count truth values."""
    return len({type(value) for value in values}) <= 1


def _text(cell: Any) -> str | None:
    gone = cell is None or type(cell).__name__ in _MISSING or (isinstance(cell, float) and cell != cell)
    if gone:
        return None
    return str(int(cell)) if isinstance(cell, bool | np.bool_) else str(cell)
