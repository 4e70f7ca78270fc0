"""How many runs of the distinguishing game a plan allows within memory and time, computed beforehand."""

import numpy as np

from fedveil.audit.game import CHOOSING, MOST
from fedveil.jobs.attack.releases import WIDTH, rows_each, view_of
from fedveil.planning.plan import Plan

BYTES = 2 * 10**9
NUMBERS = 2 * 10**10  # most rows times features to process, about ten minutes
_WORD = 8
_TORCH = 16  # how much longer a row takes through torch


def most_runs(plan: Plan) -> int:
    """Return how many runs on each of two data sets are possible; 0 if not even the data sets fit."""
    return _hidden(plan) if plan.method.hides else _releases(plan)


def words_of_time(plan: Plan, runs: int) -> str:
    """Return about how long so many runs take at most, in words."""
    seconds = 600 * runs * _work_of_run(plan) / NUMBERS
    return f"about {seconds:,.0f} s at most" if seconds < 120 else f"about {seconds / 60:,.0f} minutes at most"


def _work_of_run(plan: Plan) -> float:
    """Return how many numbers one run on each of the two data sets processes."""
    if not plan.method.hides:
        return NUMBERS / max(1, _releases(plan))
    run, data = plan.run, plan.data
    return 2 * (run.passes * data.records * data.features + run.total * plan.dimension)


def _hidden(plan: Plan) -> int:
    """Return the number for a hidden plan, from the memory of each run of a block.

    Kept for each run: model and noise of every round, for both data sets and once more while they are joined; the place
    of every record, its row number and norm. The largest block is the one that chooses.
    """
    run, data = plan.run, plan.data
    fixed = 4 * _WORD * data.records * data.features
    each = CHOOSING * (6 * _WORD * run.total * plan.dimension + 7 * _WORD * data.records)
    return int(min(MOST, max(0, BYTES - fixed) // each, NUMBERS // _work_of_run(plan)))


def _releases(plan: Plan) -> int:
    """Return the number for a plan that hides nothing.

    A wide problem is held in memory completely, and copied; every release of each run is kept.
    """
    method, rows = plan.method, WIDTH * rows_each(plan)
    again = view_of(plan).work(plan) * (1 if plan.model.linear else _TORCH)
    room = BYTES - 3 * _WORD * rows * WIDTH
    rounds = (
        int(np.max([p.rounds for p in method.client_settings])) if hasattr(method, "client_settings") else method.total
    )
    problems = NUMBERS // (2 * rounds * rows * WIDTH * again)
    return int(min(MOST, max(0, room) // (6 * _WORD * rounds), problems * WIDTH))
