"""Estimators on raw columns: by default they learn their ranges privately, and say which steps before them do not."""

import warnings

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from fedveil.core.errors import BadValue
from fedveil.jobs.estimators import PrivateHuberRegressor, PrivateLogisticRegression
from fedveil.jobs.estimators.preparing import TARGET, StatedRows, copies_in, outline_of, request_of
from fedveil.stages.prepare.ranges import range_of
from fedveil.stages.sums import STEPS

QUICK = {"kind": "constant", "rounds": 1, "passes": 4}
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(50.0, 10.0, size=(300, 2))
Y = (X[:, 0] > 50).astype(int)


def private(**changes: object) -> PrivateLogisticRegression:
    return PrivateLogisticRegression(**({"schedule": QUICK} | changes))


def test_raw_columns_need_no_scaling() -> None:
    """With a cut to norm 1 and nothing learned, every row of raw columns looked alike."""
    rows, labels = load_breast_cancer(return_X_y=True)
    scores = [private(random_state=seed).fit(rows, labels).score(rows, labels) for seed in range(3)]
    assert min(scores) > 0.85  # the commonest class has 0.63


def test_a_raw_target_needs_no_range() -> None:
    rows, numbers = load_diabetes(return_X_y=True, scaled=False)
    for seed in range(3):
        model = PrivateHuberRegressor(schedule=QUICK, random_state=seed).fit(rows, numbers)
        low, high = model.target_range_
        assert 16 <= low < 150 < high <= 512
        assert model.score(rows, numbers) > 0.1
        assert "learned" in model.certificate_.text()


def test_the_target_is_charged_like_columns() -> None:
    """It stands among the columns some times over, and every copy counts in the sensitivity."""
    outline = outline_of(StatedRows.of(2.0, None, True, 6), 6, request_of(None, None), True)
    assert copies_in(outline) == 3
    model = PrivateHuberRegressor(schedule=QUICK, random_state=0, epsilon=8.0).fit(np.tile(X, 3), X[:, 0])
    planned = model.fit_.plan.preparation
    assert planned["ranges"].bound ** 2 >= 6 + 3
    assert planned["ranges"].size == len(outline.numbers) * (planned["ranges"].size // 9)
    assert model.fit_.plan.data.features == 7
    assert not any(one.name.startswith(TARGET) for one in model.rule_.learned.numbers)


def test_contributions_with_copies_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every single record's contribution, seen where the noise is added, is no longer than what is charged."""
    from fedveil.stages.measuring import Measurer

    seen: list[str] = []
    usual = Measurer.noisy_sum

    def watched(self: Measurer, planned: object, contributions: object, size: int) -> object:
        for row in range(40):
            one = contributions(np.array([row]))  # type: ignore[operator]
            assert np.linalg.norm(one / STEPS) <= planned.bound  # type: ignore[attr-defined]
        seen.append(planned.name)  # type: ignore[attr-defined]
        return usual(self, planned, contributions, size)  # type: ignore[arg-type]

    monkeypatch.setattr(Measurer, "noisy_sum", watched)
    PrivateHuberRegressor(schedule=QUICK, random_state=0, epsilon=20.0).fit(X * 1e9, X[:, 0] * 1e12)
    assert seen == ["ranges", "cells"]


def test_stated_is_stated() -> None:
    stated = private(feature_bound=1.0).fit(X, Y)
    assert not stated.fit_.plan.preparation
    assert not private(prepare="stated", feature_bound=2.0).fit(X, Y).fit_.plan.preparation
    both = private(prepare="private", feature_bound=2.0).fit(X, Y)
    assert both.fit_.plan.preparation
    assert private(feature_range=(0.0, 100.0)).fit(X, Y).fit_.plan.preparation  # the means are learned
    for wrong in ({"prepare": "stated"}, {"feature_bound": 1.0}):
        with pytest.raises(BadValue, match="must be given"):
            PrivateHuberRegressor(schedule=QUICK, **wrong).fit(X, X[:, 0])


def test_too_few_records_for_a_range_are_warned_of_before_the_fit() -> None:
    with pytest.warns(UserWarning, match="state target_range, or raise epsilon"):
        PrivateHuberRegressor(schedule=QUICK, epsilon=0.5).fit(X[:60], X[:60, 0])


def test_centred_columns_have_a_range_on_both_sides_of_zero() -> None:
    from fedveil.stages.prepare.ranges import BINS, bins_of

    draw = np.random.default_rng(1)
    found = [
        range_of(np.bincount(bins_of(draw.normal(size=300)), minlength=BINS) + draw.normal(0, 19, BINS), 300, 19.0)
        for _ in range(100)
    ]
    assert sum(one.low <= -1 and one.high >= 1 for one in found) >= 90  # by bins alone it is a range of one sign


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (StandardScaler(), "StandardScaler"),
        (PCA(2), "PCA"),
        (SimpleImputer(), "SimpleImputer"),
        (SelectKBest(k=1), "SelectKBest"),
        (make_union(FunctionTransformer(), StandardScaler()), "StandardScaler"),
        (make_pipeline(Normalizer(), PCA(2)), "PCA"),
        (make_column_transformer((StandardScaler(), [0]), remainder="passthrough"), "StandardScaler"),
        (make_column_transformer((FunctionTransformer(), [0]), remainder=StandardScaler()), "StandardScaler"),
    ],
)
def test_a_step_that_learns_is_warned_of(step: object, name: str) -> None:
    pipe = make_pipeline(step, private())
    with pytest.warns(UserWarning, match=f"{name} in the pipeline learned from the same records without noise"):
        pipe.fit(X, Y)
    assert f"NOT MET: {name}" in pipe[-1].certificate_.text()


@pytest.mark.filterwarnings("ignore:This fit is one of many")
@pytest.mark.parametrize("nested", [False, True])
def test_it_is_warned_of_in_searches_too(nested: bool) -> None:
    pipe = make_pipeline(StandardScaler(), make_pipeline(Normalizer(), private()) if nested else private())
    with pytest.warns(UserWarning, match="StandardScaler in the pipeline learned") as told:
        cross_val_score(pipe, X, Y, cv=KFold(2), error_score="raise")
    assert sum("StandardScaler" in str(one.message) for one in told) == 2
    with pytest.warns(UserWarning, match="StandardScaler in the pipeline learned"):
        GridSearchCV(pipe, {"standardscaler__with_std": [True, False]}, cv=KFold(2), error_score="raise").fit(X, Y)


@pytest.mark.parametrize(
    "step",
    [
        "passthrough",
        FunctionTransformer(np.log1p),
        Normalizer(),
        PolynomialFeatures(2),
        SimpleImputer(strategy="constant", fill_value=0.0),
        OneHotEncoder(categories=[[0.0, 1.0]] * 2, handle_unknown="ignore", sparse_output=False),
        FrozenEstimator(StandardScaler().fit(RANDOM.normal(size=(9, 2)))),
        make_column_transformer((Normalizer(), [0]), remainder="passthrough"),
    ],
)
def test_steps_that_learn_nothing_are_not(step: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipe = make_pipeline(step, private()).fit(X, Y)
    assert "NOT MET" not in pipe[-1].certificate_.text()
