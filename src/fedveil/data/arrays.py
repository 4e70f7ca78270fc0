"""Make records from arrays that a Python program already has, by the same rule as for files."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedveil.core.errors import require
from fedveil.core.importing import give
from fedveil.data.features import features_of
from fedveil.data.load import targets_of
from fedveil.data.missing import settle_missing
from fedveil.data.records import Records
from fedveil.data.row_rule import RowRule
from fedveil.data.rows import total_bound
from fedveil.data.spec import Source, Span
from fedveil.data.split import natural_owners
from fedveil.data.table import Array, block_of, table_of


def records_from_arrays(
    X: Any,
    y: Any,
    clients: Any = None,
    *,
    bound: float,
    classes: int | Sequence[str | int | float] | None = None,
    target_scale: Span | None = None,
    scale: Span | None = None,
    intercept: float = 1.0,
    feature_map: Callable[..., Any] | str | None = None,
) -> Records:
    """Return records from rows ``X``, labels ``y`` and the client of each row (without clients, each record is its
    own).

    A frame of pandas or polars keeps the names of its columns. Rows are cut to norm ``bound``. ``classes``: how many if
    labels are 0, 1, ..., or the labels in order; or give ``target_scale`` for a number to predict. ``scale``: one
    public range for all columns, mapped to [-1, 1]. ``feature_map``: a public function of rows (or its name) that every
    scaled row goes through before it is cut.

    >>> records = records_from_arrays([[3.0, 4.0], [0.0, 0.5]], [0, 1], ["a", "b"], bound=1.0, classes=2)
    >>> records.features.round(6).tolist(), records.names
    ([[0.6, 0.8, 1.0], [0.0, 0.5, 1.0]], ('a', 'b'))
    """
    declared: Any = classes if classes is None or isinstance(classes, int) else tuple(classes)
    source = Source.of(
        source="arrays",
        feature_bound=bound,
        intercept=intercept,
        classes=declared,
        target_scale=target_scale,
        default_scale=scale,
        feature_map=None if feature_map is None else give(feature_map),
    )
    block = _array("X", X, 2)
    require(block.dtype.kind in "biuf", "X", "hold numbers", str(block.dtype))
    target = _array("y", y, 1)
    require(target.dtype.kind in "biufU", "y", "hold numbers or texts", str(target.dtype))
    numeric = target_scale is None or target.dtype.kind in "biuf"
    require(numeric, "y", "hold numbers when target_scale is given", str(target.dtype))
    # names do not enter the fingerprint, so an array of the same numbers has the same ledger
    numbered = tuple(str(place) for place in range(block.shape[1]))
    table = table_of(source, [block_of(block, target, _names(X, block.shape[1]), "X", "row", held=numbered)])
    filled = settle_missing(table, source)
    features, entries = features_of(table, filled, source)
    targets, count = targets_of(table, source, filled.dropped)
    owner, names = _owners(clients, len(table))
    return Records(
        features=features,
        targets=targets,
        owner=owner,
        clients=len(names) or len(table),
        bound=total_bound(source.feature_bound, source.intercept),
        classes=count,
        names=names,
        raw=table.raw,
        preparation=RowRule.of(source, table.choice, len(entries)),
    )


def _names(X: Any, count: int) -> tuple[str, ...]:
    """The names of a frame's columns; an array's are numbered."""
    given = getattr(X, "columns", None)
    names = tuple(str(place) for place in range(count)) if given is None else tuple(map(str, given))
    return names if len(names) == count else tuple(str(place) for place in range(count))


def _owners(clients: Any, rows: int) -> tuple[Any, tuple[str, ...]]:
    if clients is None:
        return np.arange(rows, dtype=np.int64), ()
    labels = _array("clients", clients, 1)
    require(labels.dtype.kind in "biuU", "clients", "name clients by texts or whole numbers", str(labels.dtype))
    require(labels.size == rows, "clients", f"name the client of each of the {rows} rows", labels.size)
    return natural_owners(labels)


def _array(name: str, value: Any, dimensions: int) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        require(False, name, "be an array with rows of equal length", str(error))
        raise
    require(array.ndim == dimensions, name, f"have {dimensions} dimension{'s' * (dimensions > 1)}", array.shape)
    return array.astype(np.int8) if array.dtype.kind == "b" else array
