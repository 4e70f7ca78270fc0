"""Logistic regression with a certificate: one score for two classes, softmax for more."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from fedveil.certificate.assumptions import Assumption
from fedveil.core.errors import BadValue, require
from fedveil.core.values import Vector
from fedveil.jobs.estimators.linear import PrivateLinear
from fedveil.models.spec import ModelPlan

Array = NDArray[Any]


class PrivateLogisticRegression(ClassifierMixin, PrivateLinear):  # type: ignore[misc]
    """A classifier whose released weights are (``epsilon``, ``delta``)-differentially private.

    Ranges and means of the columns are learned with noise, within the same budget, unless ``feature_bound`` is given
    (or ``prepare="stated"``): then nothing is learned, rows are scaled from the public ``feature_range`` to [-1, 1]
    (None: as they are) and cut to norm ``feature_bound``. Gradients are clipped to ``clip`` (None: what the bound
    implies). ``classes``: the labels in advance; None takes the set of labels in ``y`` for public, of which each must
    have two records. ``budget`` charges every fit
    to one ledger. ``random_state`` makes a fit repeatable, and not private. ``algorithm`` and ``schedule`` are the
    tables of a study file. ``shape``: whether each column adds a straight line or a curve of ``knots`` cells to the
    score ("linear", "additive", or "auto", by the number of records and the budget). ``coef_`` and ``intercept_`` apply
    to rows after this preparation.

    Example::

        model = fedveil.PrivateLogisticRegression(epsilon=1.0).fit(X, y)
        model.predict_proba(X), model.certificate_
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        feature_bound: float | None = None,
        feature_range: Any = None,
        classes: Any = None,
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
        self.classes = classes
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

    def fit(self, X: Any, y: Any, clients: Any = None) -> "PrivateLogisticRegression":
        """Train on rows ``X`` with labels ``y``; ``clients`` names who owns each row (None: one holder all)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        labels, targets = self._labelled(y, clients)
        count = labels.size
        model = ModelPlan(kind="logistic" if count == 2 else "softmax", **self._model_settings())
        source = "read from y" if self.classes is None else "given as classes"
        rule = "declared: that these labels occur is public" if self.classes is None else "labels are checked"
        declared = (Assumption("set of labels", f"{count} labels, {source}", rule),)
        result = self._fitted(X, targets, clients, model, count, declared)
        self.classes_ = labels
        weights = result.model.reshape(-1, 1 if count == 2 else count).T
        self.coef_ = weights[:, :-1].copy() if self.rule_.intercept else weights.copy()
        ones = weights[:, -1] * self.rule_.intercept if self.rule_.intercept else np.zeros(len(weights))
        self.intercept_ = np.asarray(ones, dtype=np.float64)
        return self

    def decision_function(self, X: Any) -> Vector:
        """Return the score of the second of two classes, or one score a class."""
        return self._scores(X)

    def predict_proba(self, X: Any) -> Vector:
        """Return the probability of each class, one column per class in the order of ``classes_``."""
        scores = self._scores(X)
        if scores.ndim == 2:
            return np.asarray(softmax(scores, axis=1))
        return np.column_stack([expit(-scores), expit(scores)])

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        scores = self._scores(X)
        best = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(np.intp)
        return np.asarray(self.classes_[best])

    def _labelled(self, y: Array, clients: Any) -> tuple[Array, Vector]:
        """Return all labels in order, and the index of each row's label among them.

        The number of labels is in the plan, so a label that only one record (or one protected client) has must be named
        in ``classes``: its presence must not show.
        """
        labels = np.unique(y if self.classes is None else np.asarray(self.classes))
        if labels.size < 2:
            raise BadValue(f"The labels must be of at least 2 classes, got {labels.size} class: name all in classes.")
        comparable = (labels.dtype.kind in "OUS") == (y.dtype.kind in "OUS")
        require(comparable, "classes", "be of the type of the labels", str(labels.dtype))
        places = np.clip(np.searchsorted(labels, y), 0, labels.size - 1)
        known = bool(np.all(labels[places] == y))
        require(known, "y", "hold only labels that classes names", "another label", "Name every label that may occur.")
        if self.classes is None:
            units = np.arange(y.size) if clients is None or self.unit == "record" else np.asarray(clients)
            fits = units.shape == y.shape
            lone = [label for place, label in enumerate(labels) if fits and np.unique(units[places == place]).size < 2]
            rule = f"name all labels where one {self.unit} alone has one of them"
            require(not lone, "classes", rule, None, f"Only one has {str(lone[:1])[1:-1]}: give classes=[...].")
        return labels, places.astype(np.float64)
