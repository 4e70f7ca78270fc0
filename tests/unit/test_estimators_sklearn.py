"""scikit-learn's own checks; what fails is listed with its reason, and must fail."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedveil.jobs.estimators import PrivateHuberRegressor, PrivateLogisticRegression

QUICK = {"kind": "constant", "rounds": 1}  # a search for the best schedule would take most of the time
TOO_FEW = "At epsilon 1, 200 records of 10 features leave an R2 of about 0.25; the check wants 0.5."


def _expected(estimator: Any) -> dict[str, str]:
    strict = isinstance(estimator, PrivateHuberRegressor) and estimator.epsilon == 1.0
    return {"check_regressors_train": TOO_FEW} if strict else {}


@pytest.mark.filterwarnings("ignore:The range of the targets is learned")  # from a few dozen records
@parametrize_with_checks(
    [
        PrivateLogisticRegression(schedule=QUICK),
        PrivateLogisticRegression(schedule=QUICK, feature_bound=1.0),
        PrivateHuberRegressor(schedule=QUICK),
        PrivateHuberRegressor(schedule=QUICK, feature_bound=1.0, target_range=(-1.0, 1.0)),
        PrivateHuberRegressor(epsilon=10.0, feature_bound=3.0, target_range=(-3.0, 3.0), schedule=QUICK),
    ],
    expected_failed_checks=_expected,
    xfail_strict=True,
)
def test_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
