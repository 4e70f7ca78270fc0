"""Read the IDX format of MNIST: an array of images in one file, their labels in another."""

import math
from pathlib import Path

import numpy as np

from fedveil.core.checks import require
from fedveil.core.limits import check_cells, check_columns, check_unpacked
from fedveil.data.opening import bytes_of
from fedveil.data.table import Array, Opened, block_of

KINDS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def open_idx(path: Path, labels: Path | None) -> Opened:
    """Return images as flat rows, with columns named by their position from 0; without labels they are zeros."""
    images = _array(path)
    marks = np.zeros(len(images), dtype=np.uint8) if labels is None else _array(labels)
    require(images.ndim >= 2, path.name, "hold an array of rows or images", f"{images.ndim} dimensions")
    own = path if labels is None else labels
    require(marks.ndim == 1, own.name, "hold one label for each row", f"{marks.ndim} dimensions")
    width = math.prod(images.shape[1:])
    same = images.shape[0] == marks.size
    require(same, f"{path.name} and {own.name}", "have the same number of records", (images.shape[0], marks.size))
    flat = images.reshape(images.shape[0], width)
    return block_of(flat, marks, tuple(str(j) for j in range(width)), path.name, "record")


def _array(path: Path) -> Array:
    """Return the array in a file: two zero bytes, a type, the number of dimensions, their sizes, the values."""
    with bytes_of(path) as stream:
        head = stream.read(4)
        right = len(head) == 4 and head[:2] == b"\0\0" and head[2] in KINDS and head[3] >= 1
        require(right, path.name, "begin as an IDX file does", head)
        sizes = stream.read(4 * head[3])
        require(len(sizes) == 4 * head[3], path.name, "state all its dimensions", f"{4 + len(sizes)} bytes")
        shape = tuple(int(n) for n in np.frombuffer(sizes, dtype=">u4"))
        kind, start = np.dtype(KINDS[head[2]]), 4 + len(sizes)
        check_cells(path.name, shape[0], math.prod(shape[1:]))
        check_columns(path.name, math.prod(shape[1:]))
        check_unpacked(path.name, path.stat().st_size, 8 * math.prod(shape))
        expected = math.prod(shape) * kind.itemsize
        content = stream.read(expected + 1)
    rule = f"have {start + expected} bytes, as its head says"
    require(len(content) == expected, path.name, rule, start + len(content))
    values = np.frombuffer(content, dtype=kind).reshape(shape)
    return values.astype(kind.newbyteorder("="), copy=False)
