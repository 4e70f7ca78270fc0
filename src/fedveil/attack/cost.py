"""How many runs of the distinguishing game a plan allows before memory or patience ends; known before any is made."""

import numpy as np

from fedveil.attack.releases import WIDTH, rows_each, view_of
from fedveil.audit.game import MOST
from fedveil.plan import Plan

BYTES = 2 * 10**9
NUMBERS = 2 * 10**10  # rows times features that are gone through: some ten minutes
_WORD = 8


def most_runs(plan: Plan) -> int:
    """Runs on each of two data sets, of a plan that can be played; 0: not even its data sets fit."""
    return _hidden(plan) if plan.method.hides else _releases(plan)


def _hidden(plan: Plan) -> int:
    """Of each run are kept: model and noise of every round, of both data sets and once more while they are joined;
    the place of every record, and its row's number and norm. Everything is made twice (what hiding buys).
    """
    run, data = plan.run, plan.data
    fixed = 4 * _WORD * data.records * data.features
    each = 6 * _WORD * run.total * plan.dimension + 7 * _WORD * data.records
    times = run.total if run.sampled else run.passes  # all units of a round are looked at, whoever joined
    work = 4 * (times * data.records * data.features + run.total * plan.dimension)
    return int(min(MOST, max(0, BYTES - fixed) // each, NUMBERS // work))


def _releases(plan: Plan) -> int:
    """A wide problem is laid out whole, and copied; of each run every release is kept."""
    method, rows = plan.method, WIDTH * rows_each(plan)
    again = view_of(plan).work(plan)
    room = BYTES - 3 * _WORD * rows * WIDTH
    rounds = (
        int(np.max([p.rounds for p in method.client_settings])) if hasattr(method, "client_settings") else method.total
    )
    problems = NUMBERS // (2 * rounds * rows * WIDTH * again)
    return int(min(MOST, max(0, room) // (6 * _WORD * rounds), problems * WIDTH))
