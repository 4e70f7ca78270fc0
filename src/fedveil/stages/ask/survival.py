"""Kaplan-Meier curves by group on public time intervals, with the log-rank statistic.

A record adds one to one cell of (interval) x (event, censored) x group; how many are at risk follows by adding up. The
bands hold noise and sampling together: the noise's covariance goes through the estimator to first order, and
Greenwood's formula gives the rest.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import chi2

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.cells import canonical
from fedveil.stages.ask.blocks import Block, Coded
from fedveil.stages.ask.question import SURE, Answer, Expected, Group, Question, Row, both_intervals, propagated
from fedveil.stages.ask.rows import View, check_column, increasing
from fedveil.stages.prepare.columns import Outline

_SEEN: Final = 4.0  # deviations that the number at risk must have, for its interval to be used


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival(Question):
    """The curve of survival: ``time`` until an event or the end of observation, and which of both ``event`` says.

    ``times``: public ends of the time intervals. ``positive``: the value of the column of events that is an event.
    """

    kind: ClassVar[str] = "survival"
    time: str
    event: str
    times: tuple[float, ...]
    positive: str = "1"

    def __post_init__(self) -> None:
        times = increasing(f"{self.name}: times", self.times, 1)
        require(times[0] > 0 and len(times) <= 200, f"{self.name}: times", "be 1 to 200 numbers above 0", times[:5])
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "positive", canonical(self.positive))
        super(Survival, self).__post_init__()

    @property
    def about(self) -> tuple[str, ...]:
        """The columns that it names."""
        return (self.time, self.event)

    def check(self, columns: Outline) -> None:
        """Refuse what does not fit the columns."""
        check_column(self.time, columns, f"{self.name}: time", "numbers")
        super(Survival, self).check(columns)

    def size(self, columns: Outline) -> int:
        """Return how many numbers a group has."""
        return 2 * len(self.times) + 1

    def block(self, view: View) -> Block:
        """Return what rows add."""
        columns, size = view.table.all_columns, self.size(view.table.all_columns)
        group, codes = self.group_of(view), seen_until(view, self.time, self.event, self.times, self.positive)
        codes = np.where((group < 0) | (codes < 0), -1, group * size + codes)
        return Coded(codes, size * self.groups(columns, view.clients))

    def answer(self, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the answer from the noisy numbers."""
        groups = self.grouping(sums, view.table.all_columns, view.clients)
        curve: list[Row] = []
        summary: list[Row] = []
        notes: list[str] = []
        for one in groups:
            rows, ends, note = _curve(one, noise, self.times)
            curve, summary, notes = curve + rows, [*summary, ends], notes + note
        tables: dict[str, Sequence[Row]] = {"": curve, "summary": summary}
        if len(groups) > 1:
            tables["logrank"] = [log_rank(np.array([one.sums for one in groups]), noise, len(self.times))]
        return Answer(tables=tables, notes=notes)

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        wide = SURE * noise * math.sqrt(len(self.times)) / units
        return Expected("the curve", 100 * wide, 50.0, "% surviving")


def seen_until(view: View, time: str, event: str, times: Sequence[float], positive: str) -> Indices:
    """Return each record's cell: the interval of its event, that of its censoring, or (last) beyond; -1 for none."""
    when, many = view.numbers(time), len(times)
    happened = view.codes_among(event, [positive]) == 0
    place = np.searchsorted(np.array(times), when, side="left")  # an event at the end of an interval belongs to it
    codes = np.where(place >= many, 2 * many, np.where(happened, place, many + place))
    return np.where(np.isnan(when) | (when < 0) | view.missing(event), -1, codes).astype(np.int64)


def at_risk(cells: Vector, many: int) -> tuple[Vector, Vector]:
    """Return events and the number at risk in each interval; a censored record counts for half of its interval."""
    events, censored, beyond = cells[..., :many], cells[..., many : 2 * many], cells[..., 2 * many :]
    left = np.cumsum((events + censored)[..., ::-1], axis=-1)[..., ::-1] + beyond
    return events, left - censored / 2


