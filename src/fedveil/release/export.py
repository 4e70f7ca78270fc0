"""The formats a model can be handed on in, and how the files are called."""

from typing import Final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.release.bundle import Bundle

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
            from fedveil.release.to_json import to_json

            return to_json(bundle)
    raise BadValue(f"The format must be one of {', '.join(FORMATS)}, got {to!r}.")
