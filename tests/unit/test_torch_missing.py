"""Without PyTorch: one sentence that says what to install, and plans that read all the same."""

import numpy as np
import pytest

from fedveil.audit import matching
from fedveil.core.errors import BadValue
from fedveil.models.loss import Constants, with_l2
from fedveil.models.rows import rounding_bound
from fedveil.models.spec import ModelPlan
from fedveil.models.torch import library, modules


def test_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "torch", None)
    with pytest.raises(BadValue, match=r"must find PyTorch installed, and it is not: install fedveil\[torch\]"):
        modules.make_module("a:b", "float64", {})


def test_gradient_matching_names_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "torch", None)
    with pytest.raises(BadValue, match=r"install fedveil\[torch\]"):
        matching.idlg(None, np.ones(3), 3, matching.Search())


def test_constants_size_and_name_need_no_torch() -> None:
    model = ModelPlan(kind="torch", module="a:b", classes=10, clip=0.5, l2=0.1, parameters=77)
    assert model.constants(3.0) == Constants(lipschitz=0.5, smoothness=None, convex=False)
    assert (model.loss.kind, model.loss.classes, model.loss.outputs, model.loss.size(9)) == ("torch", 10, 10, 77)


def test_unknown_smoothness_stays_unknown() -> None:
    unknown = Constants(lipschitz=1.0, smoothness=None, convex=False)
    assert with_l2(unknown, 0.5) == unknown
    with pytest.raises(BadValue, match="step_size must be given for a model of unknown smoothness"):
        _ = unknown.known_smoothness
    assert Constants(lipschitz=1.0, smoothness=2.0).known_smoothness == 2.0


def test_without_smoothness_only_the_sum_errs() -> None:
    found = rounding_bound(rows=100, features=10, lipschitz=2.0, smoothness=None, radius=1e9)
    assert 100 * 2.0 * 2**-53 < found < 200 * 2.0 * 2**-53
