"""The IDX format of MNIST: an array of images in one file, their labels in another."""

import math
from pathlib import Path

import numpy as np

from fedveil.checks import require
from fedveil.data.opening import bytes_of
from fedveil.data.spec import Source
from fedveil.data.table import Array, Table, check_cells, from_block

KINDS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(source: Source, path: Path, labels: Path) -> Table:
    """Images as flat rows, columns named by their position from 0."""
    images, marks = idx_array(path), idx_array(labels)
    require(images.ndim >= 2, path.name, "hold an array of rows or images", f"{images.ndim} dimensions")
    require(marks.ndim == 1, labels.name, "hold one label for each row", f"{marks.ndim} dimensions")
    width = math.prod(images.shape[1:])
    same = images.shape[0] == marks.size
    require(same, f"{path.name} and {labels.name}", "have the same number of records", (images.shape[0], marks.size))
    check_cells(path.name, images.shape[0], width)
    flat = images.reshape(images.shape[0], width)
    return from_block(source, path.name, flat, marks, tuple(str(j) for j in range(width)), "record")


def idx_array(path: Path) -> Array:
    """The array in one file: two zero bytes, a kind, the number of dimensions, their sizes, the values."""
    with bytes_of(path) as stream:
        content = stream.read()
    right = len(content) >= 4 and content[:2] == b"\0\0" and content[2] in KINDS and content[3] >= 1
    require(right, path.name, "begin as an IDX file does", content[:4])
    dimensions = content[3]
    start = 4 + 4 * dimensions
    require(len(content) >= start, path.name, "state all its dimensions", f"{len(content)} bytes")
    shape = tuple(int(n) for n in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4))
    kind = np.dtype(KINDS[content[2]])
    expected = start + math.prod(shape) * kind.itemsize
    require(len(content) == expected, path.name, f"have {expected} bytes, as its head says", len(content))
    values = np.frombuffer(content, dtype=kind, offset=start).reshape(shape)
    return values.astype(kind.newbyteorder("="), copy=False)
