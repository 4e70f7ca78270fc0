"""Metrics against scikit-learn's, intervals against their definitions and against repetition."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.calibration import calibration_curve

from fedveil.core.values import Matrix, Vector
from fedveil.models.adjusted import probabilities
from fedveil.models.intervals import area, around, wilson
from fedveil.models.loss import Loss
from fedveil.models.metrics import BINS, evaluate_classes, evaluate_numbers, no_better
from fedveil.models.spec import loss_named


def problem(kind: str, classes: int, rows: int = 300, seed: int = 0) -> tuple[Loss, Vector, Matrix, Vector, list[str]]:
    random = np.random.default_rng(seed)
    loss = loss_named(kind, classes=classes)
    X = random.normal(size=(rows, 4))
    w = random.normal(size=loss.size(4))
    flipped = random.random(rows) < 0.2
    y = np.where(flipped, random.integers(classes, size=rows), loss.predict(w, X)).astype(np.float64)
    return loss, w, X, y, [f"kind {k}" for k in range(classes)]


@pytest.mark.parametrize(("kind", "classes"), [("logistic", 2), ("softmax", 2), ("softmax", 4), ("smoothed-hinge", 2)])
@pytest.mark.parametrize("seed", [0, 1])
def test_classes_are_measured_as_scikit_learn_measures_them(kind: str, classes: int, seed: int) -> None:
    loss, w, X, y, names = problem(kind, classes, seed=seed)
    found = evaluate_classes(loss, w, X, y, names)
    scores, said = loss.scores(w, X), loss.predict(w, X)
    assert found["confusion"] == metrics.confusion_matrix(y, said, labels=range(classes)).tolist()
    recall, precision = (
        score(y, said, labels=range(classes), average=None) for score in (metrics.recall_score, metrics.precision_score)
    )
    assert list(found["recall"].values()) == pytest.approx(recall.tolist(), abs=1e-15)
    assert list(found["precision"].values()) == pytest.approx(precision.tolist(), abs=1e-15)
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, said), abs=1e-15)
    shares = probabilities(loss, scores)
    if shares is None:
        assert found["threshold"] == 0.0
        assert "log_loss" not in found
        assert found["auc"] == pytest.approx(metrics.roc_auc_score(y, scores[:, 0]), abs=1e-12)
        return
    ranked = shares if classes > 2 else shares[:, 1]
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(y, ranked, multi_class="ovr"), abs=1e-12)
    assert found["log_loss"] == pytest.approx(metrics.log_loss(y, shares, labels=range(classes)), abs=1e-12)
    assert found["brier"] == pytest.approx(
        metrics.brier_score_loss(y, ranked, labels=list(range(classes)), scale_by_half="auto"), abs=1e-12
    )
    assert found["threshold"] == (0.5 if classes == 2 else None)


def test_the_constant_answer_is_the_commonest_class_of_the_held_out_records() -> None:
    loss, w, X, y, names = problem("softmax", 3)
    found = evaluate_classes(loss, w, X, y, names)["baseline"]
    shares = np.bincount(y.astype(int), minlength=3) / y.size
    prior = np.tile(shares, (y.size, 1))
    assert found["class"] == names[int(shares.argmax())]
    assert found["accuracy"] == pytest.approx(shares.max())
    assert found["log_loss"] == pytest.approx(metrics.log_loss(y, prior, labels=range(3)))
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(y, prior, labels=[0, 1, 2], scale_by_half=False))


def test_calibration_is_scikit_learns_curve() -> None:
    loss, w, X, y, names = problem("logistic", 2)
    found = evaluate_classes(loss, w, X, y, names)["calibration"]
    shares = probabilities(loss, loss.scores(w, X))
    assert shares is not None
    observed, predicted = calibration_curve(y, shares[:, 1], n_bins=BINS)
    assert [row["observed"] for row in found["bins"]] == pytest.approx(observed.tolist())
    assert [row["predicted"] for row in found["bins"]] == pytest.approx(predicted.tolist())
    assert sum(row["records"] for row in found["bins"]) == y.size
    gaps = [row["records"] * abs(row["predicted"] - row["observed"]) for row in found["bins"]]
    assert found["error"] == pytest.approx(sum(gaps) / y.size)


@pytest.mark.parametrize("absent", [0, 1])
def test_a_class_that_does_not_occur_has_no_recall_and_no_area(absent: int) -> None:
    loss, w, X, _, names = problem("logistic", 2)
    found = evaluate_classes(loss, w, X, np.full(len(X), 1.0 - absent), names)
    assert found["recall"][names[absent]] is None
    assert found["auc"] is None
    assert found["intervals"]["auc"] is None


def test_numbers_are_measured_as_scikit_learn_measures_them() -> None:
    random = np.random.default_rng(3)
    truth = random.normal(50.0, 20.0, size=400)
    said = truth + random.normal(0.0, 8.0, size=400)
    found = evaluate_numbers(said, truth)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(truth, said))
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, said))
    assert found["median_error"] == pytest.approx(metrics.median_absolute_error(truth, said))
    constant = np.full(400, np.median(truth))
    assert found["baseline"]["mae"] == pytest.approx(metrics.mean_absolute_error(truth, constant))
    assert found["baseline"]["r2"] == pytest.approx(metrics.r2_score(truth, constant))
    low, high = found["intervals"]["r2"]
    assert low < metrics.r2_score(truth, said) < high
    assert str(float(np.median(truth))) not in str(found), "the median is a record's own value"


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_the_area_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([float(s) for s, _ in rows]), np.array([p for _, p in rows])
    if positive.all() or not positive.any():
        return
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    found, influence = area(scores, positive)
    assert found == pytest.approx(np.mean(pairs))
    assert influence.mean() == pytest.approx(0.0, abs=1e-12)


def test_the_area_has_delongs_variance() -> None:
    """The variance written out as in the paper, from all pairs."""
    random = np.random.default_rng(5)
    positive = random.random(80) < 0.3
    scores = random.normal(size=80) + positive
    found, influence = area(scores, positive)
    pairs = np.sign(scores[positive][:, None] - scores[~positive][None, :]) / 2 + 0.5
    variance = pairs.mean(axis=1).var(ddof=1) / positive.sum() + pairs.mean(axis=0).var(ddof=1) / (~positive).sum()
    interval = around(found, influence)
    assert interval is not None
    assert (interval[1] - interval[0]) / (2 * 1.959963984540054) == pytest.approx(variance**0.5, rel=0.03)


def test_intervals_hold_about_as_often_as_they_say() -> None:
    """400 repeats of 200 records: a 95% interval that holds in fewer than 88% of them has chance below 1e-7."""
    held = dict.fromkeys(("accuracy", "auc", "log_loss", "brier"), 0)
    loss, w, X, y, names = problem("logistic", 2, rows=100_000, seed=8)
    whole, random = evaluate_classes(loss, w, X, y, names), np.random.default_rng(9)
    whole["accuracy"] = float(np.mean(loss.predict(w, X) == y))
    for _ in range(400):
        rows = random.integers(len(X), size=200)
        found = evaluate_classes(loss, w, X[rows], y[rows], names)["intervals"]
        for key in held:
            held[key] += found[key][0] <= whole[key] <= found[key][1]
    assert min(held.values()) >= 352, held


def test_a_model_that_finds_nobody_is_called_by_its_name() -> None:
    loss = loss_named("logistic")
    y = (np.arange(100) % 7 == 0).astype(np.float64)
    X = np.ones((100, 1))
    found = evaluate_classes(loss, np.array([-3.0]), X, y, ["well", "ill"])
    told = no_better({**found, "accuracy": float(np.mean(y == 0))})
    assert told is not None
    assert "always answering 'well'" in told
    assert "never finds 'ill'" in told
    assert "its AUC is 0.500" in told
    assert no_better({**found, "auc": 0.8, "intervals": {"auc": (0.7, 0.9)}}) is None  # it ranks
    assert no_better({**found, "log_loss": 0.1}) is None
    bare = {key: value for key, value in found.items() if key not in ("auc", "log_loss")}
    assert no_better({**bare, "accuracy": 0.99}) is None
    assert no_better({**bare, "accuracy": 0.5}) is not None
    assert no_better({}) is None


def test_a_number_no_better_than_the_median_is_called_so() -> None:
    truth = np.linspace(0.0, 1.0, 11)
    assert no_better(evaluate_numbers(np.full(11, 0.5), truth)) is not None
    assert no_better(evaluate_numbers(truth + 0.01, truth)) is None


@pytest.mark.parametrize("rows", [1, 2])
def test_one_record_says_little_and_nothing_breaks(rows: int) -> None:
    loss, w, X, y, names = problem("logistic", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate_classes(loss, w, X[:rows], y[:rows], names)
        numbers = evaluate_numbers(X[:rows, 0], X[:rows, 1])
    assert found["intervals"]["accuracy"] == wilson(float(np.mean(loss.predict(w, X[:rows]) == y[:rows])), rows)
    assert (numbers["intervals"]["mae"] is None) == (rows == 1)
