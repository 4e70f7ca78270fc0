"""Every fit is charged, whoever copied the estimator, in whichever process; the cap refuses the one too many."""

import math
from pathlib import Path

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from fedveil.core.errors import BadValue
from fedveil.jobs.estimators import Budget, PrivateHuberRegressor, PrivateLogisticRegression
from fedveil.ledger.budget import CapExceeded

GENERATOR = np.random.default_rng(6)
X = GENERATOR.normal(size=(240, 2))
Y = (X[:, 0] > 0).astype(int)
QUICK = {"kind": "constant", "rounds": 1, "passes": 4}


def budget(folder: Path, epsilon: float, delta: float = 1e-3) -> Budget:
    return Budget(str(folder / "books.sqlite"), epsilon=epsilon, delta=delta)


def model(books: Budget | None, **changes: object) -> PrivateLogisticRegression:
    given = {"epsilon": 1.0, "schedule": QUICK, "budget": books, "feature_bound": 1.0}
    return PrivateLogisticRegression(**(given | changes))


def test_a_fresh_budget_has_spent_nothing_and_makes_no_file(tmp_path: Path) -> None:
    books = budget(tmp_path, 3.0)
    assert (books.fits(), books.spent().epsilon, books.spent().delta) == (0, 0.0, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_fits_add_up_and_the_one_too_many_is_refused(tmp_path: Path) -> None:
    books = budget(tmp_path, 1.4)
    first, second = model(books).fit(X, Y), model(books).fit(X, Y)
    together = first.epsilon_ + second.epsilon_
    assert together <= books.spent().epsilon <= together * (1 + 1e-12)
    assert books.spent().delta == pytest.approx(2e-5)
    with pytest.raises(CapExceeded):
        model(books).fit(X, Y)
    assert books.fits() == 2
    model(books, epsilon=0.4).fit(X, Y)  # a cheaper one still fits


def test_a_grid_of_twelve_costs_twelve_times_and_the_refit_is_the_thirteenth(tmp_path: Path) -> None:
    books = budget(tmp_path, 3.35)  # twelve fits of epsilon 1 at delta 1e-5, by their Renyi divergences
    grid = {"l2": [0.0, 0.01, 0.1], "feature_bound": [1.0, 2.0]}
    search = GridSearchCV(model(books), grid, cv=KFold(2), error_score="raise")
    with pytest.raises(CapExceeded):
        search.fit(X, Y)
    assert books.fits() == 12
    assert 11.9 < books.spent().epsilon <= 12.0


@pytest.mark.parametrize("steps", [0, 1])
def test_a_search_without_a_budget_warns_and_one_fit_does_not(steps: int) -> None:
    """Every fold and every setting is a release, and without a ledger nobody adds them up."""
    private = model(None)
    private.fit(X, Y)
    searched = make_pipeline(FunctionTransformer(), private) if steps else private
    name = "privatelogisticregression__l2" if steps else "l2"
    with pytest.warns(UserWarning, match="no budget adds them up") as told:
        GridSearchCV(searched, {name: [0.0, 0.1]}, cv=KFold(2), error_score="raise").fit(X, Y)
    assert len(told) == 4


def test_copies_in_other_processes_share_the_books(tmp_path: Path) -> None:
    books = budget(tmp_path, 20.0)
    scores = cross_val_score(model(books), X, Y, cv=KFold(4), n_jobs=2)
    assert np.isfinite(scores).all()
    assert books.fits() == 4


def test_pipelines_hand_clients_and_budget_on(tmp_path: Path) -> None:
    books = budget(tmp_path, 2.0)
    pipe = make_pipeline(FunctionTransformer(np.tanh), model(books))
    pipe.fit(X, Y, privatelogisticregression__clients=np.arange(240) % 60)
    assert books.fits() == 1
    assert pipe[-1].fit_.plan.data.clients == 60
    assert pipe.predict_proba(X).shape == (240, 2)


def test_folds_get_their_own_clients_when_routed(tmp_path: Path) -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        routed = model(None).set_fit_request(clients=True)
        with pytest.warns(UserWarning, match="no budget adds them up"):
            scores = cross_val_score(routed, X, Y, cv=KFold(2), params={"clients": np.arange(240)}, error_score="raise")
    assert scores.size == 2


def test_a_seeded_fit_breaks_any_cap(tmp_path: Path) -> None:
    books = budget(tmp_path, 100.0)
    with pytest.raises(CapExceeded, match="no finite cost"):
        model(books, random_state=0).fit(X, Y)
    assert (books.fits(), books.spent().epsilon) == (0, 0.0)


def test_a_cap_can_be_lowered_and_not_raised(tmp_path: Path) -> None:
    model(budget(tmp_path, 5.0)).fit(X, Y)
    with pytest.raises(BadValue, match="must not exceed"):
        model(budget(tmp_path, 6.0)).fit(X, Y)
    with pytest.raises(CapExceeded):
        model(budget(tmp_path, 1.5)).fit(X, Y)


def test_regression_is_charged_too(tmp_path: Path) -> None:
    books = budget(tmp_path, 5.0)
    fitted = PrivateHuberRegressor(schedule=QUICK, budget=books).fit(X, X[:, 0])
    assert books.spent().epsilon == pytest.approx(fitted.epsilon_)


@pytest.mark.parametrize("changes", [{"ledger": ""}, {"epsilon": math.inf}, {"delta": 2.0}, {"adversary": "nobody"}])
def test_a_budget_is_checked_at_birth(changes: dict[str, object]) -> None:
    with pytest.raises(BadValue):
        Budget(**({"ledger": "books", "epsilon": 1.0, "delta": 0.0} | changes))  # type: ignore[arg-type]
