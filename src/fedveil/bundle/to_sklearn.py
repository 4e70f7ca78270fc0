"""A model as a fitted pipeline of scikit-learn, which loads where fedveil is not installed.

Every step is scikit-learn's own and every function numpy's. The cut of a row x to norm b is x / max(1, |x| / b): the
row over b, its norm and a one stand side by side, and dividing all of them by the largest (``Normalizer``) is that cut.
"""

import io
import math
from typing import Any

import joblib
import numpy as np
from scipy.special import log_expit
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from fedveil.bundle.bundle import Bundle
from fedveil.bundle.linear import Linear, linear_of
from fedveil.checks import require
from fedveil.data.cells import canonical
from fedveil.data.column import ZERO, Column, number_marks
from fedveil.data.preparation import Preparation
from fedveil.values import Matrix, Vector


def to_sklearn(bundle: Bundle) -> bytes:
    """Return the pipeline as joblib writes it; read it with ``joblib.load``, which runs what the file says."""
    buffer = io.BytesIO()
    joblib.dump(pipeline_of(bundle), buffer)
    return buffer.getvalue()


def pipeline_of(bundle: Bundle) -> Any:
    """Return a fitted pipeline that takes rows of raw columns, in the model's order.

    An array of objects, or a data frame.
    """
    found = linear_of(bundle, "sklearn").binary
    columns, order = _columns(found.preparation)
    steps = [("columns", columns), *_cut(len(order), found.cut)]
    rows, cut = found.weights, found.cut
    if found.turn is None:
        rows = rows[order]
    else:
        turn = np.concatenate([found.turn[order] * cut, np.zeros((2, found.turn.shape[1]))])
        steps.append(("turn", FunctionTransformer(np.dot, kw_args={"b": turn})))
        cut = found.again
        steps += [(f"{name} again", step) for name, step in _cut(found.turn.shape[1], cut)]
    weights = np.concatenate([rows * cut, np.zeros((2, found.weights.shape[1]))])
    if found.kind == "survival":
        return Pipeline([*steps, *_survival(weights, found.constants), ("model", _risk(found.constants.size))])
    return Pipeline([*steps, ("model", _estimator(found, weights))])


def _survival(weights: Matrix, constants: Vector) -> list[tuple[str, Any]]:
    """The steps that make the chances to be without the event after each interval: all of the pipeline but the last."""
    moved = StandardScaler().fit(np.ones((2, constants.size)))
    moved.mean_, moved.scale_, moved.var_ = constants.copy(), np.ones(constants.size), np.ones(constants.size)
    return [
        ("scores", FunctionTransformer(np.dot, kw_args={"b": -weights})),  # of no event
        ("constants", moved),
        ("logarithms", FunctionTransformer(log_expit)),
        ("together", FunctionTransformer(np.cumsum, kw_args={"axis": 1})),
        ("survival", FunctionTransformer(np.exp)),
    ]


def _risk(intervals: int) -> Any:
    """Return the last step: one minus the last of the chances."""
    model = LinearRegression()
    model.coef_, model.intercept_ = np.append(np.zeros(intervals - 1), -1.0), 1.0
    model.n_features_in_ = intervals
    return model


def _counts(found: Linear, weights: Matrix) -> Any:
    """Return the last step of a model of counts: exponentials of scores, cut to the range."""
    model = PoissonRegressor()
    model.coef_, model.intercept_ = weights[:, 0], float(found.constants[0]) + math.log(found.rate * found.top)
    model.n_features_in_ = weights.shape[0]
    model._base_loss = model._get_loss()  # as fitting sets it
    cut = FunctionTransformer(inverse_func=np.clip, inv_kw_args={"a_min": 0.0, "a_max": found.top})
    whole = TransformedTargetRegressor(model, transformer=cut, check_inverse=False)
    whole.regressor_, whole.transformer_ = model, cut.fit(np.ones((2, 1)))
    whole._training_dim = 1  # likewise
    return whole


def _cut(width: int, bound: float) -> list[tuple[str, Any]]:
    """The steps that cut rows; what comes out is over the bound, with two more columns."""
    unit = StandardScaler(with_mean=False).fit(np.ones((2, width)))
    unit.scale_ = np.full(width, bound)
    norm = FunctionTransformer(np.linalg.norm, kw_args={"axis": 1, "keepdims": True})
    one = Pipeline([("norm", norm), ("one", FunctionTransformer(np.ones_like))])
    beside = FeatureUnion([("row", "passthrough"), ("norm", norm), ("one", one)]).fit(np.ones((2, width)))
    return [("unit", unit), ("beside", beside), ("cut", Normalizer(norm="max").fit(np.ones((2, width + 2))))]


