"""Records as a Python program has them: named columns, a data frame, or an array, all read as named columns."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedveil.checks import require
from fedveil.data.column import Cells
from fedveil.errors import BadValue


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
        found = np.asarray(X)
        if found.dtype.kind in "US":  # numbers among texts would be spelt by numpy
            found = np.asarray(X, dtype=object)
    except ValueError as error:
        raise BadValue(f"X must be an array with rows of equal length: {error}.") from error
    return found


def _column(name: str, values: Any) -> Cells:
    """One-dimensional numbers or texts; None and NaN among texts are missing values."""
    found = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    require(found.ndim == 1, f"The column {name!r}", "have one value a record", found.shape)
    if found.dtype.kind in "biufU":
        return np.asarray(found)
    plain = ["nan" if cell is None else str(cell) for cell in found.tolist()]
    return np.array(plain, dtype=np.str_)
