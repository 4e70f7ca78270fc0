"""The estimators' own rules: bounds are given, labels may be, a seed is marked, the certificate says what is so."""

import json
import math
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fedveil.core.errors import BadValue
from fedveil.data.rows import row_norms
from fedveil.jobs.estimators import PrivateHuberRegressor, PrivateLogisticRegression
from fedveil.jobs.estimators.preparing import StatedRows

QUICK = {"kind": "constant", "rounds": 1, "passes": 5}
GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(400, 3))
BINARY = np.where(X[:, 0] > 0, "yes", "no")
THREE = np.argmax(X, axis=1)


def classifier(**changes: object) -> PrivateLogisticRegression:
    """Nothing is learned but the weights: the bound of rows is stated."""
    given = {"epsilon": 3.0, "delta": 1e-4, "schedule": QUICK, "feature_bound": 1.0}
    return PrivateLogisticRegression(**(given | changes))


def regressor(**changes: object) -> PrivateHuberRegressor:
    given = {"epsilon": 3.0, "delta": 1e-4, "schedule": QUICK, "feature_bound": 1.0, "target_range": (-1.0, 1.0)}
    return PrivateHuberRegressor(**(given | changes))


def test_two_classes_are_one_score_and_more_are_softmax() -> None:
    two = classifier(random_state=0).fit(X, BINARY)
    assert (two.coef_.shape, two.intercept_.shape, two.classes_.tolist()) == ((1, 3), (1,), ["no", "yes"])
    assert two.fit_.plan.model.kind == "logistic"
    assert two.score(X, BINARY) > 0.85
    three = classifier(random_state=0).fit(X, THREE)
    assert (three.coef_.shape, three.intercept_.shape) == ((3, 3), (3,))
    assert three.fit_.plan.model.kind == "softmax"
    np.testing.assert_allclose(three.predict_proba(X).sum(axis=1), 1.0)
    assert three.score(X, THREE) > 0.7


@pytest.mark.parametrize("intercept", [True, False])
def test_coefficients_are_those_that_predict(intercept: bool) -> None:
    for labels in (BINARY, THREE):
        model = classifier(random_state=1, fit_intercept=intercept, feature_range=(-4.0, 4.0)).fit(X, labels)
        rows = np.clip(X / 4, -1, 1)
        rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None]
        expected = rows @ model.coef_.T + model.intercept_
        np.testing.assert_allclose(model.decision_function(X), expected.squeeze(), atol=1e-9)
    number = regressor(random_state=1, fit_intercept=intercept, target_range=(0.0, 10.0)).fit(X, 5 + X[:, 0])
    rows = X / np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
    np.testing.assert_allclose(number.predict(X), rows @ number.coef_ + number.intercept_, atol=1e-9)


def test_regression_predicts_in_the_scale_of_the_targets() -> None:
    y = 50 + 10 * X[:, 0]
    model = regressor(random_state=0, epsilon=5.0, target_range=(20.0, 80.0), feature_bound=3.0).fit(X, y)
    assert model.score(X, y) > 0.5
    assert abs(float(np.mean(model.predict(X))) - 50) < 5


def test_without_a_seed_a_fit_is_private_and_never_repeats() -> None:
    first, second = (classifier().fit(X, BINARY) for _ in range(2))
    assert first.private_
    assert first.epsilon_ <= 3.0
    assert first.delta_ == 1e-4
    assert not np.array_equal(first.coef_, second.coef_)


@pytest.mark.parametrize("seed", [0, np.int64(3), np.random.RandomState(3)])
def test_with_a_seed_a_fit_repeats_and_promises_nothing(seed: object) -> None:
    model = classifier(random_state=seed).fit(X, BINARY)
    assert not model.private_
    assert math.isinf(model.epsilon_)
    written = json.loads(model.certificate_.text())
    assert written["private"] is False
    assert all(row["epsilon"] is None for row in written["guarantees"])
    if isinstance(seed, int):
        assert np.array_equal(model.coef_, classifier(random_state=seed).fit(X, BINARY).coef_)


def test_the_certificate_says_what_is_taken_for_public() -> None:
    inferred, given = classifier().fit(X, BINARY), classifier(classes=["yes", "no", "maybe"]).fit(X, BINARY)
    for model, words in ((inferred, "2 labels, read from y"), (given, "3 labels, given as classes")):
        certificate = model.certificate_
        assert len(certificate.guarantees) == 5
        for guarantee in certificate.guarantees:
            rows = {row.name: row.value for row in guarantee.assumptions}
            assert rows["set of labels"] == words
            assert {"feature_range", "feature bound", "number of records and of clients"} <= set(rows)
        assert json.loads(certificate.text())["private"] is True
    assert given.classes_.tolist() == ["maybe", "no", "yes"]


def test_clients_can_be_what_is_protected() -> None:
    owners = np.arange(400) % 80
    model = classifier(unit="client", epsilon=5.0).fit(X, BINARY, clients=owners)
    assert model.fit_.plan.data.clients == 80
    assert model.fit_.plan.target.unit == "client"
    named = classifier(unit="client", epsilon=5.0).fit(X, BINARY, clients=[f"c{k}" for k in owners])
    assert named.fit_.plan.data.clients == 80


def test_a_fitted_model_survives_pickling_and_an_unfitted_one_has_no_certificate() -> None:
    model = classifier(random_state=2).fit(X, BINARY)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    assert again.certificate_.text() == model.certificate_.text()
    with pytest.raises(NotFittedError):
        _ = clone(model).certificate_
    with pytest.raises(NotFittedError):
        clone(model).predict(X)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": -1.0}, "privacy.epsilon"),
        ({"delta": 2.0}, "privacy.delta"),
        ({"feature_bound": float("nan")}, "feature_bound"),
        ({"feature_range": 3.0}, "feature_range must be a pair"),
        ({"feature_range": (1.0, 0.0)}, "every low below"),
        ({"feature_range": ([0.0, 0.0], [1.0, 1.0])}, "one or 3"),
        ({"feature_range": (-math.inf, 1.0)}, "feature_range must be finite"),
        ({"classes": ["no"]}, "at least 2 classes"),
        ({"classes": ["no", "maybe"]}, "another label"),
        ({"classes": [0, 1]}, "type of the labels"),
        ({"budget": "books.sqlite"}, "budget must be"),
        ({"algorithm": "hidden"}, "algorithm must be a dictionary"),
        ({"schedule": {"round": 3}}, "round"),
        ({"unit": "patient"}, "unit must be one of record, client"),
        ({"clip": 0.0}, "model.clip"),
        ({"random_state": -1}, "seed"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        classifier(**changes).fit(X, BINARY)


def test_more_mistakes() -> None:
    with pytest.raises(BadValue, match="target_range"):
        regressor(target_range=(1.0, 1.0)).fit(X, X[:, 0])
    with pytest.raises(BadValue, match="clients must name"):
        classifier().fit(X, BINARY, clients=[1, 2])
    with pytest.raises(ValueError, match="NaN"):
        classifier().fit(np.full((4, 2), np.nan), [0, 1, 0, 1])


def test_rows_never_exceed_their_bound() -> None:
    wild = GENERATOR.normal(size=(200, 5)) * 10.0 ** GENERATOR.integers(-200, 200, size=(200, 1))
    for span in (None, (-1e-3, 1e-3), (np.zeros(5), np.arange(1.0, 6.0))):
        rule = StatedRows.of(0.7, span, True, 5)
        assert row_norms(rule.rows(wild)).max() <= rule.total
