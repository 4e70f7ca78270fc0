"""Robust linear regression with a certificate: the Huber loss, targets in a public range."""

from typing import Any, Final

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from fedveil.certificate.assumptions import Assumption
from fedveil.core.errors import require
from fedveil.core.values import Vector, number
from fedveil.data.missing import scaled
from fedveil.jobs.estimators.linear import PrivateLinear
from fedveil.models.spec import ModelPlan

_AMPLE: Final = 10.0  # epsilon at which a few hundred records and stated ranges give a good fit


class PrivateHuberRegressor(RegressorMixin, PrivateLinear):  # type: ignore[misc]
    """A linear regressor whose released weights are (``epsilon``, ``delta``)-differentially private.

    Targets are cut to ``target_range`` and mapped to [-1, 1]; errors above ``threshold``, in that scale, count
    linearly. A range that is given is public; without one it is learned with noise, as the ranges of the columns are,
    and is ``target_range_`` after fitting. The other parameters are those of :class:`PrivateLogisticRegression`.

    Example::

        model = fedveil.PrivateHuberRegressor(epsilon=1.0, target_range=(0.0, 500.0)).fit(X, y)
        model.predict(X), model.certificate_
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        feature_bound: float | None = None,
        feature_range: Any = None,
        target_range: tuple[float, float] | None = None,
        threshold: float = 1.0,
        fit_intercept: bool = True,
        l2: float = 0.0,
        clip: float | None = None,
        radius: float | None = None,
        adversary: str = "final-model",
        unit: str = "record",
        neighbours: str = "replace-one",
        algorithm: Any = None,
        schedule: Any = None,
        budget: Any = None,
        prepare: Any = None,
        shape: str = "auto",
        knots: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bound = feature_bound
        self.feature_range = feature_range
        self.target_range = target_range
        self.threshold = threshold
        self.fit_intercept = fit_intercept
        self.l2 = l2
        self.clip = clip
        self.radius = radius
        self.adversary = adversary
        self.unit = unit
        self.neighbours = neighbours
        self.algorithm = algorithm
        self.schedule = schedule
        self.budget = budget
        self.prepare = prepare
        self.shape = shape
        self.knots = knots
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags; ``poor_score``: its trial of 200 records expects an R2 of 0.5.

        At epsilon 1 so few records leave about 0.25. With stated ranges and epsilon 10 the trial is passed.
        """
        tags = super().__sklearn_tags__()
        ample = isinstance(self.epsilon, int | float) and self.epsilon >= _AMPLE
        tags.regressor_tags.poor_score = not (ample and self.target_range is not None)
        return tags

    def fit(self, X: Any, y: Any, clients: Any = None) -> "PrivateHuberRegressor":
        """Train on rows ``X`` with numbers ``y``; ``clients`` names who owns each row (None: one holder all)."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        model = ModelPlan(kind="huber", threshold=self.threshold, **self._model_settings())
        targets, declared = (
            np.asarray(y, dtype=np.float64),
            Assumption("target_range", "learned", "charged with the rest"),
        )
        if self.target_range is not None:
            low, high = _span(self.target_range)
            targets = scaled(targets, (low, high))
            shown = f"{low:.12g} to {high:.12g}"
            declared = Assumption("target_range", shown, "declared as public; targets are cut to it")
        result = self._fitted(X, targets, clients, model, 0, (declared,), open_range=self.target_range is None)
        learned = None if result.rule is None else result.rule.target
        self.target_range_ = low, high = _span(self.target_range if learned is None else learned)
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        weights, constant = half * result.model, self.rule_.intercept
        self.coef_ = weights[:-1].copy() if constant else weights
        self.intercept_ = middle + (float(weights[-1]) * constant if constant else 0.0)
        return self

    def predict(self, X: Any) -> Vector:
        """Return numbers in the scale of ``y``, not cut to the range."""
        scores = self._scores(X)
        low, high = self.target_range_
        return np.asarray(low / 2 + high / 2 + (high / 2 - low / 2) * scores)


def _span(given: Any) -> tuple[float, float]:
    pair = isinstance(given, tuple | list | np.ndarray) and len(given) == 2
    require(pair, "target_range", "be a pair (low, high)", given)
    low, high = (number("target_range", end) for end in given)
    require(-1e300 < low < high < 1e300, "target_range", "be finite with low below high", (low, high))
    return low, high
