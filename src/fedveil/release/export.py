"""The formats a model can be handed on in, and how the files are called."""

import json
from typing import Any, Final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.data.row_rule import RowRule
from fedveil.release.bundle import Bundle
from fedveil.release.linear import linear_of

FORMATS: Final = {"sklearn": ".skops", "onnx": ".onnx", "json": ".json"}  # with the usual ending of their files
ENDINGS: Final = (".skops", ".joblib", ".pkl")  # how a pipeline of scikit-learn can be written
# What loading a .skops file has to allow: "numpy.strings.strip", which numpy 2.0 calls "numpy._core.strings.strip".
TRUSTED: Final = ("numpy.asarray", "numpy.dtype", f"{np.strings.strip.__module__}.strip")


def export_model(bundle: Bundle, to: str, *, ending: str | None = None) -> bytes:
    """Return the model in this format; what the format needs is loaded here, and only here.

    ``ending``: of the file, which says how a pipeline of scikit-learn is written; without one, as ``.skops``.
    """
    match to:
        case "sklearn":
            way = ending or FORMATS[to]
            require(way in ENDINGS, "A file for scikit-learn", f"end in {', '.join(ENDINGS)}", way)
            from fedveil.release.to_sklearn import to_sklearn

            return to_sklearn(bundle, way)
        case "onnx":
            from fedveil.release.to_onnx import to_onnx

            return to_onnx(bundle)
        case "json":
            return to_json(bundle)
    raise BadValue(f"The format must be one of {', '.join(FORMATS)}, got {to!r}.")


# A model as one JSON text: every number that a program in another language needs, and the certificate.


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
