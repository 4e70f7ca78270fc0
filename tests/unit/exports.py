"""A released model of a number or of survival, exported: every format gives the numbers of fedveil itself."""

import io
import json
import pickle
from typing import Any

import joblib
import numpy as np
import pytest

from fedveil.release.export import export_model
from fedveil.release.model import ReleasedModel


def check_exports(model: ReleasedModel, X: Any, expected: Any, others: dict[str, Any]) -> None:
    """``expected``: predictions for the rows ``X`` of raw numbers; ``others``: further outputs of an ONNX file."""
    loaded = joblib.load(io.BytesIO(export_model(model.bundle, "sklearn", ending=".joblib")))
    assert loaded.predict(X) == pytest.approx(expected, abs=1e-12, rel=1e-12)
    assert b"fedveil" not in pickle.dumps(loaded), "it must load where fedveil is not installed"
    for values in others.values():
        assert loaded[:-1].transform(X) == pytest.approx(values, abs=1e-12)
    said = json.loads(export_model(model.bundle, "json"))
    assert _by_hand(model, said, X) == pytest.approx(expected, abs=1e-9)
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    session = runtime.InferenceSession(export_model(model.bundle, "onnx"), providers=["CPUExecutionProvider"])
    given = {name: X[:, [place]] for place, name in enumerate(model.feature_names_in_)}
    found = dict(zip([one.name for one in session.get_outputs()], session.run(None, given), strict=True))
    assert found.pop("prediction")[:, 0] == pytest.approx(expected, abs=1e-9)
    assert found.keys() == others.keys()
    for name, values in others.items():
        assert found[name] == pytest.approx(values, abs=1e-9)


def _by_hand(model: ReleasedModel, said: dict[str, Any], X: Any) -> Any:
    """As docs/using-the-model.md says it."""
    columns = said["preparation"]["columns"]
    low, high = (np.array([one["range"][end] for one in columns], dtype=float) for end in (0, 1))
    rows = (2 * np.clip(X, low, high) - low - high) / (high - low)
    rows /= np.maximum(1, np.linalg.norm(rows, axis=1) / said["cut"])[:, None]
    scores = rows @ np.array(said["weights"]) + np.array(said["constants"])
    if said["link"] == "counts":
        return said["top"] * np.minimum(said["rate"] * np.exp(scores[:, 0]), 1)
    assert said["link"] == "survival"
    return 1 - np.prod(1 / (1 + np.exp(scores)), axis=1)