def _columns(prepared: Preparation) -> tuple[Any, list[int]]:
    """Return the fitted steps that make features, and which feature of the model each of theirs is."""
    marks, names = number_marks(prepared.missing), prepared.names
    starts = np.cumsum([0, *(column.width for column in prepared.columns)])[:-1].tolist()
    places = {name: (place, start) for place, (name, start) in enumerate(zip(names, starts, strict=True))}
    numeric = [column for column in prepared.columns if not column.categories]
    groups = {
        f"{'filled' if filled else 'open'} {'bent' if bent else 'straight'}": [
            column for column in numeric if column.filled is filled and (column.unit > 0) is bent
        ]
        for filled in (True, False)
        for bent in (True, False)
    }
    hint = "State a fill for them (data.fill)."
    clear = not marks or all(column.filled for column in numeric)
    require(clear, "Columns without a fill", "have no numbers that mark a missing value", marks, hint)
    parts: list[tuple[str, Any, list[int]]] = []
    order: list[int] = []
    for name, group in list(groups.items()):
        if group:
            parts.append((name, _numbers(group, marks), [places[column.name][0] for column in group]))
            order += [places[column.name][1] for column in group]
    for index, column in enumerate(column for column in prepared.columns if column.categories):
        parts.append((f"category {index}", _category(column, prepared.missing), [places[column.name][0]]))
        groups[f"category {index}"] = [column]
        order += range(places[column.name][1], places[column.name][1] + column.width)
    example = np.array([[_example(column) for column in prepared.columns]] * 2, dtype=object)
    steps = ColumnTransformer(parts, sparse_threshold=0.0).fit(example)
    for name, group in groups.items():
        if group:
            _settle(steps.named_transformers_[name], group)
    return steps, order


def _numbers(group: list[Column], marks: list[float]) -> Any:
    """Fill, scale and cut some columns of numbers."""
    _, _, low, high = (np.array(values) for values in zip(*(column.affine for column in group), strict=True))
    given = [np.nan, *marks] if group[0].filled else []
    fills = [(f"fill{index}", SimpleImputer(missing_values=mark, strategy="mean")) for index, mark in enumerate(given)]
    bend = [("unit", StandardScaler()), ("bend", FunctionTransformer(np.arcsinh))] if group[0].unit else []
    limits = FunctionTransformer(np.clip, kw_args={"a_min": low, "a_max": high})
    return Pipeline([*fills, *bend, ("scale", StandardScaler()), ("limits", limits)])


def _settle(steps: Any, group: list[Column]) -> None:
    """Put the model's own numbers into steps that were fitted to nothing."""
    if group[0].categories:
        centre = np.array(group[0].offsets or (0.0,) * group[0].width)
        scale = np.full(group[0].width, 1.0 / group[0].weight)
    else:
        centre, scale, _, _ = (np.array(values) for values in zip(*(one.affine for one in group), strict=True))
    for name, step in steps.steps:
        if name.startswith("fill") and not group[0].categories:
            step.statistics_ = np.array([float(column.fill) for column in group])
        if name == "unit":
            unit = np.array([column.unit for column in group])
            step.mean_, step.scale_, step.var_ = np.zeros(len(group)), unit, unit**2
        if name == "scale":
            step.mean_, step.scale_, step.var_ = centre, scale, scale**2


def _category(column: Column, missing: tuple[str, ...]) -> Any:
    """Fill and spread a column of categories. One that stands for all others must come last, and is what is left."""
    words, other = column.categories, column.unknown in column.categories
    known = (not other or column.unknown == words[-1]) and (column.fill != ZERO or column.unknown == ZERO)
    rule = (column.unknown, column.fill)
    require(known, f"The column {column.name!r}", "have rules for other values that scikit-learn knows", rule)
    listed = np.array(words[:-1] if other else words, dtype=object)
    unlisted = "error" if column.unknown == "refuse" else "ignore"
    steps: list[tuple[str, Any]] = [
        ("encode", OneHotEncoder(categories=[listed], handle_unknown=unlisted, sparse_output=False))
    ]
    if other:
        count = FunctionTransformer(np.sum, kw_args={"axis": 1, "keepdims": True})
        rest = Pipeline([("count", count), ("none", FunctionTransformer(np.logical_not))])
        steps.append(("rest", FeatureUnion([("listed", "passthrough"), ("rest", rest)])))
    if column.offsets or column.weight != 1.0:
        steps.append(("scale", StandardScaler()))
    marks = [None, np.nan, *(word for word in missing if canonical(word) not in words)] if column.filled else []
    fills = [
        (f"fill{index}", SimpleImputer(missing_values=mark, strategy="constant", fill_value=canonical(column.fill)))
        for index, mark in enumerate(marks)
    ]
    return Pipeline([*fills, *steps])


def _example(column: Column) -> Any:
    if column.categories:
        return column.categories[0]
    return float(column.fill) if column.filled else 0.0


def _estimator(found: Linear, weights: Matrix) -> Any:
    """Return the last step, as if it had been fitted."""
    if found.kind == "counts":
        return _counts(found, weights)
    if not found.classes:
        model = LinearRegression()
        model.coef_, model.intercept_ = weights[:, 0], float(found.constants[0])
    else:
        model = LinearSVC() if found.link is None else LogisticRegression()
        model.coef_, model.intercept_ = weights.T.copy(), found.constants.copy()
        labels = found.preparation.labels
        model.classes_ = np.arange(len(found.classes)) if labels.numbered else np.array(found.classes)
    model.n_features_in_ = weights.shape[0]
    if found.threshold is None:
        return model
    decided = FixedThresholdClassifier(
        model, threshold=found.threshold, pos_label=model.classes_[1], response_method="predict_proba"
    )
    decided.estimator_ = model
    return decided
