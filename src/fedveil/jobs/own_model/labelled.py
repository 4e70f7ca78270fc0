"""Labelled records for a released model, with their owners and their fingerprint: read as its training data were."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.data.fingerprint import RawRows
from fedveil.data.load import targets_of
from fedveil.data.missing import settle_labels, without_client
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels, RowRule
from fedveil.data.sources import SUFFIXES, read
from fedveil.data.spec import Source
from fedveil.data.split import natural_owners
from fedveil.data.typed import cells_of
from fedveil.release.model import ReleasedModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelled:
    """Records as rows (blank where a value is missing that nothing stands for), their source and its fingerprint."""

    records: Records
    source: Source
    raw: RawRows
    labels: Labels


def labelled_records(model: ReleasedModel, data: str, client_column: str | None, query: str | None) -> Labelled:
    """Read the records of ``data``; without a client column every record has an owner of its own."""
    known = model.preparation
    if known is None or known.labels.name is None:
        raise BadValue(
            "The model must name the column that it predicts, and it does not, since its records came prepared: "
            "evaluate it in Python, or train it from a source."
        )
    table, source = read(_source(known, data, client_column, query), Path())
    cells = {name: cells_of(table.column(name)) for name in table.choice.features}
    rows, dropped = model.rows(cells, table.place)
    settle_labels(table, source, dropped)
    hint = "Every record lacks a label, or a value that nothing stands for."
    require(not dropped.all(), data, "hold a record that can be evaluated", "none", hint)
    targets, classes = targets_of(table, source, dropped)
    rows[dropped] = 0.0
    there = ~without_client(table, source) if client_column is not None else np.ones(len(table), dtype=np.bool_)
    owner, names = np.arange(int(there.sum()), dtype=np.int64), tuple[str, ...]()
    if client_column is not None:
        owner, names = natural_owners(table.texts(client_column).rows(there))
    return Labelled(
        records=Records(
            features=np.ascontiguousarray(rows[there]),
            targets=targets[there],
            owner=owner,
            clients=len(names) or owner.size,
            bound=known.total_bound,
            classes=classes,
            names=names,
        ),
        source=source,
        raw=table.raw,
        labels=known.labels,
    )


def _source(known: RowRule, data: str, client_column: str | None, query: str | None) -> Source:
    """Return the source that states of new data what the model knows: its columns, its labels and how to read them."""
    labels, reading = known.labels, dict(known.reading)
    told = Path(data.removesuffix(".gz")).suffix in SUFFIXES
    if told:  # new data may come in another format than the training data, if its name tells which
        reading.pop("format", None)
    there = Source(source=data, feature_bound=1.0, label_above=0.0, query=query).database or data.startswith("sklearn:")
    require(there or Path(data).exists(), "DATA", "be a file or folder, a database's address, or sklearn:NAME", data)
    asked: dict[str, object] = {"target_scale": labels.span}
    if labels.above is not None:
        asked = {"label_above": labels.above}
    elif labels.ends:
        asked = {"event": labels.event, "intervals": labels.ends}
    elif labels.classes:
        asked = {"classes": len(labels.classes) if labels.numbered else labels.classes}
    return Source(
        source=data,
        feature_bound=1.0,
        target=labels.name,
        columns=known.names,
        categories={one.name: one.categories for one in known.columns if one.categories},
        missing=known.missing,
        default_fill="drop-row",  # of labels; what features do without a value, the model knows
        client_column=client_column,
        query=query,
        **asked,  # type: ignore[arg-type]
        **reading,
    )
