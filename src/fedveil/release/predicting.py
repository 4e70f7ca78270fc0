"""Predictions for the records of a file, into a file: some at a time, so that neither has to fit in memory."""

import csv
import importlib
import io
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.files import PART, PUBLIC, CannotWrite, why_not
from fedveil.data.cells import Texts
from fedveil.data.column import Cells
from fedveil.data.sources import SUFFIXES, Chunk, chunks
from fedveil.data.spec import Source
from fedveil.data.tables import nearest
from fedveil.models.adjusted import probabilities
from fedveil.models.survival import risks
from fedveil.release.model import ReleasedModel

PREDICTION = "prediction"  # the last column


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSummary:
    """What was written: how many records, how many of them without a prediction, and how often each class."""

    out: Path
    rows: int
    without: int
    columns: tuple[str, ...]
    counts: dict[str, int] | None

    def as_json(self) -> dict[str, Any]:
        """Return the counts as values for JSON."""
        counted = {} if self.counts is None else {"counts": self.counts}
        return {
            "written": str(self.out),
            "rows": self.rows,
            "without_prediction": self.without,
            "columns": list(self.columns),
            **counted,
        }


def predict_file(
    model: ReleasedModel,
    data: str,
    out: Path,
    *,
    with_probabilities: bool = False,
    keep: Sequence[str] = (),
    query: str | None = None,
) -> PredictionSummary:
    """Predict every record of ``data`` in order: a path, sklearn:NAME, or a database and a ``query``.

    ``keep`` names columns to copy over. ``out`` ends in .csv or .parquet. A record with a missing value whose rule is
    "drop-row" gets empty cells.
    """
    known = model.preparation
    if known is None:
        raise BadValue(
            "The model must say how records become rows, and it does not, since they came to it prepared: "
            "call predict in Python with an array of prepared rows."
        )
    require(out.suffix in (".csv", ".parquet"), "--out", "name a file that ends in .csv or .parquet", out.name)
    own = out.exists() and Path(data).exists() and out.samefile(data)
    require(not own, "--out", "name another file than the data", str(out))
    twice = next((name for name in keep if list(keep).count(name) > 1 or name == PREDICTION), None)
    require(twice is None, "--keep", f"name each column once, and none that is called {PREDICTION}", twice)
    titles = _titles(model, with_probabilities)
    clash = next((name for name in keep if name in titles), None)
    require(clash is None, "--keep", "name no column that is written anyway", clash)
    wanted = {column.name: not column.categories for column in known.columns} | dict.fromkeys(keep, False)
    rows, without, counts = 0, 0, Counter[str]()
    names = (*keep, *titles, PREDICTION)
    source = _source(known.source(data).with_keys(query=query))
    with one_thread(), closing(chunks(source, Path(), wanted)) as parts, _writing(out, names) as write:
        for chunk in parts:
            predicted, dropped = _prediction_columns(model, chunk, with_probabilities)
            write([*(_kept_columns(chunk, name) for name in keep), *predicted])
            rows, without = rows + len(chunk), without + int(dropped.sum())
            if known.labels.classes and not model.survival:
                counts.update(Counter(word for word in predicted[-1].tolist() if word != ""))
        require(rows > 0, data, "hold at least one record", "none")
    tally = (
        {word: counts[word] for word in known.labels.classes} if known.labels.classes and not model.survival else None
    )
    return PredictionSummary(out=out, rows=rows, without=without, columns=names, counts=tally)


def one_thread() -> AbstractContextManager[Any]:
    """Have products of matrices done by one thread: those of some records are small, and threads that wait for each
    other took a third of all the time. Reading the next records goes on beside it.
    """
    limited: AbstractContextManager[Any] = importlib.import_module("threadpoolctl").threadpool_limits(
        1, user_api="blas"
    )
    return limited


def _source(source: Source) -> Source:
    """New data may come in another format than the training data, if its name tells which."""
    if source.database:
        return source.with_keys(format=None)
    there = source.shipped is not None or Path(source.source).exists()
    require(there, "The data", "be a file or folder, or sklearn:NAME", source.source)
    known = Path(source.source.removesuffix(".gz")).suffix in SUFFIXES
    return source.with_keys(format=None) if known and source.reading.format is not None else source


