"""The formats a model can be handed on in, and how the files are called."""

from typing import Final

from fedveil.bundle.bundle import Bundle
from fedveil.errors import BadValue

FORMATS: Final = {"sklearn": ".joblib", "onnx": ".onnx", "json": ".json"}


def exported(bundle: Bundle, to: str) -> bytes:
    """Return the model in this format; what the format needs is loaded here, and only here."""
    match to:
        case "sklearn":
            from fedveil.bundle.to_sklearn import to_sklearn

            return to_sklearn(bundle)
        case "onnx":
            from fedveil.bundle.to_onnx import to_onnx

            return to_onnx(bundle)
        case "json":
            from fedveil.bundle.to_json import to_json

            return to_json(bundle)
    raise BadValue(f"The format must be one of {', '.join(FORMATS)}, got {to!r}.")
