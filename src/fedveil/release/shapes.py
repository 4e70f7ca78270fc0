"""What each column adds to the score of a linear or additive model: its shape, with the band that known noise makes.

The plan states the noise of every round. How much of it is left at the end depends on how strongly the records pull a
weight back: on the share of the records at a knot or with a word, which the preparation measured, and on the curvature
of the loss. So the band is an estimate of the noise's deviation alone; it says nothing about the data's own chance.
"""

import math
from typing import Any, Final

import numpy as np

from fedveil.accounting.hidden import per_round
from fedveil.core.errors import BadValue
from fedveil.core.notebook import html_table
from fedveil.core.values import Matrix, Vector
from fedveil.data.column import LINE, Column, hats_of
from fedveil.planning.plan import Plan
from fedveil.release.bundle import Bundle
from fedveil.release.linear import linear_of

BAND: Final = 1.96  # deviations on either side
_LEAST: Final = 1e-3  # of the largest pull: a weight that no record pulls has noise, but not without end
# Of the loss's largest curvature: neighbouring hats and related columns hold each other back less than their shares
# say. With this part the band was as wide as repeated runs, or a little wider, on a generated table.
_CURVED: Final = 0.2


class Shapes(dict[str, list[Any]]):
    """A table, column by name, that a notebook shows as one."""

    def _repr_html_(self) -> str:
        rows = [dict(zip(self, cells, strict=True)) for cells in zip(*self.values(), strict=True)]
        return html_table(rows, "What each column adds to the score")


def shapes_of(bundle: Bundle) -> Shapes:
    """Return a table, column by name: a row for each knot or end of a column of numbers, and for each word.

    ``column``; ``position`` (a number, NaN for a word) or ``word``; ``score`` (the class or interval where there are
    several scores, else empty); ``effect`` on the score, less its mean over the records where their shares are known;
    ``low`` and ``high``: the effect with the band of the noise; ``share``: of the records there, NaN if not measured.
    """
    linear = linear_of(bundle, "shapes")
    if linear.turn is not None:
        raise BadValue("The shapes of a model must be of its columns, and rows were projected onto components.")
    scores = linear.weights.shape[1]
    names = [""] if scores == 1 else list(linear.classes[:scores]) or [str(k) for k in range(scores)]
    noise = _Noise(bundle.plan, linear.preparation.total_bound)
    unit = _unit(bundle)
    keys = ("column", "position", "word", "score", "effect", "low", "high", "share")
    table = Shapes({key: [] for key in keys})
    start = 0
    for column in linear.preparation.columns:
        own = linear.weights[start : start + column.width]
        start += column.width
        positions, words, design, shares = _places(column)
        squares = design**2 @ noise.variances(_shares_of_features(column, shares)) * unit**2
        effects = design @ own
        if np.isfinite(shares).all():
            effects = effects - np.average(effects, axis=0, weights=shares + 1e-12)
        band = BAND * np.sqrt(squares)
        for place, name in enumerate(names):
            effect = effects[:, place]
            table["column"] += [column.name] * effect.size
            table["position"] += positions
            table["word"] += words
            table["score"] += [name] * effect.size
            table["effect"] += effect.tolist()
            table["low"] += (effect - band).tolist()
            table["high"] += (effect + band).tolist()
            table["share"] += shares.tolist()
    return table


def _unit(bundle: Bundle) -> float:
    """What one unit of a score is in the target's own unit."""
    span = None if bundle.preparation is None else bundle.preparation.labels.span
    return 1.0 if span is None or bundle.plan.model.kind == "poisson" else span[1] / 2 - span[0] / 2


def _places(column: Column) -> tuple[list[float], list[str], Matrix, Vector]:
    """Where a shape is shown: positions, words, the column's features there, and the shares of the records."""
    if column.categories:
        count = len(column.categories)
        shares = np.array(column.shares) if len(column.shares) == count else np.full(count, np.nan)
        return [math.nan] * count, list(column.categories), column.hot(np.arange(count)), shares
    if column.knots:
        scaled = column.places
        design = np.vstack([column.block(scaled), column.block(np.array([np.nan]))])
        shares = np.append(_knot_shares(column, scaled), 0.0)
        return [*column.knots, math.nan], [""] * scaled.size + ["(missing)"], design, shares
    low, high = column.range or (-1.0, 1.0)
    _, _, first, last = column.affine
    ends = np.array([[first], [last]]) if column.range is not None else np.array([[low], [high]])
    return [low, high], ["", ""], ends, np.full(2, np.nan)


def _knot_shares(column: Column, places: Vector) -> Vector:
    """The share of the records at each knot: every cell's share goes to its two hats."""
    if not column.shares:
        return np.full(places.size, np.nan)
    cells = np.array(column.shares)
    middles = (np.arange(cells.size) + 0.5) * 2 / cells.size - 1
    left, share = hats_of(middles, places)
    result = np.bincount(left, weights=cells * (1 - share), minlength=places.size)
    if places.size > 1:
        result = result + np.bincount(left + 1, weights=cells * share, minlength=places.size)
    return np.asarray(result / max(float(result.sum()), 1e-12))


def _shares_of_features(column: Column, shares: Vector) -> Vector:
    """The mean square of each feature over the records; NaN where it is not known."""
    if column.categories:
        return np.asarray(shares * column.weight**2)
    if not column.knots:
        return np.full(1, np.nan)
    rising = np.clip((column.places - column.line[0]) / column.line[1], -1.0, 1.0)
    line = np.nansum(shares[:-1] * rising**2) if np.isfinite(shares).all() else np.nan
    squares = np.concatenate([[LINE * line], (1 - LINE) * shares[:-1], [0.0]])
    return np.asarray(squares * column.weight**2)


class _Noise:
    """The variance that the noise of all rounds leaves in a weight, by the mean square of the weight's feature."""

    def __init__(self, plan: Plan, bound: float) -> None:
        self.plan, self.bound = plan, bound
        constants = plan.model.constants(bound)
        self.curvature = _CURVED * (constants.smoothness or 0.0) / bound**2
        sizes = np.full(plan.data.clients, plan.data.records // plan.data.clients, dtype=np.int64)
        self.each = None if plan.method.noiseless else plan.method.average_noise(sizes, plan.setup)

    def variances(self, squares: Vector) -> Vector:
        pull = np.nan_to_num(squares, nan=0.0) * self.curvature + self.plan.model.l2
        if self.plan.method.noiseless:
            return np.zeros(squares.size)
        if self.plan.hides and self.plan.method.kind == "hidden":
            run = self.plan.run
            steps = per_round(run.step_size, run)
            noise = self.plan.hidden.noise() * (math.sqrt(2) if run.noise == "laplace" else 1.0)
            result = np.zeros(squares.size)
            for step, deviation in zip(steps.tolist(), np.broadcast_to(noise, steps.shape).tolist(), strict=True):
                result = np.clip(1 - step * pull, 0.0, 1.0) ** 2 * result + deviation**2
            return result
        if self.each is None:
            return np.full(squares.size, np.nan)
        seen = np.maximum(pull, _LEAST * self.curvature * self.bound**2)
        return np.asarray((self.each / seen) ** 2 / max(self.plan.method.total, 1))
