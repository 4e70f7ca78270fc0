"""Estimators in the style of scikit-learn: fit, predict, score, and a certificate of what the fit revealed.

>>> import numpy as np
>>> from fedveil.jobs.estimators import PrivateLogisticRegression
>>> X = np.random.default_rng(0).normal(size=(500, 3))
>>> model = PrivateLogisticRegression(epsilon=2.0, delta=1e-4).fit(X, X[:, 0] > 0)
>>> model.epsilon_ <= 2.0
True
"""

from fedveil.jobs.estimators.budget import Budget
from fedveil.jobs.estimators.classifier import PrivateLogisticRegression
from fedveil.jobs.estimators.regressor import PrivateHuberRegressor

__all__ = ["Budget", "PrivateHuberRegressor", "PrivateLogisticRegression"]
