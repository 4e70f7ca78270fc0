"""A model as a fitted pipeline of scikit-learn, which finds its columns by name and loads without fedveil.

Every step is scikit-learn's own, and nearly every function a ufunc of numpy or scipy, which skops trusts without being
told; it has to be told of three names (``export.TRUSTED``). This is why some steps look odd:

- A matrix product is a ``TruncatedSVD`` whose components were put in, and a cut to [-1, 1] a ``MinMaxScaler``.
- The cut of a row x to norm b is x / max(1, |x| / b): a one, the row over b and its norm over b stand side by side, and
  dividing all of them by the largest (``Normalizer``) is that cut.
"""

import importlib
import io
import math
import pickle
import zipfile
from typing import Any, Final

import joblib
import numpy as np
from scipy.special import log_expit
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.svm import LinearSVC

from fedveil.core.errors import BadValue
from fedveil.core.values import Matrix, Vector
from fedveil.data.cells import MARK, canonical, number_marks
from fedveil.data.column import OWN, Column
from fedveil.data.row_rule import RowRule
from fedveil.release.bundle import Bundle
from fedveil.release.linear import Linear, known_texts, linear_of, other_place

GAP: Final = "nan"  # how a missing cell is spelt before cells become numbers or categories


def to_sklearn(bundle: Bundle, ending: str) -> bytes:
    """Return the pipeline as a file with this ending; a ``.skops`` file runs nothing when it is loaded."""
    made = pipeline_of(bundle)
    if ending == ".pkl":
        return pickle.dumps(made)
    if ending == ".skops":
        return bytes(_skops().dumps(made, compression=zipfile.ZIP_DEFLATED))
    buffer = io.BytesIO()
    joblib.dump(made, buffer)
    return buffer.getvalue()


def _skops() -> Any:
    try:
        return importlib.import_module("skops.io")
    except ImportError as error:
        hint = "install the extra fedveil[skops], or name a .joblib file, which is a pickle and runs what it says."
        raise BadValue(f"A .skops file needs the package skops: {hint}") from error


def pipeline_of(bundle: Bundle) -> Any:
    """Return a fitted pipeline that takes raw columns: a data frame by names, or an array in the model's order."""
    linear = linear_of(bundle, "sklearn").binary
    columns, order = _columns(linear.preparation)
    steps = [
        ("select", _select_columns(linear.preparation.names)),
        ("columns", columns),
        *_clip_rows(len(order), linear.cut),
    ]
    rows, cut = linear.weights, linear.cut
    if linear.turn is None:
        rows = rows[order]
    else:
        steps.append(("turn", _product(_beside(linear.turn[order] * cut))))
        cut = linear.again
        steps += [(f"{name} again", step) for name, step in _clip_rows(linear.turn.shape[1], cut)]
    weights = _beside(rows * cut)
    if linear.kind == "survival":
        last = [*_survival(weights, linear.constants), ("model", _risk(linear.constants.size))]
    elif linear.kind == "counts":
        last = _counts(linear, weights)
    else:
        last = [("model", _estimator(linear, weights))]
    # Arrays between the steps, also where scikit-learn is set to make data frames: names would be made up.
    return Pipeline([*steps, *last]).set_output(transform="default")


def _select_columns(names: tuple[str, ...]) -> Any:
    """The model's columns in its order: by name of a data frame, which may have others; all of an array."""
    places = list(range(len(names)))
    step = ColumnTransformer([("columns", "passthrough", places)]).fit(np.zeros((2, len(names))))
    # As if it had been fitted to a data frame. The inner step knows the names too: a scikit-learn that takes some kind
    # of frame for an array then refuses columns in another order, and does not predict by position.
    step.feature_names_in_ = np.array(names, dtype=object)
    step.named_transformers_["columns"].feature_names_in_ = step.feature_names_in_
    return step


def _product(matrix: Matrix) -> Any:
    """Rows times a matrix."""
    step = TruncatedSVD(n_components=matrix.shape[1])
    step.components_, step.n_features_in_ = matrix.T.copy(), matrix.shape[0]
    return step


