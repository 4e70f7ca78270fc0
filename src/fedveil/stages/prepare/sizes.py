"""Whether planned measurements fit the columns that they are made on: a check by whoever contributes to them.

What a record adds to counts has a norm that follows from the number of columns. A plan that states a smaller bound
would charge less than it costs, so it is refused, also by a site that was only sent the plan.
"""

from fedveil.core.checks import require
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.knots import CELLS
from fedveil.stages.prepare.levels import LEVELS
from fedveil.stages.prepare.magnitudes import BINS
from fedveil.stages.sums import NoisySums, root_up


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
