"""A run that stops at a uniformly random round: the optimal shift at every stop, averaged over the stops.

The released model is a mixture over the stops, and delta is jointly convex, so its delta is at most the mean of those
at each stop; a stop before the record's first use tells nothing. Theory page: optimal-shift.md.
"""

import math
from functools import lru_cache

import numpy as np

from fedveil.accounting.hidden import hidden_run
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import ROUNDING, log_sum
from fedveil.theory.shift import uses_mu

LARGEST_TABLE = 8000  # pairs of a place and a stop that are followed; for rounds of one kind, one place


@lru_cache(maxsize=8)
def stopped_mus(run: LastIterate) -> tuple[Vector, Vector]:
    """Return mu and weight of every stop, a row for each place: alternatives in a public order, one row in a secret
    one.

    Rounds of one kind: only the number of uses and the rounds after the last one matter, so one place serves for all.
    """
    state = hidden_run(run)
    rounds, first = run.rounds, state.places[:, 0]
    alike = state.constant and (state.weights is not None or run.place is None)
    if alike:
        first = np.zeros(1, dtype=first.dtype)
    mus = np.zeros((first.size, run.total))
    for uses in range(1, run.passes + 1):
        used = first[:, None] + rounds * np.arange(uses)[None, :]
        ends = used[:, -1:] + 1 + np.arange(rounds)[None, :]
        gaps = state.rounds.gap[used][:, None, :]
        released = np.minimum(ends, run.total) + (run.until_release - run.total)  # further rounds follow every stop
        at_stop = uses_mu(state.rounds, used[:, None, :], gaps, released)
        row, at = np.nonzero(ends <= run.total)
        mus[row, ends[row, at] - 1] = at_stop[row, at]
    weights = np.full(mus.shape, 1 / run.total)
    if state.weights is None:
        return mus, weights
    if not alike:
        return mus.reshape(1, -1), (weights * state.weights[:, None]).reshape(1, -1)
    places = np.minimum(rounds, run.total - np.arange(run.total))  # how many places see so much before the end
    return mus, places[None, :] * float(state.weights[0]) / run.total


def followed(run: LastIterate) -> bool:
    """Return whether the run is short enough to be followed stop by stop."""
    state = hidden_run(run)
    return run.total * (1 if state.constant else state.places.shape[0]) <= LARGEST_TABLE


def stopped_log_delta(run: LastIterate, epsilon: float) -> float:
    """Return the logarithm of the mean over the stops, at the worst public or over secret places; rounded up."""
    mus, weights = stopped_mus(run)
    rows = []
    for row, share in zip(mus, weights, strict=True):
        seen = row > 0
        rows.append(log_sum(log_theta(epsilon, row[seen]) + np.log(share[seen])) if seen.any() else -math.inf)
    return max(max(rows), -690.0) + ROUNDING