def _shift_and_scale(centre: Vector, scale: Vector) -> Any:
    """Subtract, then divide."""
    step = StandardScaler()
    step.mean_, step.scale_, step.var_ = np.array(centre), np.array(scale), np.array(scale) ** 2
    step.n_features_in_, step.n_samples_seen_ = centre.size, 1
    return step


def _within_one(width: int) -> Any:
    """Numbers cut to [-1, 1]."""
    step = MinMaxScaler(feature_range=(-1, 1), clip=True).fit(np.repeat([[-1.0], [1.0]], width, axis=1))
    step.scale_, step.min_ = np.ones(width), np.zeros(width)
    return step


def _clip_rows(width: int, bound: float) -> list[tuple[str, Any]]:
    """The steps that cut rows; what comes out is a one, the row and its norm, all over the bound, and cut."""
    square, root = FunctionTransformer(np.square), FunctionTransformer(np.sqrt)
    norm = Pipeline([("squares", square), ("sum", _product(np.ones((width, 1)))), ("root", root)])
    beside = FeatureUnion([("row", "passthrough"), ("norm", norm)])
    one = PolynomialFeatures(degree=1).fit(np.ones((2, width + 1)))
    largest = Normalizer(norm="max").fit(np.ones((2, width + 2)))
    return [
        ("unit", _shift_and_scale(np.zeros(width), np.full(width, bound))),
        ("beside", beside),
        ("one", one),
        ("cut", largest),
    ]


def _beside(weights: Matrix) -> Matrix:
    """Weights of a row as :func:`_clip_rows` leaves it: nothing for the one before it and for the norm after it."""
    nothing = np.zeros((1, weights.shape[1]))
    return np.concatenate([nothing, weights, nothing])


def _columns(prepared: RowRule) -> tuple[Any, list[int]]:
    """Return the fitted steps that make features, and which feature of the model each of theirs is."""
    starts = np.cumsum([0, *(column.width for column in prepared.columns)])[:-1].tolist()
    groups: dict[str, list[int]] = {}
    for place, column in enumerate(prepared.columns):
        groups.setdefault(_kind(column, place), []).append(place)
    parts: list[tuple[str, Any, list[int]]] = []
    order: list[int] = []
    slices: dict[str, slice] = {}
    for kind, places in groups.items():
        group = [prepared.columns[place] for place in places]
        make = _category(group[0], prepared.missing) if group[0].categories else _numbers(group, prepared.missing)
        make += _block(group[0]) if group[0].knots else []
        parts.append((kind, Pipeline(make), places))
        begin = len(order)
        order += [starts[place] + index for place in places for index in range(prepared.columns[place].width)]
        slices[kind] = slice(begin, len(order))
    # Fitted with steps that do nothing, since fitting would replace the model's own numbers in the steps made above.
    idle = [(kind, FunctionTransformer(), places) for kind, _, places in parts]
    steps = ColumnTransformer(idle, sparse_threshold=0.0).fit(np.zeros((2, len(prepared.columns))))
    steps.transformers, steps.transformers_, steps.output_indices_ = parts, list(parts), slices
    return steps, order


def _kind(column: Column, place: int) -> str:
    if column.categories:
        return f"category {place}"
    if column.knots:
        return f"curve {place}"
    words = ("filled" if column.filled else "open", "bent" if column.unit else "straight")
    return " ".join((*words, "cut" if column.range is not None else "whole"))


def _replace_marks(marks: list[Any], stand_in: Any, width: int, kind: type) -> list[tuple[str, Any]]:
    """Steps that put one value in the place of each mark."""
    example: Any = np.full((2, width), stand_in, dtype=object) if kind is object else np.zeros((2, width))
    made = {"strategy": "constant", "fill_value": stand_in, "keep_empty_features": True}  # else NaN is no stand-in
    return [
        (f"{kind.__name__} {index}", SimpleImputer(missing_values=mark, **made).fit(example))
        for index, mark in enumerate(marks)
    ]


