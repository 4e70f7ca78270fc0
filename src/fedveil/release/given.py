"""Records as a Python program has them: named columns, a data frame, or an array, all read as named columns."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.data.cells import refuse_nul
from fedveil.data.column import Cells

_MISSING = ("NAType", "NaTType")  # of pandas, which need not be installed


def columns_given(X: Any, names: tuple[str, ...]) -> dict[str, Cells]:
    """Return the columns of ``X`` by name; an array's columns are ``names``, in that order."""
    if isinstance(X, Mapping):
        return {str(name): _column(str(name), values) for name, values in X.items()}
    titles = getattr(X, "column_names", None)  # a table of Arrow has these, a frame of pandas or polars the others
    titles = getattr(X, "columns", None) if titles is None else titles
    if titles is not None:
        return {str(name): _column(str(name), X[name]) for name in titles}
    array = _array(X)
    require(array.ndim == 2, "X", "have rows and columns", array.shape, "One record is [[...]].")
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    require(array.shape[1] == len(names), "X", f"have the model's {len(names)} columns ({shown})", array.shape[1])
    return {name: _column(name, array[:, index]) for index, name in enumerate(names)}


def _array(X: Any) -> Any:
    try:
        array = np.asarray(X)
        if array.dtype.kind in "US":  # numbers among texts would be spelt by numpy
            array = np.asarray(X, dtype=object)
    except ValueError as error:
        raise BadValue(f"X must be an array with rows of equal length: {error}.") from error
    return array


def _column(name: str, values: Any) -> Cells:
    """One-dimensional numbers or texts; None, NaN and what pandas has for them are missing values among texts.

    A truth value among other objects is a number, as in a column of truth values: otherwise a gap in one record, which
    makes objects of the whole column, would turn numbers into texts.
    """
    cells = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    require(cells.ndim == 1, f"The column {name!r}", "have one value a record", cells.shape)
    if cells.dtype.kind in "biufU":
        return np.asarray(cells)
    if cells.dtype.kind in "mM":  # numpy would count them from 1970
        cells = cells.astype(np.str_)
    spelt = [_as_text(cell) for cell in cells.tolist()]
    refuse_nul(spelt, name, "the data")
    return np.array(spelt, dtype=np.str_)


def _as_text(cell: Any) -> str:
    if cell is None or type(cell).__name__ in _MISSING or (isinstance(cell, str) and cell == "NaT"):
        return "nan"
    return str(int(cell)) if isinstance(cell, bool | np.bool_) else str(cell)
