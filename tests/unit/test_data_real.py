"""The real data sets for benchmarks, where they are at hand: FEDVEIL_DATA, or shared/data beside the repository."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.data.load import Loaded, load
from fedveil.data.spec import Split, parse_data

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("FEDVEIL_DATA", ROOT.parent / "shared" / "data"))


def loaded(folder: str, data: dict[str, Any], clients: dict[str, Any]) -> Loaded:
    if not (DATA / folder).is_dir():
        pytest.skip(f"the data set {folder} is neither under FEDVEIL_DATA nor in ../shared/data")
    source, held = parse_data(data)
    return load(source, Split.parse(clients), held, base=DATA, generator=np.random.default_rng)


def test_a9a() -> None:
    data = {"source": "a9a/a9a.gz", "format": "libsvm", "features": 123, "classes": [-1, 1], "feature_bound": 1.0}
    found = loaded("a9a", {**data, "held_out": {"source": "a9a/a9a.t.gz", "public": True}}, {"kind": "record"})
    assert (len(found.train), found.train.shape.features, int(found.train.targets.sum())) == (32561, 124, 7841)
    assert found.test is not None
    assert (len(found.test), int(found.test.targets.sum())) == (16281, 3846)


def test_mnist() -> None:
    images = "mnist/t10k-images-idx3-ubyte.gz"
    labels = "mnist/t10k-labels-idx1-ubyte.gz"
    data = {"source": images, "labels": labels, "classes": 10, "default_scale": [-255, 255], "feature_bound": 5.0}
    train = loaded("mnist", data, {"kind": "dirichlet", "count": 50, "alpha": 0.3}).train
    assert (len(train), train.shape.features, train.clients) == (10000, 785, 50)
    assert np.bincount(train.targets.astype(int)).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_heart() -> None:
    data = {"source": "heart", "files": "*.data", "header": False, "target": -1, "label_above": 0}
    ranges = {"default_scale": [0, 300], "default_fill": 0.0, "feature_bound": 1.0}
    train = loaded("heart", {**data, **ranges}, {"kind": "file"}).train
    names = ("processed.cleveland", "processed.hungarian", "processed.switzerland", "processed.va")
    assert train.names == names
    assert train.sizes.tolist() == [303, 294, 123, 200]
    assert int(train.targets.sum()) == 509


def test_credit() -> None:
    """The label stands among the features in this file, so it is named; the last column is a marital status."""
    data = {"source": "credit/UCI_Credit_Card.csv.gz", "target": "default-payment-next-month", "classes": 2}
    rules = {"ignore": ["ID"], "feature_bound": 1.0, "held_out": {"fraction": 0.2}}
    found = loaded("credit", {**data, **rules}, {"kind": "uneven", "count": 50, "alpha": 0.8})
    assert found.test is not None
    assert (len(found.train), len(found.test), found.train.shape.features) == (24000, 6000, 33)
    assert int(found.train.targets.sum() + found.test.targets.sum()) == 6636
