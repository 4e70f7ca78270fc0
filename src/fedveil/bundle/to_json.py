"""A model as one JSON text: every number that a program in another language needs, and the certificate."""

import json
from typing import Any

from fedveil.bundle.bundle import Bundle
from fedveil.bundle.linear import linear_of
from fedveil.data.row_rule import RowRule


def to_json(bundle: Bundle) -> bytes:
    """Return the model; docs/using-the-model.md says what each entry means."""
    found = linear_of(bundle, "json")
    prepared = found.preparation
    result = {
        "format": 1,
        "study": bundle.plan.name,
        "plan": bundle.plan.hash,
        "model": bundle.plan.model.kind,
        "link": found.link if found.kind == "scores" else found.kind,
        **({"rate": found.rate, "top": found.top} if found.kind == "counts" else {}),
        **({"intervals": list(prepared.labels.ends)} if prepared.labels.ends else {}),
        "classes": list(found.classes),
        **({} if found.threshold is None else {"decision_threshold": found.threshold}),
        "features": list(prepared.entries),
        "cut": found.cut,
        **({} if found.turn is None else {"turn": found.turn.tolist(), "cut_again": found.again}),
        "weights": found.weights.tolist(),
        "constants": found.constants.tolist(),
        "preparation": _whole(prepared),
        "certificate": bundle.certificate,
    }
    return (json.dumps(result, indent=1, allow_nan=False) + "\n").encode()


def _whole(prepared: RowRule) -> dict[str, Any]:
    """The preparation with what goes without saying in fedveil: a stranger's program knows no usual marks and rules."""
    table = prepared.table()
    for row, column in zip(table["columns"], prepared.columns, strict=True):
        row |= {"fill": column.fill} | ({"unknown": column.unknown} if column.categories else {})
    return {**table, "missing": list(prepared.missing)}
