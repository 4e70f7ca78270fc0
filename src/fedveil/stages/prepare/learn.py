"""From noisy sums to a learned preparation: ranges, categories, class balance, then means and spreads, or knots.

All that is learned is computed from the noisy sums and public numbers alone, so it costs what the sums cost.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.stages.measuring import Measures
from fedveil.stages.prepare.columns import Columns, Outline
from fedveil.stages.prepare.contributions import (
    cell_counts,
    class_counts,
    level_counts,
    matrix_of,
    range_counts,
    scaled_numbers,
    second_moments,
    vectors,
    word_counts,
)
from fedveil.stages.prepare.learned import (
    CELLS,
    LEVELS,
    Category,
    LearnedRule,
    Number,
    codes_of,
    frequent,
    knots_of,
    line_of,
    narrowed,
    shares_of,
    spread_of,
    trimmed,
    usual_factor,
)
from fedveil.stages.prepare.ranges import BINS, MISSING, Range, model_range, range_of
from fedveil.stages.sums import NoisySums, root_up

# Whether planned measurements fit the columns that they are made on: a check by whoever contributes to them.
#
# What a record adds to counts has a norm that follows from the number of columns. A plan that states a smaller bound
# would charge less than it costs, so it is refused, also by a site that was only sent the plan.


def check_sizes(planned: NoisySums, outline: Outline, classes: int) -> None:
    """Refuse unless every measurement has the size and the bound of contributions of this outline."""
    numbers, texts = len(outline.numbers), len(outline.open_texts)
    width, opened = outline.unprojected, len(outline.open_numbers)
    expected: dict[str, tuple[int | None, float]] = {
        "ranges": (BINS * opened, root_up(opened)),
        "categories": (None, root_up(texts)),
        "classes": (classes, 1.0),
        "means": (numbers, 0.0),  # vectors are cut to whatever bound the plan states
        "cells": (CELLS * len(outline.counted), root_up(len(outline.counted))),
        "spreads": (LEVELS * numbers, root_up(numbers)),
        "moments": (width * (width + 1) // 2, 0.0),
    }
    for one in planned.measurements:
        size, least = expected[one.name]
        fits = one.size == size if size is not None else one.size >= 1
        require(fits, f"prepare.{one.name}", f"have {size} numbers for these columns", one.size)
        require(one.bound >= least, f"prepare.{one.name}", f"bound a contribution by at least {least:g}", one.bound)
    needed = (("ranges", opened), ("categories", texts), ("cells", len(outline.counted)))
    missing = [name for name, there in needed if there and name not in planned]
    require(not missing, "[prepare]", f"measure {', '.join(missing)} of these columns", "a plan without it")
    projected = not outline.turned or "moments" in planned
    require(projected, "[prepare]", "measure moments where rows are projected or whitened", "a plan without it")


USUAL_SPREAD = 0.35  # of numbers on the scale of their range, where it is not measured
_LEAST_STRENGTH = 0.05  # of an equal part of all squares: a direction with less is not blown up any further


def learn(
    planned: NoisySums,
    outline: Outline,
    columns: Columns,
    targets: Vector,
    classes: int,
    units: int,
    by: Measures,
) -> LearnedRule:
    """Measure all that is planned on these columns and targets, which hold the training rows.

    ``units``: how many contribute to a sum, records or whole clients, of the whole study. The columns may hold only a
    part of the records, or none, where ``by`` knows the sums.
    """
    check_sizes(planned, outline, classes)
    ranges, gone = ranges_in(planned, outline, columns, by, units, model_range)
    categories, others = categories_in(planned, outline, columns, by, units)
    balance: tuple[float, ...] = ()
    if "classes" in planned:
        counts = by.noisy_sum(planned["classes"], class_counts(targets, classes), classes)
        balance = tuple((np.clip(counts, 0.0, None) / max(float(np.clip(counts, 0.0, None).sum()), 1.0)).tolist())
    shares = np.array([*(one.share for one in categories), *others])
    if outline.knots is None:
        numbers = _centred(planned, outline, columns, ranges, np.maximum(units * (1 - gone), 1.0), by)
    else:
        numbers = _curved(planned, outline, columns, ranges, by)
    result = LearnedRule(
        outline=outline,
        numbers=numbers,
        categories=tuple(categories),
        others=tuple(others),
        factor=usual_factor(outline, shares),
        classes=balance,
    )
    return _projected(planned, result, columns, by, units) if "moments" in planned else result


def _centred(
    planned: NoisySums, outline: Outline, columns: Columns, ranges: list[Range], counted: Vector, by: Measures
) -> tuple[Number, ...]:
    """The numbers of a linear model, each with its mean and its spread."""
    means, spreads = _moments(planned, columns, ranges, counted, by)
    moments = zip(ranges, means.tolist(), spreads.tolist(), strict=True)
    known = [narrowed(*one) if "spreads" in planned else one for one in moments]
    return tuple(Number(name, *one) for name, one in zip(outline.numbers, known, strict=True))


def _curved(
    planned: NoisySums, outline: Outline, columns: Columns, ranges: list[Range], by: Measures
) -> tuple[Number, ...]:
    """The numbers of an additive model, each with its knots: as stated, or where the cells' noisy counts put them."""
    result = {}
    for name, own in zip(outline.numbers, ranges, strict=True):
        if name in outline.knots_at:
            places = np.unique(own.scaled(np.array(outline.knots_at[name])))
            result[name] = Number(name, own, knots=tuple(places.tolist()))
    counted = [place for place, name in enumerate(outline.numbers) if name in outline.counted]
    if counted:
        scaled = np.column_stack([ranges[place].scaled(columns.numbers[:, place]) for place in counted])
        counts = by.noisy_sum(planned["cells"], cell_counts(scaled), CELLS * len(counted)).reshape(-1, CELLS)
        deviation = planned["cells"].noise * planned["cells"].bound
        for place, row in zip(counted, counts, strict=True):
            name, own = outline.numbers[place], ranges[place]
            if name not in outline.scale:
                own, row = trimmed(own, row, deviation)
            mean, half = line_of(row, deviation)
            shares = shares_of(row)
            knots = knots_of(shares, outline.knots or 1)
            result[name] = Number(name, own, mean, half, knots=knots, shares=tuple(shares.tolist()))
    return tuple(result[name] for name in outline.numbers)


