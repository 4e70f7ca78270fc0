"""A preparation in words: what a guarantee rests on, and what a reader should know of its cost."""

from collections.abc import Sequence

from fedveil.privacy.target import Target
from fedveil.stages.sums import NoisySums

_WHAT = {
    "ranges": "one count in each column of numbers, on a public grid of magnitudes",
    "categories": "one count for its word in each column of texts",
    "classes": "one count in its class",
    "means": "its scaled numbers",
    "spreads": "one count in each column of numbers, for the distance from the mean on a grid of halvings",
    "cells": "one count in each column of numbers, for its cell among 64 of the range",
    "moments": "the products of all pairs of entries of its row",
    "ones": "one count in each column, for the cell of its value",
    "pairs": "one count for each pair of columns, for the coarse cells of its two values",
    "cliques": "one weighted count for each chosen pair of columns, for the cells of its two values",
}


_LEARNED = {
    "ranges": "column ranges",
    "categories": "the words of columns of texts",
    "classes": "how frequent each class is",
    "means": "column means",
    "spreads": "column spreads",
    "moments": "how columns vary together",
    "cells": "where the values of each column lie",
}
_SQUARES = "the squares of its scaled and centred numbers"  # spreads of a profile: one number a column


def assumption_rows(planned: NoisySums, target: Target) -> Sequence[tuple[str, str, str]]:
    """Return what the guarantee rests on, as (name, value, what enforces it); nothing if nothing is measured."""
    if not planned:
        return []
    unit = "a client (as the mean of its records)" if target.unit == "client" else "a record"
    rows = [
        (
            "types of the columns",
            "numbers or texts",
            "declared: public, like the names of the columns; where the study does not state a type (prepare.numbers, "
            f"prepare.texts) it is read off the cells, which are refused if one {target.unit} alone could change it",
        )
    ]
    for one in planned.measurements:
        squared = one.name == "spreads" and "means" in planned and planned["means"].size == one.size
        what = _SQUARES if squared else _WHAT.get(one.name, f"the sum {one.name}")
        how = f"{unit} adds {what}: cut to this norm and toward zero onto the grid of 2^-20"
        rows.append((f"preparation, {one.name}: norm of a contribution", f"{one.bound:.12g}", how))
        noise = f"{one.noise:.6g} times that norm"
        rows.append((f"preparation, {one.name}: noise", noise, "added on the same grid before anything is looked at"))
        if one.threshold is not None:
            chance = (
                f"a word that only one unit holds passes with a chance of at most {one.slip:.2g}, which is in delta"
            )
            rows.append(("preparation, categories: threshold", f"{one.threshold:.6g} records", chance))
    return rows


def fact_rows(planned: NoisySums, target: Target) -> Sequence[tuple[str, str]]:
    """Return lines for people: what is learned, and at which share of the budget; none if nothing is."""
    if not planned:
        return []
    names = [_LEARNED.get(one.name, one.name) for one in planned.measurements]
    learned = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    levels = sorted(one.noise * one.bound for one in planned.measurements)
    least, most = (f"±{level:.0f}" if level >= 10 else f"±{level:.2g}" for level in (levels[0], levels[-1]))
    noise = least if least == most else f"{least} to {most}"
    cost = f"{planned.share:.0%} of the privacy budget"
    how = f"each sum over all {target.unit}s carries noise of about {noise}"
    return [("preparation", f"learns {learned} with {cost}; {how}")]
