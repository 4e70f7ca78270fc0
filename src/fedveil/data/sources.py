"""Read a source into a table; the format follows from the suffix, and a folder holds one file per client."""

from collections.abc import Callable
from pathlib import Path

from fedveil.checks import require
from fedveil.data.opening import failing_clearly
from fedveil.data.read_columns import from_columns
from fedveil.data.read_csv import read_csv
from fedveil.data.read_idx import read_idx
from fedveil.data.read_libsvm import read_libsvm
from fedveil.data.read_npz import read_npz
from fedveil.data.read_parquet import read_parquet
from fedveil.data.read_sklearn import read_shipped
from fedveil.data.read_sql import read_sql
from fedveil.data.spec import Source
from fedveil.data.table import Table, joined
from fedveil.data.watched import read_watched
from fedveil.errors import BadValue

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".data": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".npz": "npz",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".idx": "idx",
}
READERS: dict[str, Callable[[Source, Path], Table]] = {
    "csv": read_csv,
    "parquet": read_parquet,
    "npz": read_npz,
    "libsvm": read_libsvm,
}


def read(source: Source, base: Path) -> tuple[Table, Source]:
    """Return the rows of a source, and the source completed by published facts where there are any.

    Relative paths start from ``base``.
    """
    if source.event is not None:
        return read_watched(source, lambda inner: read(inner, base))
    if source.shipped is not None:
        return read_shipped(source, source.shipped)
    if source.frame is not None:
        return from_columns(source, source.source, source.frame), source
    if source.database:
        return read_sql(source, base), source
    path = base / source.source
    with failing_clearly(source.source):
        if path.is_dir():
            return _folder(source, path), source
        require(source.format != "folder", "data.source", 'be a folder when data.format is "folder"', source.source)
        return _file(source, path, base), source


def client_names(table: Table) -> tuple[str, ...]:
    """Return file names as client names, without suffixes unless that would make two names equal."""
    short = tuple(_stem(file) for file in table.files)
    return short if len(set(short)) == len(short) else table.files


def _stem(file: str) -> str:
    plain = file.removesuffix(".gz")
    return plain[: -len(Path(plain).suffix)] if Path(plain).suffix in SUFFIXES else plain


def _file(source: Source, path: Path, base: Path) -> Table:
    form = format_of(source, path)
    if form != "idx":
        require(source.labels is None, "data.labels", "go with a file of images (format idx) only", source.labels)
        return READERS[form](source, path)
    require(source.labels is not None, "data.labels", f"name the file with the labels of {path.name}", None)
    return read_idx(source, path, base / str(source.labels))


def format_of(source: Source, path: Path) -> str:
    """Return the format that the study states, or the one of the file's suffix."""
    return source.format if source.format is not None and source.format != "folder" else _by_suffix(path)


def _by_suffix(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    if name.endswith("-ubyte"):  # as MNIST's files are called
        return "idx"
    found = SUFFIXES.get(Path(name).suffix)
    if found is None:
        raise BadValue(
            f"data.format must be given for {path.name}, whose name does not tell it: csv, parquet, npz, libsvm or idx."
        )
    return found


def _folder(source: Source, path: Path) -> Table:
    return joined([_file(source, file, path) for file in files_of(source, path)])


def files_of(source: Source, path: Path) -> list[Path]:
    """Return the files of a folder that a study means, in the order of their names."""
    require(source.format != "idx", "data.source", "be a file when data.format is idx", source.source)
    require("/" not in source.files, "data.files", "be a pattern of names in the folder, such as *.csv", source.files)
    files = sorted(file for file in path.glob(source.files) if file.is_file() and not file.name.startswith("."))
    require(files, f"The folder {source.source}", f"hold files that match data.files, {source.files!r}", "none")
    return files
