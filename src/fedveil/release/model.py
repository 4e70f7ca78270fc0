"""A released model in use: it takes records as they come from their source, and says what it predicts.

>>> import fedveil
>>> model = fedveil.load_model("results")  # doctest: +SKIP
>>> model.predict({"age": [63, 41], "ward": ["A", "B"]})  # doctest: +SKIP
array(['yes', 'no'], dtype='<U3')
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import BadValue, require
from fedveil.core.importing import Allowed, allowed_now, check_allowed
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.cells import refuse_nul
from fedveil.data.column import Cells, Mask, Place
from fedveil.data.row_rule import Absent, RowRule
from fedveil.models.adjusted import likeliest, probabilities
from fedveil.models.loss import Loss
from fedveil.models.survival import risks, survivals
from fedveil.planning.plan import Plan
from fedveil.release.bundle import Bundle
from fedveil.release.personal import decide
from fedveil.release.shapes import Shapes, shapes_of

# Records as a Python program has them: named columns, a data frame, or an array, all read as named columns.

_MISSING = ("NAType", "NaTType")  # of pandas, which need not be installed


def columns_given(X: Any, names: tuple[str, ...]) -> dict[str, Cells]:
    """Return the columns of ``X`` by name; an array's columns are ``names``, in that order."""
    if isinstance(X, Mapping):
        return {str(name): _column(str(name), values) for name, values in X.items()}
    titles = getattr(X, "column_names", None)  # a table of Arrow has these, a frame of pandas or polars the others
    titles = getattr(X, "columns", None) if titles is None else titles
    if titles is not None:
        return {str(name): _column(str(name), X[name]) for name in titles}
    array = _array(X)
    require(array.ndim == 2, "X", "have rows and columns", array.shape, "One record is [[...]].")
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    require(array.shape[1] == len(names), "X", f"have the model's {len(names)} columns ({shown})", array.shape[1])
    return {name: _column(name, array[:, index]) for index, name in enumerate(names)}


def _array(X: Any) -> Any:
    try:
        array = np.asarray(X)
        if array.dtype.kind in "US":  # numbers among texts would be spelt by numpy
            array = np.asarray(X, dtype=object)
    except ValueError as error:
        raise BadValue(f"X must be an array with rows of equal length: {error}.") from error
    return array


def _column(name: str, values: Any) -> Cells:
    """One-dimensional numbers or texts; None, NaN and what pandas has for them are missing values among texts.

    A truth value among other objects is a number, as in a column of truth values: otherwise a gap in one record, which
    makes objects of the whole column, would turn numbers into texts.
    """
    cells = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    require(cells.ndim == 1, f"The column {name!r}", "have one value a record", cells.shape)
    if cells.dtype.kind in "biufU":
        return np.asarray(cells)
    if cells.dtype.kind in "mM":  # numpy would count them from 1970
        cells = cells.astype(np.str_)
    spelt = [_as_text(cell) for cell in cells.tolist()]
    refuse_nul(spelt, name, "the data")
    return np.array(spelt, dtype=np.str_)


def _as_text(cell: Any) -> str:
    if cell is None or type(cell).__name__ in _MISSING or (isinstance(cell, str) and cell == "NaT"):
        return "nan"
    return str(int(cell)) if isinstance(cell, bool | np.bool_) else str(cell)


# How a model shows itself: one line for a terminal, a small table for a notebook.


def summary(bundle: Bundle) -> str:
    """One line: what it is, what it predicts from what, what it promises."""
    plan, known = bundle.plan, bundle.preparation
    columns = plan.real_features if known is None else len(known.columns)
    return f"{plan.name}: {plan.model.kind}, {columns} column{'s' * (columns != 1)}, {_promise(bundle)}"


def card(bundle: Bundle) -> str:
    """Return a table, without scripts or styles from elsewhere; every text is escaped."""
    plan, known = bundle.plan, bundle.preparation
    names = () if known is None else known.names
    rows = [
        ("model", f"{plan.model.kind}, {bundle.parameters.size:,} parameters"),
        ("predicts", _predicts(bundle)),
        ("columns", _join_names(names) or f"{plan.real_features} prepared features"),
        ("trained on", f"{plan.data.records:,} records of {plan.data.holders}"),
        ("promise", _promise(bundle)),
        ("plan", plan.hash[:16] + "..."),
    ]
    cells = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows
    )
    title = f'<caption style="text-align:left"><strong>{escape(plan.name)}</strong></caption>'
    return f"<table>{title}<tbody>{cells}</tbody></table>"


def _predicts(bundle: Bundle) -> str:
    known, classes = bundle.preparation, bundle.plan.data.classes
    name = known.labels.name if known is not None and known.labels.name else "the target"
    if not classes:
        return f"{name}, a number"
    words = known.labels.classes if known is not None else tuple(str(k) for k in range(classes))
    return f"{name}: {_join_names(words)}"


