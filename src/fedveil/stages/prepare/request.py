"""What a study asks of its preparation, and the words that describe it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from fedveil.core.errors import require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.values import number, whole
from fedveil.privacy.target import Target
from fedveil.stages.sums import NoisySums

Kind = Literal["auto", "private", "stated"]
SLOTS = 12  # categories kept for each column of texts, on average
BOUND = (
    2.0  # of rows, where a study states none: columns are centred, so they get more of a row than its intercept of 1
)


EXCLUSIONS: Final = tuple(
    Exclusion(name, 'kind = "stated"', "It learns nothing.", lambda request: request.kind == "stated")
    for name in ("share", "classes", "components", "whiten")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRequest:
    """``kind``: learn what is not stated anywhere (auto), all that the study does not state (private), or nothing.

    ``share``: of the budget (of mu squared) for all measurements together; None: by rule. ``categories``: how many are
    kept for each column of texts on average. ``classes``: whether the share of each class is measured too.
    ``components``: rows are projected onto so many principal components, which are measured; None: they are not.
    ``whiten``: each direction is divided by its own spread, which is measured with it.
    ``numbers`` and ``texts``: columns whose type the study states, so that it need not be read off the cells.
    """

    kind: Kind = "auto"
    share: float | None = None
    categories: int = SLOTS
    classes: bool = False
    components: int | None = None
    whiten: bool = False
    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        words = get_args(Kind)
        require(self.kind in words, "prepare.kind", f"be one of {', '.join(words)}", self.kind)
        if self.share is not None:
            share = number("prepare.share", self.share)
            hint = 'Nothing is learned with kind = "stated"; and training needs a part of the budget.'
            require(0 < share < 1, "prepare.share", "lie strictly between 0 and 1", share, hint)
            object.__setattr__(self, "share", share)
        most = whole("prepare.categories", self.categories)
        require(1 <= most <= 10_000, "prepare.categories", "lie between 1 and 10000", most)
        if self.components is not None:
            object.__setattr__(self, "components", whole("prepare.components", self.components))
            require(1 <= (self.components or 0) <= 10_000, "prepare.components", "lie in [1, 10000]", self.components)
        for name in ("classes", "whiten"):
            require(isinstance(getattr(self, name), bool), f"prepare.{name}", "be true or false", getattr(self, name))
        for name in ("numbers", "texts"):
            given = getattr(self, name)
            listed = isinstance(given, list | tuple) and all(isinstance(word, str) for word in given)
            require(listed, f"prepare.{name}", "list names of columns", given)
            object.__setattr__(self, name, tuple(given))
        both = sorted(set(self.numbers) & set(self.texts))
        require(not both, "prepare.texts", "name no column that prepare.numbers names", both)
        check_exclusions(self, "prepare", EXCLUSIONS)


# A preparation in words: what a guarantee rests on, and what a reader should know of its cost.

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
    "categories": "text categories",
    "classes": "class frequencies",
    "means": "column means",
    "spreads": "column spreads",
    "moments": "column covariances",
    "cells": "column histograms",
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
    counts = [one.name for one in planned.measurements if one.counts]
    if counts and target.neighbours == "replace-one":
        which = "a sum" if len(counts) == len(planned.measurements) else f"the sums {', '.join(counts)}"
        how = "no number that a unit adds is negative: two contributions differ by at most the root of 2 times the norm"
        rows.append((f"replacing one unit moves {which}", "the root of 2 times the norm", how))
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
    how = f"each sum over all {target.counted}s carries noise of about {noise}"
    return [("preparation", f"spends {cost} to learn {learned}; {how}")]
