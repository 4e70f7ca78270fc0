"""A party's own labelled records as rows: read as the model's own data were, or as a site's data file says."""

from contextlib import closing
from pathlib import Path

import numpy as np

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.values import Matrix, Vector
from fedveil.data.cells import Texts, canonical, numbers_of
from fedveil.data.column import as_texts
from fedveil.data.labels import above, class_indices, scaled
from fedveil.data.row_rule import Labels
from fedveil.data.sources import Chunk, chunks
from fedveil.data.tables import nearest
from fedveil.release.model import ReleasedModel

Rows = tuple[Matrix, Vector]


def own_records(model: ReleasedModel, data: str, client: str, column: str | None) -> Rows:
    """Return the rows and targets of the records of ``data``; with a client ``column``, those of ``client`` alone."""
    known = model.preparation
    if known is None or known.labels.name is None:
        raise BadValue(
            "The model must name the column that it predicts, and it does not, since its records came prepared: give "
            "--data a site's data file (TOML), which says how they become rows."
        )
    there = known.source(data).shipped is None and Path(data).exists()
    require(there, "--data", "be a file or folder of records", data)
    labels = known.labels
    numeric = bool(labels.span is not None or labels.above is not None)
    wanted = {one.name: not one.categories for one in known.columns} | {str(labels.name): numeric}
    if column is not None:
        wanted[column] = False
    found, targets = [], []
    with closing(chunks(known.source(data), Path(), wanted)) as parts:
        for chunk in parts:
            rows, dropped = model.rows(chunk.cells, chunk.place, chunk.names)
            mine = ~dropped if column is None else ~dropped & _of(chunk, column, client)
            found.append(rows[mine])
            targets.append(_targets(chunk, labels, mine))
    features = np.ascontiguousarray(np.concatenate(found)) if found else np.zeros((0, 1))
    require(len(features) > 0, "--data", f"hold records of {client!r}", "none")
    return features, np.concatenate(targets)


def _of(chunk: Chunk, column: str, client: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    hint = "" if column in chunk.cells else nearest(column, chunk.names)
    require(column in chunk.cells, "--client-column", "name a column of the data", column, hint)
    return as_texts(chunk.cells[column]).where(lambda word: canonical(word) == canonical(client))


def _targets(chunk: Chunk, labels: Labels, mine: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Vector:
    name = str(labels.name)
    hint = nearest(name, chunk.names)
    require(name in chunk.cells, "--data", f"have the column {name!r}, which is to be predicted", "none", hint)
    cells, places = chunk.cells[name], np.flatnonzero(mine)
    if labels.classes and labels.above is None:
        words = len(labels.classes) if labels.numbered else labels.classes
        place = lambda row: chunk.place(int(places[row]))  # noqa: E731  the place of one of the party's own records
        return class_indices(as_texts(cells).rows(mine), words, f"column {name!r}", place)
    values = (numbers_of(cells, (), name, chunk.place) if isinstance(cells, Texts) else np.asarray(cells))[mine]
    require(bool(np.isfinite(values).all()), f"The column {name!r}", "hold finite numbers", "others")
    return above(values, labels.above) if labels.above is not None else scaled(values, labels.span or (-1.0, 1.0))
