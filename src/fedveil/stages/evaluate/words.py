"""An evaluation in words: what a guarantee rests on, and what a reader should know of its cost."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedveil.data.records import DataShape
from fedveil.privacy.target import Target
from fedveil.stages.evaluate.request import Apart
from fedveil.stages.evaluate.statement import Evaluation

_FAINT: Final = 0.25  # a metric that is not known to within so much tells little
_WHAT = {"places": "one count for about where its score lies", "scores": "one count for its score, by its class"}
_CLEARER = "More held-out records or a larger epsilon would make this clearer."
_ERRORS = "its error, the error squared, its target and the target squared, all within the target's public range"
_MANY = "a count for what it is and what it is taken for, and one for how sure that is"


def assumption_rows(planned: Evaluation, target: Target, classes: int) -> Sequence[tuple[str, str, str]]:
    """Return what the guarantee of the counts rests on, as (name, value, what enforces it)."""
    unit = "a client (as the mean of its records)" if target.unit == "client" else "a record"
    rows = []
    for one in planned.sums.measurements:
        what = _what(one.name, classes)
        moved = "left out" if target.neighbours == "zero-out" else "exchanged, half of how far that moves it"
        exact = "whole numbers, so that their norm is exact" if planned.bins else "cut toward zero onto the grid"
        how = f"{unit} adds {what}: {exact} (one that is {moved})"
        rows.append((f"evaluation, {one.name}: bound of a contribution", f"{one.bound:.12g}", how))
        noise = f"{one.noise:.6g} times that bound"
        rows.append((f"evaluation, {one.name}: noise", noise, "added on the same grid before anything is looked at"))
    return rows


def apart_rows(planned: Evaluation, target: Target, apart: Apart | None) -> Sequence[tuple[str, str, str]]:
    """Return what is assumed of held-out records beside a run that trains on others; nothing on training records."""
    if planned.trains:
        return []
    value = f"{planned.held[0]} records"
    if planned.joint:
        how = f"each {target.unit} is charged for training and for the counts, so nothing is assumed of which it is in"
        return [(f"a {target.unit} may train and be held out", value, how)]
    return [("held-out records are apart", value, f"{apart_words(apart)}; each is charged for one of the two")]


def apart_words(apart: Apart | None) -> str:
    """Return what keeps held-out records from training: what the code enforces, and what is declared."""
    match apart:
        case "split":
            return "rows of one source, held out by row number or by client: training does not read them"
        case "compared":
            return (
                "checked before the charge: no row of the held-out source stands in the training source; declared: "
                "rows that differ are of different records"
            )
        case None:
            return "declared: every site holds its own rows out, and nobody compares the rows of different sites"


def fact_rows(planned: Evaluation, target: Target) -> Sequence[tuple[str, str]]:
    """Return lines for people: what is counted, and at which share of the budget; none if nothing is."""
    if not planned:
        return []
    if planned.composed:
        cost = f"with {planned.sums.share:.0%} of the privacy budget"
    else:
        cost = "with a budget of their own, since held-out records do not train"
    last = planned.sums.measurements[-1]
    level = f"carries noise of about ±{last.noise * last.bound:.3g}"
    if planned.bins:
        what, noise = f"counts scores in {planned.bins} bins", f"each count {level}"
    else:
        what, noise = "adds up the errors", f"each sum {level}"
    return [("evaluation", f"{what} on {planned.records} records {cost}; {noise}")]


def faint(planned: Evaluation, target: Target, data: DataShape) -> str | None:
    """One sentence, from public numbers, where the noise is likely to drown what is counted; None where it is not."""
    counted, one = planned.shape(data), planned.sums.measurements[-1]
    units = counted.clients if target.unit == "client" else counted.records
    added = max(planned.bins, 1)  # the counts that a share of all units is the sum of
    room = 2 * one.noise * one.bound * math.sqrt(added) / units
    if room < _FAINT:
        return None
    return (
        f"{units:,} {target.counted}s are few to count privately: with epsilon {target.epsilon:g} the noise leaves "
        f"metrics uncertain by about {min(room, 1.0):.0%} of their range. More {target.counted}s, or a larger epsilon, "
        "tell more."
    )


def why_unclear(found: Mapping[str, Any]) -> str | None:
    """One sentence where the counts do not show that the model beats the best constant answer; None where they do."""
    if "r2" in found:
        return _unclear_numbers(found)
    constant, ends = found.get("baseline") or {}, (found.get("intervals") or {}).get("accuracy")
    area = (found.get("intervals") or {}).get("auc")
    if area is not None and area[0] > 0.5:  # it ranks records, whatever is rare among them
        return None
    if not constant or constant.get("accuracy") is None or ends is None or ends[0] > constant["accuracy"]:
        return None
    return (
        f"These noisy counts do not show that the model does better than always answering {constant['class']!r}: it is "
        f"right on {ends[0]:.1%} to {ends[1]:.1%}, and that answer on about {constant['accuracy']:.1%}. {_CLEARER}"
    )


def _what(name: str, classes: int) -> str:
    if classes == 0:
        return _ERRORS
    return _WHAT[name] if classes == 2 else _MANY


def _unclear_numbers(found: Mapping[str, Any]) -> str | None:
    ends = (found.get("intervals") or {}).get("r2")
    if ends is not None and ends[0] is not None and ends[0] > 0:
        return None
    shown = "nothing is known of its R2" if ends is None else f"its R2 lies between {ends[0]:.3g} and {ends[1]:.3g}"
    told = "These noisy sums do not show that the model does better than always answering the mean"
    return f"{told}: {shown}. {_CLEARER}"
