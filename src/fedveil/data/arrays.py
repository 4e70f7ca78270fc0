"""Make records from arrays that a Python program already has, by the same rule as for files."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedveil.checks import require
from fedveil.data.features import features_of
from fedveil.data.fingerprint import rows_read
from fedveil.data.labels import class_indices, scaled
from fedveil.data.missing import settle_missing
from fedveil.data.preparation import Preparation
from fedveil.data.records import Records
from fedveil.data.rows import total_bound
from fedveil.data.spec import Source, Span
from fedveil.data.split import natural_owners
from fedveil.data.table import Array, from_block


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
) -> Records:
    """Return records from rows ``X``, labels ``y`` and the client of each row (without clients, each record is its
    own).

    Rows are cut to norm ``bound``. ``classes``: how many if labels are 0, 1, ..., or the labels in order; or give
    ``target_scale`` for a number to predict. ``scale``: one public range for all columns, mapped to [-1, 1].

    >>> records = records_from_arrays([[3.0, 4.0], [0.0, 0.5]], [0, 1], ["a", "b"], bound=1.0, classes=2)
    >>> records.features.round(6).tolist(), records.names
    ([[0.6, 0.8, 1.0], [0.0, 0.5, 1.0]], ('a', 'b'))
    """
    declared: Any = classes if classes is None or isinstance(classes, int) else tuple(classes)
    source = Source(
        source="arrays",
        feature_bound=bound,
        intercept=intercept,
        classes=declared,
        target_scale=target_scale,
        default_scale=scale,
    )
    block = _array("X", X, 2)
    require(block.dtype.kind in "biuf", "X", "hold numbers", str(block.dtype))
    target = _array("y", y, 1)
    require(target.dtype.kind in "biufU", "y", "hold numbers or texts", str(target.dtype))
    numeric = target_scale is None or target.dtype.kind in "biuf"
    require(numeric, "y", "hold numbers when target_scale is given", str(target.dtype))
    table = from_block(source, "X", block, target, tuple(str(j) for j in range(block.shape[1])), "row")
    # hashed now, because the caller may change the arrays later
    raw = None if table.raw is None else rows_read([table.raw.digests()])
    table, _ = settle_missing(table, source)
    features, _ = features_of(table, source)
    if target_scale is not None:
        targets, count = scaled(table.target, source.target_scale or target_scale), 0
    else:
        known = source.classes if source.classes is not None else 0
        targets = class_indices(table.target, known, "label", table.place)
        count = known if isinstance(known, int) else len(known)
    owner, names = _owners(clients, len(table))
    return Records(
        features=features,
        targets=targets,
        owner=owner,
        clients=len(names) or len(table),
        bound=total_bound(source.feature_bound, source.intercept),
        classes=count,
        names=names,
        raw=raw,
        preparation=Preparation.of(source, table.choice),
    )


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