def _numbers(group: list[Column], missing: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Read, fill, bend, scale and cut some columns of numbers. What has no fill stays NaN, and the model refuses it."""
    width = len(group)
    texts = [word for word in missing if not MARK.fullmatch(canonical(word)) and word.lower() != GAP]
    # NaN first: other marks are not looked for beside it
    steps = _replace_marks([np.nan, None, *texts], GAP, width, object)
    steps.append(("read", FunctionTransformer(np.asarray, kw_args={"dtype": "float64"})))
    if group[0].filled and group[0].fill != OWN:
        for index, mark in enumerate([np.nan, *number_marks(missing)]):
            fill = SimpleImputer(missing_values=mark).fit(np.ones((2, width)) if mark != 1 else np.zeros((2, width)))
            fill.statistics_ = np.array([float(column.fill) for column in group])
            steps.append((f"fill {index}", fill))
    else:
        steps += _replace_marks(number_marks(missing), np.nan, width, float)
    if group[0].unit:
        steps.append(("unit", _shift_and_scale(np.zeros(width), np.array([column.unit for column in group]))))
        steps.append(("bend", FunctionTransformer(np.arcsinh)))
    centre, scale, low, high = (np.array(one) for one in zip(*(column.affine for column in group), strict=True))
    if group[0].range is not None:  # to [-1, 1], where scikit-learn can cut, and from there to the column's own scale
        half, middle = scale * (high - low) / 2, centre + scale * (high + low) / 2
        steps += [("range", _shift_and_scale(middle, half)), ("limits", _within_one(width))]
        centre, scale = (centre - middle) / half, scale / half
    return [*steps, ("scale", _shift_and_scale(centre, scale))]


def _block(column: Column) -> list[tuple[str, Any]]:
    """The line, the hats and the indicator of a gap, from a number on the scale from -1 to 1.

    The line and every hat are sums of distances |u - place| and a constant. A gap becomes 0 and an indicator, whose row
    of the last product takes away what the 0 adds.
    """
    middle, half = column.line
    places = np.unique([*column.places, middle - half, middle + half])
    shown = column.block(np.append(places, np.nan))
    # How much the slope of each feature changes at each place, halved; no feature has a slope beyond the outer ones.
    slopes = np.diff(shown[:-1, :-1], axis=0) / np.diff(places)[:, None]
    flat, turns = np.zeros((1, column.width - 1)), np.zeros((places.size, column.width))
    turns[:, :-1] = np.diff(np.vstack([flat, slopes, flat]), axis=0) / 2
    base = shown[0] - np.abs(places[0] - places) @ turns
    line = np.zeros((1, column.width))
    gap = (shown[-1] - column.block(np.zeros(1))[0])[None, :]
    steps: list[tuple[str, Any]] = []
    inner = [line, turns]
    if column.fill == OWN:
        fill = SimpleImputer(strategy="constant", fill_value=0.0, add_indicator=True, keep_empty_features=True)
        steps.append(("gaps", fill.fit(np.array([[np.nan], [0.0]]))))
        inner = [line, gap, turns]
    width = len(inner) - 1  # entries beside the distances: the number, and whether it was missing
    away = np.zeros((width, places.size))
    away[0] = 1.0
    apart = Pipeline(
        [
            ("each", _product(away)),
            ("distance", _shift_and_scale(places, np.ones(places.size))),
            ("size", FunctionTransformer(np.absolute)),
        ]
    )
    steps.append(("beside", FeatureUnion([("number", "passthrough"), ("distances", apart)])))
    return [
        *steps,
        ("features", _product(np.concatenate(inner))),
        ("base", _shift_and_scale(-base, np.ones(column.width))),
    ]


def _category(column: Column, missing: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Spread a column of categories: each text that the model knows becomes the features of its category.

    What it does not know becomes those of the category for others, to which ``moved`` leads back.
    """
    known, other = known_texts(column, missing), other_place(column)
    listed = [text for text, place in known.items() if place is not None]
    refused = [text for text, place in known.items() if place is None]
    codes = np.array([place for place in known.values() if place is not None], dtype=np.int64)
    base = column.hot(np.array([-1 if other is None else other]))[0]
    steps = _replace_marks([np.nan, None], GAP, 1, object)
    steps.append(("text", FunctionTransformer(np.asarray, kw_args={"dtype": "str"})))
    steps.append(("strip", FunctionTransformer(np.strings.strip)))
    if refused and other is not None:  # a missing value is refused, and any other text is not
        words = np.array([*listed, *refused], dtype=object)
        place = OrdinalEncoder(categories=[words], handle_unknown="use_encoded_value", unknown_value=-1)
        steps.append(("place", place.fit([[words[0]]])))
        allowed = np.arange(-1.0, len(listed))
        spread = OneHotEncoder(categories=[allowed], sparse_output=False).fit([[0.0]])
        codes = np.array([other, *codes])
    else:
        unlisted = "error" if other is None else "ignore"
        words = np.array(listed, dtype=object)
        spread = OneHotEncoder(categories=[words], handle_unknown=unlisted, sparse_output=False).fit([[words[0]]])
    features = _product(column.hot(codes) - base)
    return [
        *steps,
        ("spread", spread),
        ("features", features),
        ("others", _shift_and_scale(-base, np.ones(column.width))),
    ]


def _survival(weights: Matrix, constants: Vector) -> list[tuple[str, Any]]:
    """The steps that make the chances to be without the event after each interval: all of the pipeline but the last."""
    return [
        ("scores", _product(-weights)),  # of no event
        ("constants", _shift_and_scale(constants, np.ones(constants.size))),
        ("logarithms", FunctionTransformer(log_expit)),
        ("together", _product(np.triu(np.ones((constants.size, constants.size))))),
        ("survival", FunctionTransformer(np.exp)),
    ]


def _risk(intervals: int) -> Any:
    """Return the last step: one minus the last of the chances."""
    model = LinearRegression()
    model.coef_, model.intercept_ = np.append(np.zeros(intervals - 1), -1.0), 1.0
    model.n_features_in_ = intervals
    return model


def _counts(linear: Linear, weights: Matrix) -> list[tuple[str, Any]]:
    """The last steps of a model of counts: exponentials of scores, each cut where the count is the largest."""
    most = -math.log(linear.rate)
    least = min(float(linear.constants[0] - np.linalg.norm(weights)) * 2, most - 2)  # no score of a cut row is so low
    middle, half = np.array([(most + least) / 2]), np.array([(most - least) / 2])
    model = LinearRegression()
    model.coef_, model.intercept_, model.n_features_in_ = np.array([linear.rate * linear.top]), 0.0, 1
    return [
        ("scores", _product(weights)),
        ("constants", _shift_and_scale(-linear.constants, np.ones(1))),
        ("range", _shift_and_scale(middle, half)),
        ("limits", _within_one(1)),
        ("back", _shift_and_scale(-middle / half, 1 / half)),
        ("exponentials", FunctionTransformer(np.exp)),
        ("model", model),
    ]


def _estimator(linear: Linear, weights: Matrix) -> Any:
    """Return the last step, as if it had been fitted."""
    if not linear.classes:
        model = LinearRegression()
        model.coef_, model.intercept_ = weights[:, 0], float(linear.constants[0])
    else:
        model = LinearSVC() if linear.link is None else LogisticRegression()
        model.coef_, model.intercept_ = weights.T.copy(), linear.constants.copy()
        labels = linear.preparation.labels
        model.classes_ = np.arange(len(linear.classes)) if labels.numbered else np.array(linear.classes)
    model.n_features_in_ = weights.shape[0]
    if linear.threshold is None:
        return model
    decided = FixedThresholdClassifier(
        model, threshold=linear.threshold, pos_label=model.classes_[1], response_method="predict_proba"
    )
    decided.estimator_ = model
    return decided
