"""NumPy archives: a matrix ``X`` whose columns are named 0, 1, ..., and one-dimensional arrays named by themselves."""

from pathlib import Path

import numpy as np

from fedveil.checks import require
from fedveil.data.opening import bytes_of, damage_told
from fedveil.data.read_columns import from_columns
from fedveil.data.spec import Source
from fedveil.data.table import Array, Table, check_cells


def read_npz(source: Source, path: Path) -> Table:
    """The rows of one archive; objects are refused, since unpickling them runs code."""
    columns: dict[str, Array] = {}
    for name, values in _arrays(path).items():
        whole = f"The array {name!r} of {path.name}"
        if values.ndim >= 2:
            require(name == "X", whole, "be one-dimensional, or named X", values.shape)
            flat = values.reshape(values.shape[0], -1) if values.size else values.reshape(values.shape[0], 0)
            check_cells(path.name, *flat.shape)
            new = {str(index): flat[:, index] for index in range(flat.shape[1])}
        else:
            require(values.ndim == 1, whole, "have one value a row", values.shape)
            new = {name: values}
        taken = sorted(columns.keys() & new.keys())
        require(not taken, f"The arrays of {path.name}", "not be named as a column of X", taken[:5])
        columns |= new
    return from_columns(source, path.name, columns)


def _arrays(path: Path) -> dict[str, Array]:
    with bytes_of(path) as stream, damage_told(path.name, "a NumPy archive of plain arrays"):
        content = np.load(stream, allow_pickle=False)
        require(not isinstance(content, np.ndarray), path.name, "be an archive of arrays", "one array")
        with content as archive:
            return {name: archive[name] for name in archive.files}
