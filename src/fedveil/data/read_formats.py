"""Readers of IDX, LIBSVM and NumPy files, and of the data sets that scikit-learn carries."""

import importlib
import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as format_of

from fedveil.core.errors import BadValue, require
from fedveil.core.limits import check_cells, check_columns, check_unpacked
from fedveil.data.cells import Texts, numbers_of
from fedveil.data.opening import bytes_of, damage_told, lines_of, text_of
from fedveil.data.spec import Source, Span
from fedveil.data.table import Array, Opened, block_of, frame_of
from fedveil.data.typed import column_of

# Read the IDX format of MNIST: an array of images in one file, their labels in another.

KINDS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def open_idx(path: Path, labels: Path | None) -> Opened:
    """Return images as flat rows, with columns named by their position from 0; without labels they are zeros."""
    images = idx_array(path)
    marks = np.zeros(len(images), dtype=np.uint8) if labels is None else idx_array(labels)
    require(images.ndim >= 2, path.name, "hold an array of rows or images", f"{images.ndim} dimensions")
    own = path if labels is None else labels
    require(marks.ndim == 1, own.name, "hold one label for each row", f"{marks.ndim} dimensions")
    width = math.prod(images.shape[1:])
    same = images.shape[0] == marks.size
    require(same, f"{path.name} and {own.name}", "have the same number of records", (images.shape[0], marks.size))
    flat = images.reshape(images.shape[0], width)
    return block_of(flat, marks, tuple(str(j) for j in range(width)), path.name, "record")


def idx_array(path: Path) -> Array:
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


# Read sparse text, one record a line: ``label index:value ...``; the number of features is stated, never learned.


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


# Read NumPy archives.
#
# A matrix ``X`` with columns named 0, 1, ..., and one-dimensional arrays under their own names.


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
        with np.load(io.BytesIO(data), allow_pickle=False) as result:
            yield result


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


# Data sets that come with scikit-learn, with the classes and ranges that their descriptions publish.
#
# The ranges are constants from the published descriptions of the data sets, not computed from the rows.

# fmt: off
CANCER: tuple[Span, ...] = (
    (6.981, 28.11), (9.71, 39.28), (43.79, 188.5), (143.5, 2501.0), (0.053, 0.163), (0.019, 0.345), (0.0, 0.427),
    (0.0, 0.201), (0.106, 0.304), (0.05, 0.097), (0.112, 2.873), (0.36, 4.885), (0.757, 21.98), (6.802, 542.2),
    (0.002, 0.031), (0.002, 0.135), (0.0, 0.396), (0.0, 0.053), (0.008, 0.079), (0.001, 0.03), (7.93, 36.04),
    (12.02, 49.54), (50.41, 251.2), (185.2, 4254.0), (0.071, 0.223), (0.027, 1.058), (0.0, 1.252), (0.0, 0.291),
    (0.156, 0.664), (0.055, 0.208),
)
WINE: tuple[Span, ...] = (
    (11.0, 14.8), (0.74, 5.80), (1.36, 3.23), (10.6, 30.0), (70.0, 162.0), (0.98, 3.88), (0.34, 5.08), (0.13, 0.66),
    (0.41, 3.58), (1.3, 13.0), (0.48, 1.71), (1.27, 4.00), (278.0, 1680.0),
)
# fmt: on
RANGES: dict[str, tuple[Span, ...]] = {
    "breast_cancer": CANCER,
    "wine": WINE,
    "digits": ((-16.0, 16.0),) * 64,  # counts of 0 to 16 pixels, so no ink stays 0
    "diabetes": ((-0.2, 0.2),) * 10,  # shipped centred, with columns of norm one
}
CLASSES = {"breast_cancer": 2, "wine": 3, "digits": 10}
PROGRESSION: Span = (25.0, 346.0)  # range of the target of diabetes, as described


def open_shipped(source: Source, name: str) -> tuple[Opened, Source]:
    """Return the rows, and the source completed by published facts where the study left them open."""
    try:
        datasets: Any = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise BadValue("The data sets sklearn:NAME need scikit-learn: install it, or name a file.") from error
    bunch = getattr(datasets, f"load_{name}")()
    names = tuple(str(column) for column in bunch.feature_names)
    source = _completed(source, name, names)
    block, target = np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target, dtype=np.float64)
    return block_of(block, target, names, f"sklearn:{name}", "row"), source


def _completed(source: Source, name: str, names: tuple[str, ...]) -> Source:
    features = source.features.columns or tuple(column for column in names if column not in source.features.ignore)
    apart = {*source.features.categories, source.client_column, source.person_column, source.expires_column}
    if source.features.default_scale is None and source.learned != "all":
        known = {n: r for n, r in zip(names, RANGES[name], strict=True) if n in features and n not in apart}
        source = source.with_keys(scale={**known, **source.features.scale})
    if not source.labelling.rules:
        regression = name not in CLASSES
        source = source.with_keys(classes=CLASSES.get(name), target_scale=PROGRESSION if regression else None)
    return source
