"""A model as one JSON text: every number that a program in another language needs, and the certificate."""

import json
from typing import Any

from fedveil.data.row_rule import RowRule
from fedveil.release.bundle import Bundle
from fedveil.release.linear import linear_of


def to_json(bundle: Bundle) -> bytes:
    """Return the model; docs/using-the-model.md says what each entry means."""
    linear = linear_of(bundle, "json")
    prepared = linear.preparation
    result = {
        "format": 1,
        "study": bundle.plan.name,
        "plan": bundle.plan.hash,
        "model": bundle.plan.model.kind,
        "link": linear.link if linear.kind == "scores" else linear.kind,
        **({"rate": linear.rate, "top": linear.top} if linear.kind == "counts" else {}),
        **({"intervals": list(prepared.labels.ends)} if prepared.labels.ends else {}),
        "classes": list(linear.classes),
        **({} if linear.threshold is None else {"decision_threshold": linear.threshold}),
        "features": list(prepared.entries),
        "cut": linear.cut,
        **({} if linear.turn is None else {"turn": linear.turn.tolist(), "cut_again": linear.again}),
        "weights": linear.weights.tolist(),
        "constants": linear.constants.tolist(),
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
