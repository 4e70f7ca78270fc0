"""scikit-learn's own checks, all of which must pass; a score of 0.5 is expected only where no tag says otherwise."""

from typing import Any

import pytest
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedveil.jobs.estimators import PrivateHuberRegressor, PrivateLogisticRegression

QUICK = {"kind": "constant", "rounds": 1}  # a search for the best schedule would take most of the time


@pytest.mark.filterwarnings("ignore:The range of the targets is learned")  # from a few dozen records
@parametrize_with_checks(
    [
        PrivateLogisticRegression(schedule=QUICK),
        PrivateLogisticRegression(schedule=QUICK, feature_bound=1.0),
        PrivateHuberRegressor(schedule=QUICK),
        PrivateHuberRegressor(schedule=QUICK, feature_bound=1.0, target_range=(-1.0, 1.0)),
        PrivateHuberRegressor(epsilon=10.0, feature_bound=3.0, target_range=(-3.0, 3.0), schedule=QUICK),
    ],
)
def test_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_good_score_is_promised_only_where_the_budget_is_ample() -> None:
    few, ample = PrivateHuberRegressor(), PrivateHuberRegressor(epsilon=10.0, target_range=(-3.0, 3.0))
    assert get_tags(few).regressor_tags.poor_score
    assert not get_tags(ample).regressor_tags.poor_score
