"""The [[algorithm.segments]] of a study: rounds in consecutive parts, each with numbers of its own.

van Dijk and Nguyen (2023), section 5.2: less noise in the last passes, for example. Page: docs/segments.md.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from fedveil.core.checks import require
from fedveil.core.tables import known, table
from fedveil.core.values import number, whole

_NAME: Final = "algorithm.segments"
_KEYS: Final = ("rounds", "rate", "clip", "noise", "step")
_MOST: Final = 1000


def read_segments(given: Any) -> tuple[Mapping[str, float], ...] | None:
    """Return the segments as plain numbers, each with its ``rounds`` and whatever else it states; None without any.

    Noise must be stated in all segments or in none.
    """
    if given is None:
        return None
    listed = isinstance(given, list | tuple) and 1 <= len(given) <= _MOST
    require(listed, _NAME, f"list 1 to {_MOST} segments", given, "Each is a table, [[algorithm.segments]].")
    found = tuple(_segment(table(part, _NAME)) for part in given)
    stated = sum("noise" in part for part in found)
    hint = "State it in all of them, or in none: then it is calibrated, alike for all."
    require(
        stated in (0, len(found)), f"{_NAME}.noise", f"be stated in all {len(found)} segments or in none", stated, hint
    )
    return found


def _segment(given: Mapping[str, Any]) -> Mapping[str, float]:
    known(given, _KEYS, "a segment")
    found: dict[str, float] = {"rounds": rounds_of(given)}
    for key in _KEYS[1:]:
        if key in given:
            found[key] = number(f"{_NAME}.{key}", given[key])
            require(0 < found[key] < math.inf, f"{_NAME}.{key}", "be positive and finite", given[key])
    return found


def rounds_of(segment: Mapping[str, Any]) -> int:
    """Return how many rounds a segment has, which it must state."""
    require("rounds" in segment, f"{_NAME}.rounds", "be given for every segment", None)
    rounds = whole(f"{_NAME}.rounds", segment["rounds"])
    require(rounds >= 1, f"{_NAME}.rounds", "be at least 1", segment["rounds"])
    return rounds
