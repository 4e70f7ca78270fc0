"""Correlations and regressions: linear, logistic, Poisson, and Cox in discrete time.

Correlations and the linear model follow from the products of every record's bounded row. The others start from such
products and then take three Newton steps, each from a noisy gradient and a noisy Hessian; the last step has most of the
budget. The intervals add the covariance of the noise, which is known, to the sandwich covariance. Where the noise is
not small beside what the columns tell, intervals would not hold, and the question is not answered. Other noisy numbers
decide that, never those that are published: what is shown only where its own noise happened to be small is biased.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import numpy as np
from scipy.special import expit
from scipy.stats import norm as normal

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.cells import canonical
from fedveil.stages.ask.blocks import Block, Coded, Valued, entry_noise, product_size, products, symmetric
from fedveil.stages.ask.question import SURE, Answer, Expected, Question, Row, State, both_intervals, propagated
from fedveil.stages.ask.rows import View, check_column, increasing
from fedveil.stages.ask.survival import at_risk, seen_until
from fedveil.stages.prepare.columns import Outline

Model = Literal["linear", "logistic", "poisson", "cox"]
MODELS: Final = ("linear", "logistic", "poisson", "cox")
STEP_SHARES: Final = (0.2, 0.15, 0.15, 0.5)  # of the question's budget: the first sum, and each step
_DECIDING: Final = (0.15, 0.85)  # of a question that has its products added up twice: to decide, and to answer
_SPLIT: Final = (0.6, 0.4)  # of a step: gradient and its products; Hessian
_SURE_SPREAD: Final = 4.0  # deviations that the variance of every column of a correlation must have
_SURE: Final = 2.0  # the same of every direction of the columns of a linear model
_SURE_HESSIAN: Final = 3.0  # and of the Hessian
_EVEN: Final = 1 / 12  # variance that is expected of a scaled column: its range is seven times its spread
_ROOM: Final = 0.5  # of the squared norm that a scaled number may have, what a row has room for
_LARGEST: Final = 6.0  # of a coefficient for half a range: a step does not lead farther
_CLIP: Final = 1.5  # norm of a record's score in a Cox model
_NOT_ANSWERED: Final = (
    "Not answered: beside this noise an interval would not hold. Raise epsilon or the weight of the question, state "
    "narrower ranges, or ask for fewer columns."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation(Question):
    """The correlations of columns of numbers; records that miss one of them add nothing."""

    kind: ClassVar[str] = "correlation"
    grouped: ClassVar[bool] = False
    laplace: ClassVar[bool] = False
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _names(self.name, self.columns, 2))
        super(Correlation, self).__post_init__()

    @property
    def about(self) -> tuple[str, ...]:
        """The columns that it names."""
        return self.columns

    @property
    def scaled(self) -> tuple[str, ...]:
        """The columns that need a range."""
        return self.columns

    def size(self, columns: Outline) -> int:
        """Return how many numbers a group has: its products twice."""
        return 2 * product_size(1 + len(self.columns))

    @property
    def counts_as(self) -> float:
        """One for each of its columns."""
        return float(len(self.about))

    def block(self, view: View) -> Block:
        """Return what rows add."""
        rows = np.column_stack([np.ones(len(view)), *(view.scaled(name) for name in self.columns)])
        rows /= math.sqrt(rows.shape[1])
        group = np.where(np.isnan(rows).any(axis=1), -1, self.group_of(view))
        return Valued(group, 1, 2 * product_size(rows.shape[1]), lambda chosen: _twice(products(rows[chosen])))

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer from the second products, if the first say that there is one."""
        width = 1 + len(self.columns)
        deciding, sums, noise = _apart(sums, noise)
        moments = symmetric(sums, width) * width
        count = max(float(moments[0, 0]), 1.0)
        decided = _covariance(symmetric(deciding, width) * width)
        before, now = (float(np.diag(one).min()) for one in (decided, _covariance(moments)))
        if not _is_sure(_SURE_SPREAD, before, now, noise * width):
            return Answer(tables={"": []}, notes=[_NOT_ANSWERED])
        first, second = np.triu_indices(width - 1, 1)

        def correlations(numbers: Vector) -> Vector:
            found = _covariance(symmetric(numbers, width) * width)
            spread = np.sqrt(np.maximum(np.diag(found), 1e-12))
            return np.asarray((found / spread / spread[:, None])[first, second])

        values, noisy = propagated(correlations, sums, np.full(sums.size, noise))
        rows: list[Row] = []
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            value = float(np.clip(values[place], -0.999, 0.999))
            # on Fisher's scale, where the deviation does not depend on the correlation
            spread = math.sqrt(noisy[place, place]) / (1 - value**2)
            own = both_intervals(math.atanh(value), spread, 1 / math.sqrt(max(count - 3, 1.0)))
            names = {"column": self.columns[one], "other": self.columns[other]}
            rows.append(names | {key: math.tanh(number) for key, number in own.items()})
        return Answer(tables={"": rows})

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        width, own = 1 + len(self.columns), units * _EVEN
        last = noise * width / math.sqrt(_DECIDING[-1])
        half = SURE * last / math.sqrt(2) / own
        return Expected("each correlation", half if own > _SURE_SPREAD * last else math.inf, 1.0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression(Question):
    """Coefficients of a model of ``column`` from ``columns``; of a Cox model, of the hazard of ``event`` in ``time``.

    ``positive``: the value of the outcome (or of the column of events) that counts as one. ``times``: public ends of
    the time intervals of a Cox model.
    """

    kind: ClassVar[str] = "regression"
    grouped: ClassVar[bool] = False
    laplace: ClassVar[bool] = False
    columns: tuple[str, ...]
    column: str = ""
    model: Model = "linear"
    positive: str = "1"
    time: str = ""
    event: str = ""
    times: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(self.model in MODELS, f"{self.name}: model", f"be one of {', '.join(MODELS)}", self.model)
        object.__setattr__(self, "columns", _names(self.name, self.columns, 1))
        object.__setattr__(self, "positive", canonical(self.positive))
        cox = self.model == "cox"
        needed = ("time", "event") if cox else ("column",)
        for key in ("column", "time", "event"):
            stated = bool(getattr(self, key))
            rule = "be stated" if key in needed else f"be left out of a {self.model} model"
            require(stated == (key in needed), f"{self.name}: {key}", rule, getattr(self, key))
        times = increasing(f"{self.name}: times", self.times, 2) if cox else ()
        require(len(times) <= 30 and min(times, default=1.0) > 0, f"{self.name}: times", "be 2 to 30, above 0", times)
        object.__setattr__(self, "times", times)
        used = [name for name in (self.column, self.time, self.event) if name in self.columns]
        require(not used, f"{self.name}: columns", "not name the outcome", used)
        super(Regression, self).__post_init__()

    @property
    def about(self) -> tuple[str, ...]:
        """The columns that it names."""
        outcome = (self.time, self.event) if self.model == "cox" else (self.column,)
        return (*outcome, *self.columns)

    @property
    def scaled(self) -> tuple[str, ...]:
        """The columns that need a range."""
        numbers = [name for name in self.columns if name not in self.values]
        return (*([self.column] if self.model in ("linear", "poisson") else []), *numbers)

    @property
    def shares(self) -> tuple[float, ...]:
        """Of the first sum, and of each Newton step; a linear model takes none."""
        return (1.0,) if self.model == "linear" else STEP_SHARES

    def completed(self, columns: Outline) -> "Regression":
        """Return the question with the categories that the data state."""
        stated = {name: columns.categories[name] for name in self.columns if name in columns.categories}
        words = {name: tuple(word for word in listed if word) for name, listed in stated.items()}
        return replace(self, values=words | dict(self.values))

    def check(self, columns: Outline) -> None:
        """Refuse what does not fit the columns."""
        super(Regression, self).check(columns)
        if self.model == "cox":
            check_column(self.time, columns, f"{self.name}: time", "numbers")
        for name in self.columns:
            if name in self.values:
                require(len(self.values[name]) >= 2, f"{self.name}: values of {name}", "be at least two", self.values)
        if self.model == "poisson" and self.column in self.range:
            require(self.range[self.column][0] == 0, f"{self.name}: range", "start at 0", self.range[self.column])

    # The rows: a constant (or the intervals of time), scaled numbers, and a one for a listed value but the first.

    @property
    def width(self) -> int:
        """Coefficients, the constant ones included."""
        own = sum(len(self.values[name]) - 1 if name in self.values else 1 for name in self.columns)
        return own + (len(self.times) if self.model == "cox" else 1)

    @property
    def bound(self) -> float:
        """The norm of a row: its constant, its listed values, and half of what its numbers may have.

        Longer rows count for less (:func:`_lightened`), which leaves the coefficients of a right model as they are.
        """
        listed = [len(self.values[name]) for name in self.columns if name in self.values]
        values = math.fsum((1 - 1 / many) ** 2 + (many - 2) / many**2 for many in listed)
        return math.sqrt(1 + values + _ROOM * (len(self.columns) - len(listed)))

    def _rows(self, view: View) -> Matrix:
        """Return the rows without their constant; NaN where a value is missing or not listed."""
        found = []
        for name in self.columns:
            if name not in self.values:
                found.append(view.scaled(name)[:, None])
                continue
            codes = view.codes_among(name, self.values[name])
            # centred, so that they are shorter; the constant takes up the difference
            many = len(self.values[name])
            ones = (codes[:, None] == np.arange(1, many)).astype(np.float64) - 1 / many
            found.append(np.where(codes[:, None] < 0, np.nan, ones))
        return np.hstack(found) if found else np.zeros((len(view), 0))

    def _outcome(self, view: View) -> Vector:
        if self.model == "linear":
            return view.scaled(self.column)
        if self.model == "poisson":
            return (view.scaled(self.column) + 1) / 2
        if self.model == "logistic":
            happened = (view.codes_among(self.column, [self.positive]) == 0).astype(np.float64)
            return np.where(view.missing(self.column), np.nan, happened)
        codes = seen_until(view, self.time, self.event, self.times, self.positive).astype(np.float64)
        return np.where(codes < 0, np.nan, codes)

    def _complete(self, view: View) -> Indices:
        gaps = np.isnan(self._rows(view)).any(axis=1) | np.isnan(self._outcome(view))
        return np.where(gaps, -1, self.group_of(view))

    def _lightened(self, full: Matrix) -> Vector:
        """The weight of each row: 1, or less where it is longer than the bound; no outcome decides it."""
        return np.asarray(np.minimum(1.0, self.bound**2 / np.maximum(np.square(full).sum(axis=1), 1.0)))

    # The first sum

    def size(self, columns: Outline) -> int:
        """Return how many numbers a group has."""
        if self.model == "cox":
            return 2 * len(self.times) + 1
        return product_size(self.width + 1) * (2 if self.model == "linear" else 1)

    @property
    def counts_as(self) -> float:
        """One for each of its columns."""
        return float(len(self.about))

    def block(self, view: View) -> Block:
        """Return what rows add."""
        group, outcome = self._complete(view), self._outcome(view)
        if self.model == "cox":
            codes = np.where(group < 0, -1, np.nan_to_num(outcome)).astype(np.int64)
            return Coded(codes, 2 * len(self.times) + 1)
        full = np.column_stack([np.ones(len(view)), self._rows(view)])
        rows = np.column_stack([full, outcome]) * np.sqrt(self._lightened(full))[:, None] / math.hypot(self.bound, 1.0)
        if self.model == "linear":
            return Valued(group, 1, 2 * product_size(self.width + 1), lambda chosen: _twice(products(rows[chosen])))
        return Valued(group, 1, product_size(self.width + 1), lambda chosen: products(rows[chosen]))

    def start(self, sums: Vector, noise: float, view: View) -> State:
        """Return where the Newton steps start from."""
        return State(self._start(sums, noise, view), np.zeros((self.width, self.width)))

    def _start(self, sums: Vector, noise: float, view: View) -> Vector:
        if self.model == "cox":
            events, risk = at_risk(sums, len(self.times))
            hazard = np.clip(np.maximum(events, 0.5) / np.maximum(risk, 1.0), 1e-4, 0.9)
            return np.concatenate([np.log(-np.log1p(-hazard)), np.zeros(self.width - len(self.times))])
        moments = symmetric(sums, self.width + 1) * (self.bound**2 + 1)
        moments /= max(float(moments[0, 0]), 1.0)
        level = float(np.clip(moments[0, -1], 0.02, 0.98))
        ridge = noise * (self.bound**2 + 1) / max(float(sums[0]), 1.0) * np.eye(self.width - 1)
        inner = moments[1:-1, 1:-1] - np.outer(moments[0, 1:-1], moments[0, 1:-1])
        slopes = np.linalg.solve(_positive(inner, 1e-3) + ridge, moments[1:-1, -1] - moments[0, 1:-1] * moments[0, -1])
        if self.model == "logistic":
            slopes, middle = slopes / (level * (1 - level)), math.log(level / (1 - level))
        else:
            slopes, middle = slopes / level, math.log(level * view.ranges[self.column][1])
        slopes = np.clip(slopes, -_LARGEST / 2, _LARGEST / 2)
        return np.concatenate([[middle - float(slopes @ moments[0, 1:-1])], slopes])

    # A Newton step

    @property
    def step_size(self) -> int:
        """How many numbers a step asks for."""
        return product_size(self.width + 1) + product_size(self.width)

    def step_block(self, view: View, state: State) -> Block:
        """Return what rows add to a step: products of (1, score) with itself, and their part of the Hessian."""
        group, rows, outcome = self._complete(view), self._rows(view), self._outcome(view)

        def vectors(chosen: Indices) -> Matrix:
            scores, hessians = self._derivatives(rows[chosen], outcome[chosen], state.numbers, self._top(view))
            scores, hessians = _cut(scores), _cut(hessians)
            first = products(np.column_stack([np.ones(len(chosen)), scores]) / math.sqrt(2))
            return np.hstack([math.sqrt(part) * one for part, one in zip(_SPLIT, (first, hessians), strict=True)])

        return Valued(group, 1, self.step_size, vectors)

    def _top(self, view: View) -> float:
        return view.ranges[self.column][1] if self.model == "poisson" else 1.0

    def _derivatives(self, rows: Matrix, outcome: Vector, at: Vector, top: float) -> tuple[Matrix, Matrix]:
        """Return each record's score and Hessian, both scaled so that they are at most 1 (and cut where not)."""
        if self.model == "cox":
            return self._cox(rows, outcome.astype(np.int64), at)
        full = np.column_stack([np.ones(len(rows)), rows])
        linear = full @ at
        if self.model == "logistic":
            mean = expit(linear)
            residual, weight = outcome - mean, 4 * mean * (1 - mean)
        else:
            mean = np.minimum(np.exp(np.minimum(linear, 50.0)), top) / top
            residual, weight = outcome - mean, mean
        light = self._lightened(full)[:, None]
        return residual[:, None] * full * light / self.bound, weight[:, None] * light * products(full / self.bound)

    def _cox(self, rows: Matrix, cell: Indices, at: Vector) -> tuple[Matrix, Matrix]:
        many = len(self.times)
        place, happened = np.where(cell == 2 * many, many, cell % many), cell < many
        when = np.arange(many)
        # at risk in all intervals before its own; in its own, if the event happened there
        risk = (when < place[:, None]) | ((when == place[:, None]) & happened[:, None])
        last = (when == place[:, None]) & happened[:, None]
        rate = np.exp(np.clip(at[:many] + (rows @ at[many:])[:, None], -20.0, 3.0))
        light = self._lightened(np.column_stack([np.ones(len(rows)), rows]))[:, None]
        residual = light * risk * np.where(last, rate / np.expm1(rate), -rate)
        weight = light * risk * rate  # the expected information is at most the rate
        weight = weight * np.where(rate > 1e-8, rate / np.expm1(rate), 1.0)
        scores = np.column_stack([residual, residual.sum(axis=1)[:, None] * rows]) / self.bound / _CLIP
        hessian = np.zeros((len(rows), self.width, self.width))
        hessian[:, when, when] = weight
        hessian[:, :many, many:] = weight[:, :, None] * rows[:, None, :]
        hessian[:, many:, :many] = hessian[:, :many, many:].transpose(0, 2, 1)
        hessian[:, many:, many:] = weight.sum(axis=1)[:, None, None] * rows[:, :, None] * rows[:, None, :]
        first, second = np.triu_indices(self.width)
        upper = hessian[:, first, second] * np.where(first == second, 1.0, math.sqrt(2))
        return scores, upper / self.bound**2 / _CLIP

    def _scales(self, view: View) -> tuple[float, float]:
        """What a unit of the noisy gradient and of the noisy Hessian stands for."""
        top = self._top(view)
        score, weight = {"logistic": (1.0, 0.25), "poisson": (top, top), "cox": (_CLIP, _CLIP)}[self.model]
        return score * self.bound, weight * self.bound**2

    def _read(self, sums: Vector, noise: float, view: View) -> tuple[Vector, Matrix, Matrix, float, float]:
        """The gradient, the products of scores, the Hessian, and the noise of the first and the last."""
        cut, (score, weight) = product_size(self.width + 1), self._scales(view)
        inner = symmetric(sums[:cut] / math.sqrt(_SPLIT[0]), self.width + 1) * 2
        hessian = symmetric(sums[cut:] / math.sqrt(_SPLIT[1]), self.width) * weight
        noises = noise * math.sqrt(2 / _SPLIT[0]) * score, noise * weight / math.sqrt(_SPLIT[1])
        return inner[0, 1:] * score, inner[1:, 1:] * score**2, hessian, *noises

    def advance(self, state: State, sums: Vector, noise: float, view: View) -> State:
        """Return the coefficients after a step; one that the noise leads far away is cut."""
        at = state.numbers
        gradient, _, hessian, _, deviation = self._read(sums, noise, view)
        step = np.linalg.solve(_positive(hessian, deviation * math.sqrt(self.width)), gradient)
        many = len(self.times) if self.model == "cox" else 1
        moved = at + np.clip(step, -2.0, 2.0)
        cut = np.concatenate([np.clip(moved[:many], -12, 12), np.clip(moved[many:], -_LARGEST, _LARGEST)])
        return State(cut, hessian)

    # The answer

    def _moments(self, sums: Vector) -> Matrix:
        """The products of rows of a linear model, its outcome last."""
        return symmetric(sums, self.width + 1) * (self.bound**2 + 1)

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer of a linear model from the second products, if the first say that there is one."""
        deciding, sums, noise = _apart(sums, noise)
        moments = self._moments(sums)
        inner, count = moments[:-1, :-1], max(float(moments[0, 0]), 1.0)
        room = noise * (self.bound**2 + 1) * math.sqrt(self.width - 1)
        if not _is_sure(
            _SURE, _least(_covariance(self._moments(deciding)[:-1, :-1])), _least(_covariance(inner)), room
        ):
            return Answer(tables={"": []}, notes=[_NOT_ANSWERED])

        def coefficients(numbers: Vector) -> Vector:
            moments = self._moments(numbers)
            return np.asarray(np.linalg.solve(moments[:-1, :-1], moments[:-1, -1]))

        values, noisy = propagated(coefficients, sums, np.full(sums.size, noise))
        left = float(moments[-1, -1] - values @ moments[:-1, -1]) / max(count - self.width, 1.0)
        sampling = np.asarray(max(left, 1e-9) * np.linalg.inv(inner), dtype=np.float64)
        return self._coefficients(values, noisy, sampling, view)

    def final(self, state: State, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer after the last step; the Hessian of the step before decides whether there is one."""
        at = state.numbers
        gradient, outer, hessian, gradient_noise, deviation = self._read(sums, noise, view)
        room = deviation * math.sqrt(self.width)
        if not _is_sure(_SURE_HESSIAN, _least(state.matrix), _least(hessian), room):
            return Answer(tables={"": []}, notes=[_NOT_ANSWERED])
        inverse = np.linalg.inv(hessian)
        step = inverse @ gradient
        # the noise of the Hessian moves the step, too: its entries times the step, to first order
        moved = (entry_noise(self.width) * deviation) ** 2 @ step**2
        noisy = inverse @ np.diag(gradient_noise**2 + moved) @ inverse
        sampling = inverse @ _positive(outer, 0.0) @ inverse
        return self._coefficients(at + step, noisy, sampling, view)

    def _coefficients(self, values: Vector, noisy: Matrix, sampling: Matrix, view: View) -> Answer:
        turn, labels, shift = self._own_units(view)
        values, noisy, sampling = turn @ values + shift, turn @ noisy @ turn.T, turn @ sampling @ turn.T
        ratio = {"logistic": "odds_ratio", "poisson": "rate_ratio", "cox": "hazard_ratio"}.get(self.model)
        rows: list[Row] = []
        for place, label in enumerate(labels):
            spreads = [math.sqrt(max(float(one[place, place]), 0.0)) for one in (noisy, sampling)]
            row: Row = {"coefficient": label} | both_intervals(float(values[place]), *spreads)
            row["p_value"] = float(2 * normal.sf(abs(values[place]) / max(math.hypot(*spreads), 1e-300)))
            if ratio is not None and label != "(constant)":
                ends = ("estimate", "population_low", "population_high")
                names = (ratio, f"{ratio}_low", f"{ratio}_high")
                row |= {name: math.exp(min(row[end], 700.0)) for name, end in zip(names, ends, strict=True)}
            rows.append(row)
        return Answer(tables={"": rows}, notes=self._notes(view))

    def _own_units(self, view: View) -> tuple[Matrix, list[str], Vector]:
        """What turns coefficients of scaled columns into those of own units; intervals of time are left out."""
        many = len(self.times) if self.model == "cox" else 1
        turn, labels, place = np.zeros((self.width, self.width)), ["(constant)"], many
        turn[0, 0] = 1.0
        for name in self.columns:
            if name in self.values:
                for value in self.values[name][1:]:
                    turn[place, place] = 1.0
                    turn[0, place] = -1 / len(self.values[name])
                    labels.append(f"{name} = {value}")
                    place += 1
                continue
            low, high = view.ranges[name]
            turn[place, place] = 2 / (high - low)
            turn[0, place] = -(low + high) / (high - low)
            labels.append(name)
            place += 1
        kept = [*range(1 if self.model != "cox" else many, self.width)]
        shift = np.zeros(self.width)
        if self.model == "linear":
            low, high = view.ranges[self.column]
            turn *= (high - low) / 2
            shift[0] = (low + high) / 2
        if self.model == "cox":
            return turn[kept], labels[1:], shift[kept]
        return turn, labels, shift

    def _notes(self, view: View) -> list[str]:
        cut = [f"{name} to {view.ranges[name][0]:g} to {view.ranges[name][1]:g}" for name in self.scaled]
        first = [f"{name} = {self.values[name][0]}" for name in self.columns if name in self.values]
        notes = [f"Numbers were cut to their ranges: {', '.join(cut)}."] if cut else []
        return notes + ([f"Compared with: {', '.join(first)}."] if first else [])

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        even = _EVEN
        if self.model == "linear":
            least, last, own = _SURE, noise * (self.bound**2 + 1) / math.sqrt(_DECIDING[-1]), units * even
            spread, sure = last / math.sqrt(2) / own, own / (last * math.sqrt(self.width - 1))
        else:
            least, last = _SURE_HESSIAN, noise / math.sqrt(STEP_SHARES[-1])
            score, weight = {"logistic": (1.0, 0.25), "poisson": (1.0, 0.25), "cox": (_CLIP, _CLIP)}[self.model]
            own = units * even * {"logistic": 0.2, "poisson": 0.25, "cox": 0.5}[self.model]
            spread = last * math.sqrt(2 / _SPLIT[0]) * score * self.bound / own
            sure = own / (last * weight * self.bound**2 / math.sqrt(_SPLIT[1]) * math.sqrt(self.width))
        unit = "for half of a column's range"
        return Expected("each coefficient", SURE * spread if sure > least else math.inf, 2.0, unit)


def _names(question: str, given: object, least: int) -> tuple[str, ...]:
    fits = isinstance(given, list | tuple) and all(isinstance(one, str) for one in given)
    names: Sequence[str] = tuple(given) if fits else ()  # type: ignore[arg-type]
    rule = f"name at least {least} different columns"
    require(fits and len(set(names)) == len(names) >= least, f"{question}: columns", rule, given)
    require(len(names) <= 60, f"{question}: columns", "name at most 60", len(names))
    return tuple(names)


def _twice(vectors: Matrix) -> Matrix:
    """The same vectors to decide and to answer, side by side, of the norm that they had."""
    return np.hstack([math.sqrt(part) * vectors for part in _DECIDING])


def _apart(sums: Vector, noise: float) -> tuple[Vector, Vector, float]:
    """The noisy sums that decide, those that answer, and the noise of the latter."""
    deciding, answering = np.split(sums, 2)
    return deciding / math.sqrt(_DECIDING[0]), answering / math.sqrt(_DECIDING[1]), noise / math.sqrt(_DECIDING[1])


def _covariance(moments: Matrix) -> Matrix:
    """The covariance of columns from moments whose first is the constant."""
    count = max(float(moments[0, 0]), 1.0)
    return np.asarray(moments[1:, 1:] - np.outer(moments[0, 1:], moments[0, 1:]) / count)


def _is_sure(least: float, before: float, now: float, room: float) -> bool:
    """Whether something stands out of the noise that it now has (``room``), as far as an earlier sum lets see."""
    return before > least * room and now > room


def _least(matrix: Matrix) -> float:
    return float(np.linalg.eigvalsh(matrix)[0])


def _positive(matrix: Matrix, least: float) -> Matrix:
    """The matrix with eigenvalues below ``least`` raised to it."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def _cut(rows: Matrix) -> Matrix:
    """Rows cut to norm 1."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0))
