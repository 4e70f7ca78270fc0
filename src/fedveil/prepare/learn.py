"""From noisy sums to a learned preparation: ranges, categories, class balance, means, spreads, in this order.

All that is learned is computed from the noisy sums and public numbers alone, so it costs what the sums cost.
"""

import math
from dataclasses import replace

import numpy as np

from fedveil.prepare.categories import Category, codes_of, frequent
from fedveil.prepare.columns import Columns, Outline
from fedveil.prepare.contributions import (
    class_counts,
    matrix_of,
    range_counts,
    scaled_numbers,
    second_moments,
    vectors,
    word_counts,
)
from fedveil.prepare.learned import LearnedPreparation, Number, usual_factor
from fedveil.prepare.magnitudes import BINS, MISSING
from fedveil.prepare.measure import Measurer
from fedveil.prepare.ranges import Range, range_of
from fedveil.prepare.statement import Preparation
from fedveil.values import Vector

USUAL_SPREAD = 0.35  # of numbers on the scale of their range, where it is not measured
_LEAST_SPREAD = 0.05


def learn(
    planned: Preparation, outline: Outline, columns: Columns, targets: Vector, classes: int, by: Measurer
) -> LearnedPreparation:
    """Measure all that is planned on these columns, which hold the training rows in the order of ``by.owner``."""
    units = by.clients if by.target.unit == "client" else len(columns)
    ranges, gone = _ranges(planned, outline, columns, by, units)
    categories, others = _categories(planned, outline, columns, by, units)
    balance: tuple[float, ...] = ()
    if "classes" in planned:
        counts = by.noisy_sum(planned["classes"], class_counts(targets, classes), classes)
        balance = tuple((np.clip(counts, 0.0, None) / max(float(np.clip(counts, 0.0, None).sum()), 1.0)).tolist())
    means, spreads = _moments(planned, columns, ranges, np.maximum(units * (1 - gone), 1.0), by)
    numbers = zip(outline.numbers, ranges, means.tolist(), spreads.tolist(), strict=True)
    shares = np.array([*(one.share for one in categories), *others])
    found = LearnedPreparation(
        outline=outline,
        numbers=tuple(Number(*one) for one in numbers),
        categories=tuple(categories),
        others=tuple(others),
        factor=usual_factor(outline, shares),
        classes=balance,
    )
    return _projected(planned, found, columns, by, units) if "moments" in planned else found


def _projected(
    planned: Preparation, found: LearnedPreparation, columns: Columns, by: Measurer, units: int
) -> LearnedPreparation:
    """The same rule followed by a projection onto the strongest directions of the noisy second moments."""
    outline, one = found.outline, planned["moments"]
    sums = second_moments(found.unprojected(columns), one.bound)
    noisy = by.noisy_sum(one, sums, outline.unprojected * (outline.unprojected + 1) // 2)
    values, directions = np.linalg.eigh(matrix_of(noisy, outline.unprojected))
    kept = outline.components or 1
    best = directions[:, ::-1][:, :kept]
    best = best * np.where(best[np.abs(best).argmax(axis=0), np.arange(kept)] < 0, -1.0, 1.0)  # one of two signs
    # Squares that are left, as far as the noise lets see: what noise alone adds to the largest values is taken off.
    noise = 2 * one.noise * one.bound * math.sqrt(outline.unprojected)
    left = float(np.clip(values[::-1][:kept] - noise, 0.0, None).sum()) / units
    typical = min(max(left, 0.05 * outline.bound**2), outline.bound**2)
    stretch = outline.bound / math.sqrt(typical)
    return replace(found, components=tuple(map(tuple, best.T.tolist())), stretch=stretch)


def _ranges(
    planned: Preparation, outline: Outline, columns: Columns, by: Measurer, units: int
) -> tuple[list[Range], Vector]:
    """The range of every column of numbers, stated or learned, and the share of missing values where it was seen."""
    gone = np.zeros(len(outline.numbers))
    found = {name: Range(*outline.scale[name]) for name in outline.numbers if name in outline.scale}
    open_places = [place for place, name in enumerate(outline.numbers) if name not in outline.scale]
    if open_places:
        one = planned["ranges"]
        counts = by.noisy_sum(one, range_counts(columns, open_places), BINS * len(open_places))
        deviation = one.noise * one.bound
        for place, row in zip(open_places, counts.reshape(-1, BINS), strict=True):
            found[outline.numbers[place]] = range_of(row, units, deviation)
            missing = float(row[MISSING])
            gone[place] = min(missing / units, 0.99) if missing > 3 * deviation else 0.0
    return [found[name] for name in outline.numbers], gone


def _categories(
    planned: Preparation, outline: Outline, columns: Columns, by: Measurer, units: int
) -> tuple[list[Category], list[float]]:
    """The learned categories of all columns together, and for each column the share of what is left over."""
    if not outline.open_texts:
        return [], []
    one = planned["categories"]
    codes, listed = codes_of(columns, outline.open_texts, by.present)
    counts = by.noisy_sum(one, word_counts(codes, len(listed)), len(listed))
    found = frequent(counts, listed, one.threshold or math.inf, units, outline.slots)
    shown = {name: sum(kept.share for kept in found if kept.column == name) for name in outline.open_texts}
    return found, [min(max(1.0 - shown[name], 0.0), 1.0) for name in outline.open_texts]


def _moments(
    planned: Preparation, columns: Columns, ranges: list[Range], counted: Vector, by: Measurer
) -> tuple[Vector, Vector]:
    """Means and spreads of the scaled numbers; zero and the usual spread where they are not measured."""
    width = len(ranges)
    means, spreads = np.zeros(width), np.full(width, USUAL_SPREAD)
    if "means" not in planned:
        return means, spreads
    scaled = scaled_numbers(columns, ranges)
    gone = np.isnan(scaled)
    filled = np.where(gone, 0.0, scaled)
    means = by.noisy_sum(planned["means"], vectors(filled, planned["means"].bound), width) / counted
    means = np.clip(means, -1.0, 1.0)
    if "spreads" in planned:
        squares = np.where(gone, 0.0, (scaled - means) ** 2)
        found = by.noisy_sum(planned["spreads"], vectors(squares, planned["spreads"].bound), width) / counted
        spreads = np.sqrt(np.clip(found, _LEAST_SPREAD**2, 1.0))
    return means, spreads
