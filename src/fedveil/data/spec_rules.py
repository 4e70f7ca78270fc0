"""Rules for what a study states about its data that concern several keys at once: writing, and intervals of time."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from fedveil.core.checks import require

if TYPE_CHECKING:
    from fedveil.data.spec import Source

DECIMALS = (".", ",")
THOUSANDS = (",", ".", " ", "'")
RULES = ("refuse", "drop-row")
_MOST: Final = 200  # intervals


def check_writing(source: Source) -> None:
    """Refuse a way of writing numbers, or a bent scale, that nobody could mean."""
    require(source.decimal in DECIMALS, "data.decimal", 'be "." or ","', source.decimal)
    known = source.thousands is None or source.thousands in THOUSANDS
    require(known, "data.thousands", 'be ",", ".", " " or "\'"', source.thousands)
    require(source.thousands != source.decimal, "data.thousands", "differ from data.decimal", source.thousands)
    asked = source.query is None or source.database
    require(asked, "data.query", "go with a database as data.source", source.source)
    require(source.unlisted in RULES, "data.unlisted", 'be "refuse" or "drop-row"', source.unlisted)
    for column, unit in source.bend.items():
        require(unit > 1e-300, f"data.bend.{column}", "be positive", unit)
        ranged = column in source.scale or (source.default_scale is not None and column not in source.categories)
        require(ranged, f"data.bend.{column}", "be of a column with a range in data.scale", column)


def interval_classes(source: Source) -> tuple[str, ...]:
    """Return the classes that a study's intervals declare; refuse ends that do not rise, and other rules beside them.

    For each interval "k+" (seen without the event to its end) and "k" (the event in it).
    """
    ends = source.intervals
    both = source.event is not None and bool(ends)
    hint = "The target holds times, event names the column of events, and intervals where each interval ends."
    require(both, "data.event", "be given with data.intervals", (source.event, ends), hint)
    rising = all(0 < end < math.inf for end in ends) and all(a < b for a, b in pairwise(ends)) and len(ends) <= _MOST
    require(rising, "data.intervals", f"be up to {_MOST} ends that are positive and rise", ends[:5])
    given = [key for key in ("label_above", "target_scale") if getattr(source, key) is not None]
    require(not given, "data.intervals", "be left out with another rule for labels", given)
    require(source.target is not None, "data.target", "name the column of times", None)
    words = tuple(word for k in range(1, len(ends) + 1) for word in (f"{k}+", f"{k}"))
    same = source.classes in (None, words)
    require(same, "data.classes", "be left out with data.intervals, which declare them", source.classes)
    return words