def _projected(planned: NoisySums, found: LearnedRule, columns: Columns, by: Measures, units: int) -> LearnedRule:
    """The same rule followed by a projection onto the strongest directions of the noisy second moments.

    Where rows are whitened, each direction is divided by its spread, but by no less than what the noise lets see.
    """
    outline, one = found.outline, planned["moments"]
    sums = second_moments(found.unprojected(columns), one.bound)
    noisy = by.noisy_sum(one, sums, outline.unprojected * (outline.unprojected + 1) // 2)
    values, directions = np.linalg.eigh(matrix_of(noisy, outline.unprojected))
    kept = outline.components or outline.unprojected
    best = directions[:, ::-1][:, :kept]
    best = best * np.where(best[np.abs(best).argmax(axis=0), np.arange(kept)] < 0, -1.0, 1.0)  # one of two signs
    # Squares that are left, as far as the noise lets see: what noise alone adds to the largest values is taken off.
    noise = 2 * one.noise * one.bound * math.sqrt(outline.unprojected)
    strength = values[::-1][:kept]
    if outline.whiten:
        least = max(noise, _LEAST_STRENGTH * outline.bound**2 * units / outline.unprojected)
        best = best * np.sqrt(units / np.maximum(strength, least))
        stretch = outline.bound / math.sqrt(kept)
    else:
        left = float(np.clip(strength - noise, 0.0, None).sum()) / units
        typical = min(max(left, 0.05 * outline.bound**2), outline.bound**2)
        stretch = outline.bound / math.sqrt(typical)
    return replace(found, components=tuple(map(tuple, best.T.tolist())), stretch=stretch)


def ranges_in(
    planned: NoisySums,
    outline: Outline,
    columns: Columns,
    by: Measures,
    units: int,
    range_from: Callable[[Vector, int, float], Range] = range_of,
) -> tuple[list[Range], Vector]:
    """The range of every column of numbers, stated or learned, and the share of missing values where it was seen."""
    gone = np.zeros(len(outline.numbers))
    bend = outline.bend
    result = {
        name: Range(*outline.scale[name], bend.get(name, 0.0)) for name in outline.numbers if name in outline.scale
    }
    open_places = [place for place, name in enumerate(outline.numbers) if name not in outline.scale]
    if open_places:
        one = planned["ranges"]
        counts = by.noisy_sum(one, range_counts(columns, open_places), BINS * len(open_places))
        deviation = one.noise * one.bound
        for place, row in zip(open_places, counts.reshape(-1, BINS), strict=True):
            result[outline.numbers[place]] = range_from(row, units, deviation)
            missing = float(row[MISSING])
            gone[place] = min(missing / units, 0.99) if missing > 3 * deviation else 0.0
    return [result[name] for name in outline.numbers], gone


def categories_in(
    planned: NoisySums, outline: Outline, columns: Columns, by: Measures, units: int
) -> tuple[list[Category], list[float]]:
    """The learned categories of all columns together, and for each column the share of what is left over."""
    if not outline.open_texts:
        return [], []
    one = planned["categories"]
    codes, listed = codes_of(columns, outline.open_texts, by.present)
    counts = by.noisy_sum(one, word_counts(codes, len(listed)), len(listed))
    result = frequent(counts, listed, one.threshold or math.inf, units, outline.slots)
    shown = {name: sum(kept.share for kept in result if kept.column == name) for name in outline.open_texts}
    return result, [min(max(1.0 - shown[name], 0.0), 1.0) for name in outline.open_texts]


def _moments(
    planned: NoisySums, columns: Columns, ranges: list[Range], counted: Vector, by: Measures
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
        one = planned["spreads"]
        counts = by.noisy_sum(one, level_counts(scaled - means), LEVELS * width).reshape(width, LEVELS)
        deviation = one.noise * one.bound
        spreads = np.array([spread_of(row, float(many), deviation) for row, many in zip(counts, counted, strict=True)])
    return means, spreads
