"""From noisy sums to a profile: ranges, words, means, spreads and correlations, in this order."""

import math

import numpy as np

from fedveil.core.values import Matrix, Vector
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.measuring import Measures
from fedveil.stages.prepare.columns import MISSING_WORD, Columns
from fedveil.stages.prepare.contributions import (
    matrix_of,
    range_counts,
    scaled_numbers,
    second_moments,
    vectors,
    word_counts,
)
from fedveil.stages.prepare.learned import Category, codes_of, frequent
from fedveil.stages.prepare.ranges import BINS, EDGES, MISSING, Range, covering_range, range_of
from fedveil.stages.profile.profile import NumberColumn, Profile, TextColumn
from fedveil.stages.profile.request import CLASSES
from fedveil.stages.sums import NoisySums

_LEAST_SPREAD = 0.02  # of the scale from -1 to 1, below which noise would decide
_MOST_WORDS = 200  # of a column, that are shown


def profile_of(
    plan: MeasuredPlan, columns: Columns, numbers: tuple[str, ...], target: str | None, by: Measures
) -> Profile:
    """Measure all that is planned; ``numbers`` names the columns of ``columns.numbers``."""
    planned, units = plan.sums, plan.units
    ranges, missing, shares = _ranges(planned, columns, numbers, target, by, units)
    words = _words(planned, columns, by, units)
    means, spreads = _moments(planned, columns, ranges, np.maximum(units * (1 - missing), 1.0), by)
    names, matrix = numbers, np.zeros((0, 0))
    if "moments" in planned:
        rows = (scaled_numbers(columns, ranges) - means) / spreads
        names, matrix = _correlations(planned, rows, names, columns, words, target, by, units)
    error = {
        name: 1.96 * planned[name].noise * planned[name].bound / units
        for name in ("ranges", "categories")
        if name in planned
    }
    if "moments" in planned:
        error["correlations"] = 1.96 * planned["moments"].noise * planned["moments"].bound / math.sqrt(2) / units
    result = zip(numbers, ranges, means.tolist(), spreads.tolist(), missing.tolist(), shares, strict=True)
    return Profile(
        records=plan.data.records,
        target=target,
        numbers=tuple(_number(*one) for one in result),
        texts=tuple(_text(name, words) for name in columns.texts),
        correlated=tuple(names) if matrix.size else (),
        correlations=tuple(tuple(round(one, 4) for one in row) for row in matrix.tolist()),
        errors=error,
    )


def _number(name: str, range_: Range, mean: float, spread: float, missing: float, share: float) -> NumberColumn:
    """The centre in the column's own unit; the spread too, where the scale is straight."""
    unit = range_.unit
    low, high = (range_.low, range_.high) if unit == 0 else np.arcsinh([range_.low / unit, range_.high / unit]).tolist()
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    centre = middle + mean * half
    return NumberColumn(
        name=name,
        low=range_.ends[0],
        high=range_.ends[1],
        bend=unit,
        centre=centre if unit == 0 else unit * math.sinh(centre),
        spread=spread * half if unit == 0 else None,
        missing=missing,
        share=share,
    )


def _text(name: str, found: list[Category]) -> TextColumn:
    own = [(one.word, one.share) for one in found if one.column == name]
    missing = sum(share for word, share in own if word == MISSING_WORD)
    shown = tuple((word, share) for word, share in own if word != MISSING_WORD)[:_MOST_WORDS]
    return TextColumn(
        name=name, words=shown, missing=missing, other=min(max(1 - missing - sum(s for _, s in shown), 0.0), 1.0)
    )


def _ranges(
    planned: NoisySums, columns: Columns, numbers: tuple[str, ...], target: str | None, by: Measures, units: int
) -> tuple[list[Range], Vector, list[float]]:
    """The ranges, the shares of missing values, and the shares of the records that lie in the ranges."""
    count = columns.numbers.shape[1]
    if "ranges" not in planned:
        return [], np.zeros(0), []
    one = planned["ranges"]
    counts = by.noisy_sum(one, range_counts(columns, range(count)), BINS * count).reshape(-1, BINS)
    deviation = one.noise * one.bound
    missing = np.where(counts[:, MISSING] > 3 * deviation, np.clip(counts[:, MISSING] / units, 0.0, 1.0), 0.0)
    result, shares = [], []
    for name, row in zip(numbers, counts, strict=True):
        result.append((covering_range if name == target else range_of)(row, units, deviation))
        first, last = np.searchsorted(EDGES, [result[-1].low, result[-1].high])
        shares.append(round(float(np.clip(row[first:last].sum() / units, 0.0, 1.0)), 4))
    return result, missing, shares


def _words(planned: NoisySums, columns: Columns, by: Measures, units: int) -> list[Category]:
    if "categories" not in planned:
        return []
    one = planned["categories"]
    codes, listed = codes_of(columns, list(columns.texts), by.present)
    counts = by.noisy_sum(one, word_counts(codes, len(listed)), len(listed))
    return frequent(counts, listed, one.threshold or math.inf, units, len(listed))


def _moments(
    planned: NoisySums, columns: Columns, ranges: list[Range], counted: Vector, by: Measures
) -> tuple[Vector, Vector]:
    width = len(ranges)
    if not width:
        return np.zeros(0), np.zeros(0)
    scaled = scaled_numbers(columns, ranges)
    gone = np.isnan(scaled)
    sums = vectors(np.where(gone, 0.0, scaled), planned["means"].bound)
    means = np.clip(by.noisy_sum(planned["means"], sums, width) / counted, -1.0, 1.0)
    squares = vectors(np.where(gone, 0.0, (scaled - means) ** 2), planned["spreads"].bound)
    result = by.noisy_sum(planned["spreads"], squares, width) / counted
    return means, np.sqrt(np.clip(result, _LEAST_SPREAD**2, 1.0))


def _correlations(
    planned: NoisySums,
    rows: Matrix,
    names: tuple[str, ...],
    columns: Columns,
    words: list[Category],
    target: str | None,
    by: Measures,
    units: int,
) -> tuple[tuple[str, ...], Matrix]:
    """Correlations of the numbers, and of each class of the target, as far as noise lets see."""
    one = planned["moments"]
    shown = [each for each in words if each.column == target and each.word != MISSING_WORD][:CLASSES]
    if target in names:  # a number to predict is among the numbers
        shown = []
    whole = [np.where(np.isnan(rows), 0.0, rows)]
    for each in shown[:1] if len(shown) == 2 else shown:
        own = columns.texts[each.column]
        share = min(max(each.share, 0.01), 0.99)
        hot = own.codes == own.spelt.index(each.word)
        whole.append(((hot - share) / math.sqrt(share * (1 - share))).reshape(-1, 1))
        names = (*names, f"{each.column}={each.word}")
    joined = np.concatenate(whole, axis=1)
    width = joined.shape[1]
    norms = np.linalg.norm(joined, axis=1, keepdims=True)
    joined = joined * np.minimum(1.0, math.sqrt(one.bound) / np.maximum(norms, 1e-300))
    noisy = by.noisy_sum(one, second_moments(joined, one.bound), width * (width + 1) // 2)
    found = matrix_of(noisy, width) / units
    scale = np.sqrt(np.maximum(np.diag(found), 0.1))
    matrix = np.clip(found / np.outer(scale, scale), -1.0, 1.0)
    np.fill_diagonal(matrix, 1.0)
    return names, matrix
