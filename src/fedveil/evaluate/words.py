"""An evaluation in words: what a guarantee rests on, and what a reader should know of its cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.evaluate.statement import Evaluation
from fedveil.target import Target

_WHAT = {"places": "one count for about where its score lies", "scores": "one count for its score, by its class"}
_ERRORS = "its error, the error squared, its target and the target squared, all within the target's public range"
_MANY = "a count for what it is and what it is taken for, and one for how sure that is"


def assumption_rows(planned: Evaluation, target: Target, classes: int) -> Sequence[tuple[str, str, str]]:
    """Return what the guarantee rests on, as (name, value, what enforces it)."""
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
    if planned.joint:
        value = f"{(planned.held or (0,))[0]} records"
        how = "by row number: training does not touch them, but their clients train, so each client is charged for both"
        rows.append(("held-out records of clients that train", value, how))
    elif not planned.trains:
        value = f"{(planned.held or (0,))[0]} records"
        how = "by row number, or by client: training does not touch them, so each record is charged for one of the two"
        rows.append(("held-out records are apart", value, how))
    return rows


def fact_rows(planned: Evaluation, target: Target) -> Sequence[tuple[str, str]]:
    """Return lines for people: what is counted, and at which share of the budget."""
    mu = planned.sums.mechanism(target.neighbours).mu
    if planned.composed:
        cost = f"{planned.sums.share:.3g} of mu squared (mu {mu:.4g})"
    else:
        cost = f"none of training's: held-out records have it for themselves (mu {mu:.4g})"
    noise = planned.sums.measurements[-1]
    how = f"scores in {planned.bins} parts" if planned.bins else "sums of errors"
    return [
        ("evaluated privately on", f"{planned.records} records, {how}"),
        ("the evaluation's share of the budget", cost),
        ("noise of its counts", f"{noise.noise * noise.bound:.4g}"),
    ]


def told(found: Mapping[str, Any]) -> str | None:
    """One sentence where the counts do not show that the model beats the best constant answer; None where they do."""
    if "r2" in found:
        return _told_of_numbers(found)
    constant, ends = found.get("baseline") or {}, (found.get("intervals") or {}).get("accuracy")
    if not constant or constant.get("accuracy") is None or ends is None or ends[0] > constant["accuracy"]:
        return None
    return (
        f"These noisy counts do not show that the model does better than always answering {constant['class']!r}: it is "
        f"right on {ends[0]:.1%} to {ends[1]:.1%}, and that answer on about {constant['accuracy']:.1%}."
    )


def _what(name: str, classes: int) -> str:
    if classes == 0:
        return _ERRORS
    return _WHAT[name] if classes == 2 else _MANY


def _told_of_numbers(found: Mapping[str, Any]) -> str | None:
    ends = (found.get("intervals") or {}).get("r2")
    if ends is not None and ends[0] is not None and ends[0] > 0:
        return None
    shown = "nothing is known of its R2" if ends is None else f"its R2 lies between {ends[0]:.3g} and {ends[1]:.3g}"
    return f"These noisy sums do not show that the model does better than always answering the mean: {shown}."
