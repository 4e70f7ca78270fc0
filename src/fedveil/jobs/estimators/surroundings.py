"""Notice who fits an estimator: a search that fits it many times, or a pipeline with steps that learn without noise.

Both are read off the call stack. scikit-learn hands an estimator nothing but arrays, so there is no other way to see
that they come from a scaler that was fitted to the same records.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import PolynomialCountSketch, RBFSampler
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures, SplineTransformer
from sklearn.random_projection import BaseRandomProjection
from sklearn.utils import get_tags

from fedveil.jobs.estimators.budget import Budget

_FITS_MANY = ("sklearn.model_selection._validation", "_fit_and_score")  # what fits each copy on each fold
_DEEPEST = 60  # frames above a fit that are looked at; a pipeline adds a few
_SHAPES_ALONE = (PolynomialFeatures, PolynomialCountSketch, RBFSampler, BaseRandomProjection, FrozenEstimator)


def unbudgeted_search(budget: Budget | None) -> str | None:
    """Return a warning if this fit is one of many that nobody adds up; None otherwise."""
    searched = any((one.f_globals.get("__name__"), one.f_code.co_name) == _FITS_MANY for one in _frames())
    if budget is not None or not searched:
        return None
    return (
        "This fit is one of many, by a search or a cross-validation, and no budget adds them up: each fold and each "
        "setting is a release of its own. Give budget=Budget(...), or search with: fedveil tune."
    )


def unaccounted_steps(learned: tuple[str, ...]) -> str | None:
    """Return a warning about steps that were fitted to the records before this fit; None if there are none."""
    if not learned:
        return None
    return (
        f"{', '.join(learned)} in the pipeline learned from the same records without noise, and no certificate covers "
        "it. Leave such steps out (the estimator scales its columns itself, privately), or use steps that learn "
        "nothing, such as FunctionTransformer."
    )


def steps_that_learn() -> tuple[str, ...]:
    """Return the names of the steps, in pipelines that are being fitted now, that learn from records."""
    found: list[str] = []
    for frame in _frames():
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and frame.f_code.co_name.startswith("fit"):
            found += [name for _, step in owner.steps[:-1] for name in learned_by(step)]
    return tuple(dict.fromkeys(found))


def learned_by(step: Any) -> Iterator[str]:
    """Yield the name of each transformer in a step whose fit looks at the values of records.

    scikit-learn's tag says which transformers need no fit. Some others learn no more than how many columns there are.
    """
    match step:
        case None | str():  # "passthrough", "drop"
            return
        case Pipeline():
            inner = [one for _, one in step.steps]
        case FeatureUnion():
            inner = [one for _, one in step.transformer_list]
        case ColumnTransformer():
            inner = [*(one[1] for one in step.transformers), step.remainder]
        case _:
            if not _learns_nothing(step):
                yield type(step).__name__
            return
    for one in inner:
        yield from learned_by(one)


def _learns_nothing(step: Any) -> bool:
    match step:
        case OneHotEncoder() | OrdinalEncoder():
            return not isinstance(step.categories, str)
        case SimpleImputer():
            return step.strategy == "constant" and step.fill_value is not None
        case SplineTransformer():
            return isinstance(step.knots, np.ndarray)
        case _:
            return isinstance(step, _SHAPES_ALONE) or not get_tags(step).requires_fit


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            return
        yield frame
        frame = frame.f_back