def _titles(model: ReleasedModel, with_probabilities: bool) -> tuple[str, ...]:
    if not with_probabilities:
        return ()
    known, kind = model.preparation, model.plan.model.kind
    classes = known.labels.classes if known is not None else ()
    shown = probabilities(model.plan.model.loss, np.zeros((1, model.plan.model.loss.outputs)))
    hint = "It predicts a number." if not classes else "It gives scores only."
    require(shown is not None, "--probabilities", "be asked of a model of probabilities", kind, hint)
    return tuple(f"probability_{word}" for word in classes)


def _prediction_columns(model: ReleasedModel, chunk: Chunk, with_probabilities: bool) -> tuple[list[Any], Any]:
    """Return the columns to write, numbers as floats (NaN: none) and classes as texts (empty: none)."""
    scores, dropped = model.scores(chunk.cells, chunk.place, chunk.names)
    known = model.preparation
    if model.survival:
        return [np.where(dropped, np.nan, risks(scores))], dropped
    if known is None or not known.labels.classes:
        return [np.where(dropped, np.nan, model.numbers(scores))], dropped
    labels = np.array(known.labels.classes)[model.decide(scores)]
    columns: list[Any] = [np.where(dropped, "", labels)]
    if with_probabilities:
        shares = probabilities(model.plan.model.loss, scores)
        assert shares is not None  # noqa: S101  asked before anything was written
        columns = [*np.where(dropped[:, None], np.nan, shares).T, *columns]
    return columns, dropped


def _kept_columns(chunk: Chunk, name: str) -> Cells:
    hint = "" if name in chunk.cells else nearest(name, chunk.names)
    require(name in chunk.cells, "--keep", "name columns of the data", name, hint)
    return chunk.cells[name]


class _Write(Protocol):
    def __call__(self, columns: Sequence[Cells], /) -> None: ...


@contextmanager
def _writing(out: Path, names: tuple[str, ...]) -> Iterator[_Write]:
    """A file that appears when it is whole: at a refusal in the middle nothing is left behind."""
    try:
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.", suffix=PART)
    except OSError as error:
        raise CannotWrite(why_not(out, 0, error)) from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), PUBLIC)
            with (_parquet if out.suffix == ".parquet" else _csv)(file, names) as write:
                yield write
        part.replace(out)
    except OSError as error:
        raise CannotWrite(why_not(out, 0, error)) from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _csv(file: IO[bytes], names: tuple[str, ...]) -> Iterator[_Write]:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)

    def write(columns: Sequence[Cells], /) -> None:
        writer.writerows(zip(*(_as_texts(column) for column in columns), strict=True))

    yield write
    text.flush()
    text.detach()


def _as_texts(column: Cells) -> list[Any]:
    """Numbers to their last digit, and nothing for those that are missing."""
    if isinstance(column, Texts):
        return [column.words[code] for code in column.codes.tolist()]
    if isinstance(column, np.ndarray) and column.dtype.kind == "f":
        return ["" if number != number else number for number in column.tolist()]
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


@contextmanager
def _parquet(file: IO[bytes], names: tuple[str, ...]) -> Iterator[_Write]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    writers: list[Any] = []

    def write(columns: Sequence[Cells], /) -> None:
        arrays = [_arrow(arrow, column) for column in columns]
        table = arrow.table(dict(zip(names, arrays, strict=True)))
        if not writers:
            writers.append(parquet.ParquetWriter(file, table.schema))
        writers[0].write_table(table.cast(writers[0].schema))

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


def _arrow(arrow: Any, column: Cells) -> Any:
    """Numbers as numbers and the rest as texts, with nulls for what is missing."""
    values = np.asarray(_as_texts(column) if isinstance(column, Texts) else column)
    if values.dtype.kind == "f":
        return arrow.array(values, from_pandas=True)  # NaN as null
    if values.dtype.kind in "iub":
        return arrow.array(values)
    return arrow.array([None if cell == "" else str(cell) for cell in values.tolist()], type=arrow.string())
