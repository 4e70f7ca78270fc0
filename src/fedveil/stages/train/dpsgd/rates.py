"""How large the batches of DP-SGD are where a study does not say: by rules that look at public numbers."""

import math
from fractions import Fraction
from typing import Final

from fedveil.core.checks import require
from fedveil.stages.train.dpsgd.client_settings import check_picks
from fedveil.stages.train.request import Task

USUAL_RATE: Final = 0.05
LEAST_BATCH: Final = 10


def picked_among(task: Task) -> int:
    """Among how many rounds of a pass every record picks one: as the schedule says, else by the usual rule."""
    schedule, data = task.schedule, task.data
    if isinstance(schedule.rounds, int):
        fits = not isinstance(schedule.batch, int) or data.records // schedule.batch == schedule.rounds
        rule = f"make the {schedule.rounds} rounds of a pass that schedule.rounds states"
        hint = "Leave it out: where records pick their rounds, a batch is the records over the rounds of a pass."
        require(fits, "schedule.batch", rule, schedule.batch, hint)
        found = schedule.rounds
    elif isinstance(schedule.batch, int):
        check_batch(schedule.batch, data.records)
        found = data.records // schedule.batch
    else:
        found = max(1, min(round(1 / USUAL_RATE), data.smallest_client // LEAST_BATCH))
    check_picks(found, data)
    return found


def check_batch(batch: int, records: int) -> None:
    """Refuse a batch of more records than there are."""
    require(batch <= records, "schedule.batch", f"be at most the {records} records", batch)


def share(part: int, of: int) -> float:
    """Return the smallest float that is not below part / of, so that a batch of that share holds all of its records."""
    rate = part / of
    return rate if Fraction(rate) * of >= part else math.nextafter(rate, 2.0)