def _curve(group: Group, noise: float, times: Sequence[float]) -> tuple[list[Row], Row, list[str]]:
    many = len(times)
    events, risk = at_risk(group.sums, many)
    known = risk > _SEEN * noise * np.sqrt(2 * (many - np.arange(many)) + 1)
    usable = many if known.all() else int(np.argmin(known))
    notes = []
    if usable < many:
        named = ", ".join(f"{key} {value}" for key, value in group.labels.items())
        end = "the first interval" if usable == 0 else f"time {times[usable - 1]:g}"
        notes.append(f"{named + ': ' if named else ''}too few records remain at risk after {end} for this noise.")

    def surviving(cells: Vector) -> Vector:
        events, risk = at_risk(cells, many)
        return np.asarray(np.cumprod(1 - events[:usable] / risk[:usable]))

    raw, covariance = propagated(surviving, group.sums, np.full(group.sums.size, noise))
    falling = np.clip(np.asarray(isotonic_regression(raw, increasing=False).x), 0.0, 1.0) if usable else raw
    # Greenwood's formula; noise may make a number of events negative, which adds no variance
    died = np.clip(events[:usable], 0.0, risk[:usable] * 0.999)
    terms = died / (risk[:usable] * (risk[:usable] - died))
    sampling = falling * np.sqrt(np.cumsum(terms))
    rows: list[Row] = [group.labels | {"time": 0.0} | both_intervals(1.0, 0.0, 0.0)]
    for place in range(many):
        if place < usable:
            deviation = math.sqrt(max(covariance[place, place], 0.0))
            own = both_intervals(float(raw[place]), deviation, float(sampling[place]), 0.0, 1.0)
            own |= _holding(own, float(falling[place]))
        else:
            last = rows[-1]
            own = {"estimate": last["estimate"], "low": 0.0, "high": last["high"]}
            own |= {"population_low": 0.0, "population_high": last["population_high"]}
        rows.append(group.labels | {"time": times[place]} | own)
    summary = group.labels | _summary(rows, surviving, group.sums, noise, times[:usable], terms)
    return rows, summary, notes


def _holding(own: Row, estimate: float) -> Row:
    ends = {key: min(own[key], estimate) for key in ("low", "population_low")}
    return ends | {key: max(own[key], estimate) for key in ("high", "population_high")} | {"estimate": estimate}


def _summary(
    rows: list[Row],
    surviving: Callable[[Vector], Vector],
    cells: Vector,
    noise: float,
    times: Sequence[float],
    terms: Vector,
) -> Row:
    """The median by inverting the band, and the mean survival until the last time that can be used."""
    median = {"median": _when(rows, "estimate"), "median_low": _when(rows, "population_low")}
    median["median_high"] = _when(rows, "population_high")
    if not times:
        return {**median, "restricted_mean": None, "restricted_low": None, "restricted_high": None, "until": None}
    widths = np.diff([0.0, *times])

    def area(cells: Vector) -> Vector:
        curve = np.concatenate([[1.0], surviving(cells)])
        return np.array([float(((curve[1:] + curve[:-1]) / 2 * widths).sum())])

    value, covariance = propagated(area, cells, np.full(cells.size, noise))
    curve = np.clip([one["estimate"] for one in rows[: len(times) + 1]], 0.0, 1.0)
    slices = (curve[1:] + curve[:-1]) / 2 * widths
    rest = np.cumsum(slices[::-1])[::-1]  # area from the start of each interval on
    sampling = math.sqrt(float((rest**2 * terms).sum()))
    result = both_intervals(float(value[0]), math.sqrt(covariance[0, 0]), sampling, 0.0, float(times[-1]))
    ends = {"restricted_low": result["population_low"], "restricted_high": result["population_high"]}
    return {**median, "restricted_mean": result["estimate"], **ends, "until": times[-1]}


def _when(rows: list[Row], key: str) -> float | None:
    """The time at which a curve falls to one half; None if it does not."""
    for before, after in itertools.pairwise(rows):
        if after[key] <= 0.5 < before[key]:
            share = (before[key] - 0.5) / (before[key] - after[key])
            return float(before["time"] + share * (after["time"] - before["time"]))
    return None


def log_rank(cells: Matrix, noise: float, many: int) -> Row:
    """Return the log-rank statistic of groups; the covariance of the noise is added to that of chance."""

    def excess(flat: Vector) -> Vector:
        events, risk = at_risk(flat.reshape(cells.shape), many)
        risk = np.maximum(risk, 0.5)
        return np.asarray((events - risk * events.sum(axis=0) / risk.sum(axis=0)).sum(axis=1)[:-1])

    observed, covariance = propagated(excess, cells.ravel(), np.full(cells.size, noise))
    events, risk = at_risk(cells, many)
    events, risk = np.maximum(events.sum(axis=0), 0.0), np.maximum(risk, 0.5)
    whole = risk.sum(axis=0)
    shares = risk / whole
    factor = events * np.clip(whole - events, 0.0, None) / np.maximum(whole - 1, 1.0)
    chance = np.diag((shares * factor).sum(axis=1)) - (shares * factor) @ shares.T
    total = chance[:-1, :-1] + covariance
    statistic = float(observed @ np.linalg.solve(total, observed))
    degrees = cells.shape[0] - 1
    return {"statistic": statistic, "degrees": degrees, "p_value": float(chi2.sf(statistic, degrees))}
