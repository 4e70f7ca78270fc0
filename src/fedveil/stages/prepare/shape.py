"""Whether each column of numbers gets a straight line or a curve, and of how many cells: a rule on public numbers.

More cells follow a curve better and catch more noise. The noise of training costs a risk in proportion to the number of
parameters over the square of the signal (records times mu); what more cells save falls like their inverse square. The
sum of the two is least where the cells grow like the cube root of signal squared over columns. The constant was chosen
on generated data (docs/preparation.md).
"""

import math
from dataclasses import replace
from typing import Final

from fedveil.core.errors import require
from fedveil.data.records import DataShape
from fedveil.models.spec import Curves, ModelPlan
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.prepare.budget import total_mu
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.sums import variance_left

_CURVED: Final = 0.09
_MOST: Final = 12
_LEAST: Final = 3  # with fewer, a line told as much or more on generated data, whether the truth was curved or not


def settle_shape(
    model: ModelPlan, outline: Outline, data: DataShape, target: Target, trust: Trust
) -> tuple[ModelPlan, Outline, str]:
    """Return the model and the outline with the shape decided, and one sentence that says why."""
    _check_names(model, outline)
    curves = model.curves
    asked = curves.shape or "auto"
    bent = curves.knots_at or curves.monotone
    cells = _cells(model, outline, data, target, trust)
    turned = "rows are projected or whitened (components, whiten)"
    require(not (outline.turned and asked == "additive"), "model.shape", f"be linear where {turned}", asked)
    if asked == "linear":
        why = "as the study states"
    elif not outline.numbers:
        why = "there is no column of numbers"
    elif outline.turned:
        why = turned
    elif asked == "additive" or curves.knots is not None or bent:
        why = ""
    elif cells < _LEAST:
        why = f"{_signal_words(data, target)} are too few to tell a curve from noise"
    else:
        why = ""
    if why:
        return replace(model, curves=Curves()), outline, f"The model is linear: {why}."
    count = curves.knots or max(cells, _LEAST)
    curved = replace(model, curves=replace(curves, shape="additive", knots=count))
    stated = asked == "additive" or curves.knots is not None
    how = "as the study states" if stated else f"{_signal_words(data, target)} are enough to follow curves"
    return curved, with_shape(outline, curved), f"The model is additive, up to {count} cells a column: {how}."


def with_shape(outline: Outline, model: ModelPlan) -> Outline:
    """Return the outline of the rows of a model whose shape is decided."""
    if not model.additive:
        return outline
    knots_at = dict(model.curves.knots_at)
    ends = {name: (knots[0], knots[-1]) for name, knots in knots_at.items() if name not in outline.scale}
    return replace(outline, knots=model.curves.knots, knots_at=knots_at, scale={**outline.scale, **ends})


def _cells(model: ModelPlan, outline: Outline, data: DataShape, target: Target, trust: Trust) -> int:
    left = variance_left(target.adversary, data, target, trust)
    units = data.clients if target.unit == "client" else data.records
    signal = units * total_mu(target) * math.sqrt(max(left, 0.0)) / target.sensitivity
    scores = max(data.classes - 1, 1) if model.kind == "softmax" else max(data.classes // 2, 1)
    columns = (len(outline.numbers) + len(outline.texts)) * (scores if model.kind in ("softmax", "survival") else 1)
    return min(math.floor(_CURVED * math.cbrt(signal**2 / max(columns, 1))), _MOST)


def _signal_words(data: DataShape, target: Target) -> str:
    units = f"{data.clients:,} clients" if target.unit == "client" else f"{data.records:,} records"
    return f"{units} at epsilon {target.epsilon:g}"


def _check_names(model: ModelPlan, outline: Outline) -> None:
    """Refuse curves of columns that are not there, and knots outside a stated range."""
    for key in ("knots_at", "monotone"):
        stray = sorted({name for name, _ in getattr(model.curves, key)} - set(outline.numbers))
        hint = f"Columns of numbers: {', '.join(outline.numbers[:12])}." if outline.numbers else ""
        require(not stray, f"model.{key}", "name columns of numbers of the data", stray, hint)
    for name, knots in model.curves.knots_at:
        low, high = outline.scale.get(name, (knots[0], knots[-1]))
        inside = low <= knots[0] and knots[-1] <= high
        require(inside, f"model.knots_at.{name}", f"lie in the range of its column, [{low:g}, {high:g}]", knots)
        hint = f"With one knot state the range too, data.scale.{name}."
        require(low < high, f"model.knots_at.{name}", "list two knots or more", knots, hint)
