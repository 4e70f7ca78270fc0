"""Read NumPy archives.

A matrix ``X`` with columns named 0, 1, ..., and one-dimensional arrays under their own names.
"""

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as format_of

from fedveil.core.checks import require
from fedveil.core.limits import check_cells, check_columns, check_unpacked
from fedveil.data.opening import bytes_of, damage_told
from fedveil.data.table import Array, Opened, frame_of
from fedveil.data.typed import column_of


def open_npz(path: Path) -> Opened:
    """Return the rows of an archive; refuse objects, because unpickling them runs code."""
    columns = {}
    for name, values in _columns(path).items():
        plain = values.dtype.kind in "biufU"
        require(plain, f"The column {name!r} of {path.name}", "hold numbers or texts", str(values.dtype))
        columns[name] = column_of(values)
    return frame_of(columns, path.name)


def _columns(path: Path) -> dict[str, Array]:
    """Return the columns of an archive by name."""
    columns: dict[str, Array] = {}
    for name, values in _arrays(path).items():
        whole = f"The array {name!r} of {path.name}"
        if values.ndim >= 2:
            require(name == "X", whole, "be one-dimensional, or named X", values.shape)
            flat = values.reshape(values.shape[0], -1) if values.size else values.reshape(values.shape[0], 0)
            new = {str(index): flat[:, index] for index in range(flat.shape[1])}
        else:
            require(values.ndim == 1, whole, "have one value a row", values.shape)
            new = {name: values}
        taken = sorted(columns.keys() & new.keys())
        require(not taken, f"The arrays of {path.name}", "not be named as a column of X", taken[:5])
        columns |= new
    return columns


def _arrays(path: Path) -> dict[str, Array]:
    with bytes_of(path) as stream, damage_told(path.name, "a NumPy archive of plain arrays"):
        content = np.load(stream, allow_pickle=False)
        require(not isinstance(content, np.ndarray), path.name, "be an archive of arrays", "one array")
        with content as archive:
            check_arrays(archive.zip, path.name, path.stat().st_size)
            return {name: archive[name] for name in archive.files}


@contextmanager
def model_arrays(data: bytes) -> Iterator[Any]:
    """Open the arrays of a model's file, which is written without compression: it unpacks to nothing larger."""
    with damage_told("model.npz", "an archive of plain arrays"):
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            stated = sum(part.file_size for part in packed.infolist())
            require(stated <= len(data), "model.npz", "be written without compression", f"{stated} bytes")
            check_arrays(packed, "model.npz", len(data))
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            yield found


def check_arrays(archive: zipfile.ZipFile, file: str, size: int) -> None:
    """Check the sizes stated in the archive's directory and the arrays' headers, before an array is created."""
    total = 0
    for member in archive.infolist():
        with archive.open(member) as part:
            version = format_of.read_magic(part)
            read = format_of.read_array_header_1_0 if version == (1, 0) else format_of.read_array_header_2_0
            shape, _, kind = read(part)
            if kind.hasobject:  # refused when it is loaded, because its content could run code
                continue
            stated = part.tell() + math.prod(shape) * kind.itemsize
        whole = f"The array {member.filename!r} of {file}"
        require(stated == member.file_size, whole, f"have {stated} bytes, as its head says", member.file_size)
        check_cells(file, shape[0] if shape else 1, math.prod(shape[1:]))
        check_columns(file, math.prod(shape[1:]))
        total += max(member.file_size, 8 * math.prod(shape))
    check_unpacked(file, size, total)