def _join_names(words: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(words[:most]) + (f", ... ({len(words)})" if len(words) > most else "")


def _promise(bundle: Bundle) -> str:
    """Epsilon rounded up, against the observer that the plan was made for."""
    if bundle.personal is not None and bundle.personal.own:
        return f"the own model of {bundle.personal.client}: NOT PRIVATE if it is shown to others"
    target = bundle.plan.target
    rows = bundle.certificate.get("guarantees") or []
    guarantee: dict[str, Any] = next((row for row in rows if row.get("adversary") == target.adversary), {})
    epsilon = guarantee.get("epsilon")
    if bundle.certificate.get("private") is not True or not isinstance(epsilon, int | float):
        return "NOT PRIVATE"
    shown = math.ceil(epsilon * 10_000) / 10_000
    return f"epsilon {shown:g} at delta {target.delta:g} for one {target.unit}"


Array = NDArray[Any]


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReleasedModel:
    """What a run released, ready to predict; made by :func:`fedveil.load_model`, and the ``model`` of a ``Result``.

    ``predict`` and ``predict_proba`` take records as their source has them: a mapping or a data frame of named columns,
    or a two-dimensional array whose columns are those of ``feature_names_in_``, in that order. Scales, categories and
    fills are applied as in training. A record with a missing value that nothing stands for is refused.

    ``allowed``: the code that may be imported and run for it, as it was when the model was loaded: a torch model names
    its module and its criterion, others a map that records go through, and a file from others must not choose.

    Example::

        model = fedveil.load_model("results")
        labels = model.predict(frame)
        shapes = pandas.DataFrame(model.shapes())  # what each column adds to the score
    """

    bundle: Bundle
    allowed: Allowed = field(default_factory=allowed_now)

    @property
    def plan(self) -> Plan:
        """The plan that was carried out; ``plan.hash`` is its name."""
        return self.bundle.plan

    @property
    def certificate(self) -> dict[str, Any]:
        """What is promised to whom, as ``certificate.json`` has it."""
        return self.bundle.certificate

    @property
    def preparation(self) -> RowRule | None:
        """How a record becomes a row; None where records were prepared before the run saw them."""
        return self.bundle.preparation

    @property
    def feature_names_in_(self) -> Array:
        """The columns that a record needs, in the order of training."""
        known = self.preparation
        if known is not None:
            return np.array(known.names, dtype=object)
        return np.array([str(index) for index in range(self.plan.real_features)], dtype=object)

    @property
    def n_features_in_(self) -> int:
        """How many columns those are."""
        return int(self.feature_names_in_.size)

    @property
    def classes_(self) -> Array:
        """The classes in order, as the study declares them; whole numbers where it only says how many there are."""
        known = self.preparation
        require(self.plan.data.classes > 0, "A model of a number", "not be asked for classes", self.plan.model.kind)
        if known is None or known.labels.numbered:
            return np.arange(self.plan.data.classes)
        return np.array(known.labels.classes)

    def lenient(self, *, absent: Absent = "refuse", unknown: str = "refuse") -> "ReleasedModel":
        """Return the same model with other rules for data that are not as in training, which are refused otherwise.

        ``absent="fill"``: a column that the data do not have counts as missing in every record, where the study states
        a fill. ``unknown="zero"``: a value that is no category of the model counts as none of them.
        """
        known = self.preparation
        if known is None:
            return self
        other = replace(self.bundle, preparation=known.lenient(absent=absent, unknown=unknown))
        return replace(self, bundle=other)

    def predict(self, X: Any) -> Array:
        """Return the class of each record, the number in the target's own unit, or a person's risk of the event."""
        scores = self._score_records(X)
        if self.survival:
            return risks(scores)
        if self.plan.data.classes:
            return np.asarray(self.classes_[self.decide(scores)])
        return self.numbers(scores)

    def predict_frame(self, X: Any) -> Any:
        """Return predictions as a pandas DataFrame that keeps the index of ``X``.

        The columns are those of ``fedveil predict``: the probability of each class, where the model has them, and
        ``prediction``.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise BadValue("predict_frame must find pandas, and it is not there: install fedveil[pandas].") from error
        columns: dict[str, Any] = {}
        if self.loss.link in ("logistic", "softmax") and not self.survival:
            shares = self.predict_proba(X)
            columns = {f"probability_{name}": shares[:, place] for place, name in enumerate(self.classes_)}
        return pandas.DataFrame({**columns, "prediction": self.predict(X)}, index=getattr(X, "index", None))

    def predict_proba(self, X: Any) -> Matrix:
        """Return the probability of each class, one column a class, in the order of ``classes_``."""
        shares = probabilities(self.loss, self._score_records(X))
        if shares is None:
            kind = self.plan.model.kind
            raise BadValue(f"predict_proba must be asked of a model of probabilities, and this is a {kind} model.")
        return shares

    def decision_function(self, X: Any) -> Matrix:
        """Return the score of the second of two classes, or one score a class."""
        scores = self._score_records(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @property
    def survival(self) -> bool:
        """True if it predicts when something happens to a person; then a prediction is the risk that it does."""
        return self.plan.model.survival

    def predict_survival(self, X: Any) -> Matrix:
        """Return the chance to be without the event after each interval, one column an interval."""
        kind = self.plan.model.kind
        require(self.survival, "predict_survival", "be asked of a survival model", kind)
        return survivals(self._score_records(X))

    def decide(self, scores: Matrix) -> Indices:
        """Return the class number of each record; a party's own model may have a threshold of its own."""
        own = self.bundle.personal
        if own is None:
            return likeliest(scores, self.plan.model.decision_threshold)
        return decide(scores, own.threshold)

    def numbers(self, scores: Matrix) -> Array:
        """Scores of a model of numbers in the target's own unit."""
        known = self.preparation
        return scores[:, 0] if known is None else known.labels.own_unit(scores[:, 0])

    def scores(self, cells: Mapping[str, Cells], place: Place, names: tuple[str, ...] = ()) -> tuple[Matrix, Mask]:
        """Scores of records given as named columns, and which records have none (their rule is "drop-row").

        ``names``: other columns that the data have, for a hint.
        """
        rows, dropped = self.rows(cells, place, names)
        return self._raw(rows), dropped

    def rows(self, cells: Mapping[str, Cells], place: Place, names: tuple[str, ...] = ()) -> tuple[Matrix, Mask]:
        """Rows of records, likewise; a feature map is run only where it is allowed."""
        if self.preparation is None:
            raise BadValue(
                "The model must say how records become rows, and it does not, since they came to it prepared: "
                "call predict in Python with an array of prepared rows."
            )
        with self.allowed.granted():
            return self.preparation.rows(cells, place, names)

    def _score_records(self, X: Any) -> Matrix:
        known = self.preparation
        if known is None:
            return self._raw(_prepared_rows(X, self.plan.real_features))
        cells = columns_given(X, known.names)
        scores, dropped = self.scores(cells, lambda row: f"Row {row}")
        if dropped.any():
            row = int(np.flatnonzero(dropped)[0])
            hint = "The study drops such rows; leave them out, or fill them in."
            require(False, f"Row {row}", "have no missing value where the model has no fill", "one", hint)
        return scores

    def _raw(self, rows: Matrix) -> Matrix:
        """The scores of prepared rows; a torch module may begin elsewhere now than it did in training."""
        with self.allowed.granted():
            return self.loss.scores(self.parameters_now(rows.shape[1]), rows)

    def parameters_now(self, width: int) -> Vector:
        """Return the parameters as the loss takes them here, for rows of so many features."""
        loss, parameters = self.loss, self.bundle.parameters
        if self.bundle.start is not None:
            with self.allowed.granted():
                parameters = parameters + (self.bundle.start - loss.start(width))
        return parameters

    def shapes(self) -> Shapes:
        """Return what each column adds to the score, as a table: ``pandas.DataFrame(model.shapes())``.

        ``column``, ``position`` or ``word``, ``score``, ``effect``, ``low`` and ``high`` (the band of the known noise)
        and ``share`` (of the records there, as measured with noise): see docs/using-the-model.md.
        """
        return shapes_of(self.bundle)

    @property
    def loss(self) -> Loss:
        """The loss that it was trained with; of a torch model, only where its code is allowed."""
        loss = self.plan.model.loss
        with self.allowed.granted():
            for key, name in loss.code.items():
                check_allowed(name, key)
        return loss

    def __repr__(self) -> str:
        return f"ReleasedModel({summary(self.bundle)})"

    def _repr_html_(self) -> str:
        return card(self.bundle)


def load_model(path: str | Path) -> ReleasedModel:
    """Return the model that a run released: from the run's folder, or from its ``bundle.zip`` alone.

    A model that names code (a torch module, a criterion, a feature map) runs it only if it was loaded inside
    :func:`fedveil.allowing`.

    Example::

        model = fedveil.load_model("results")
        table = model.predict_frame(frame)  # probabilities and predictions, with the frame's index
    """
    return ReleasedModel(Bundle.read(Path(path)))


def _prepared_rows(X: Any, width: int) -> Matrix:
    """Rows that were prepared elsewhere."""
    rows = np.asarray(X, dtype=np.float64)
    right = rows.ndim == 2 and rows.shape[1] == width
    require(right, "X", f"have {width} prepared columns", rows.shape)
    require(bool(np.isfinite(rows).all()), "X", "hold finite numbers", "others")
    return rows
