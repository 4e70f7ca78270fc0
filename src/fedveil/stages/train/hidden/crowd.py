"""How many units may join a round where every unit draws for itself, and what is planned for.

Two questions. Steps contract as long as no round is too full: ``largest_batch`` says up to how many units that is
accounted for, and the chance of more is in delta. Sums and rounding must be bounded whatever happens: there so many are
counted that more join only with a chance of 2**-100 a round. Theory page: sampled-shift.md.
"""

import math
from dataclasses import replace

import numpy as np

from fedveil.accounting.hidden import per_round
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.binomial_tail import binomial_tail, largest_usual, most_joined
from fedveil.theory.grid import SAMPLER_DISTANCE

_SHARE = 1e-3  # of delta, for the chance that a round has more units than are accounted for


def chance_to_join(run: LastIterate) -> float:
    """Of one unit and one round."""
    return run.rate if run.rate is not None else 1 / run.rounds


def crowd(run: LastIterate) -> Vector:
    """Return the most units of each round: as dealt, or as many as are surely drawn, but for :func:`crowded`."""
    batch = per_round(run.batch, run)
    if not run.sampled:
        return batch
    return np.maximum(batch, float(most_joined(chance_to_join(run), run.records or 1)))


def crowded(run: LastIterate) -> float:
    """Return the chance that some round has more units than that."""
    return min(1.0, SAMPLER_DISTANCE * run.total) if run.sampled else 0.0


def steepness(run: LastIterate, units: Vector | float) -> Vector:
    """Return how smooth a round's average is at most when so many units join: the penalty, and each unit's loss."""
    smoothness, penalty = run.smoothness or 0.0, run.strong_convexity
    found = penalty + (smoothness - penalty) * units / per_round(run.batch, run)
    return np.asarray(found, dtype=np.float64)


def with_largest_batch(run: LastIterate, delta: float) -> LastIterate:
    """Return the run with the batch up to which its steps are accounted for.

    That is the largest on which every step still contracts as it does on a small one, but never so small that the
    chance of a larger one would be more than a thousandth of delta. Where that is too many for the step, the growth is
    accounted for: the bounds see it.
    """
    if not run.sampled or not run.smoothness or run.records is None:
        return run
    steps = per_round(run.step_size, run)
    room = (2 / steps - 2 * run.strong_convexity) * per_round(run.batch, run)
    bend = run.smoothness - run.strong_convexity
    most = float(np.min(room)) / bend * (1 - 1e-9) if bend > 0 else math.inf
    contracting = math.floor(max(0.0, min(most, float(run.records))))
    return replace(run, largest_batch=max(usual_crowd(run, delta), contracting))


def usual_crowd(run: LastIterate, delta: float) -> int:
    """Return the least batch that some round exceeds with a chance of at most a thousandth of delta."""
    return largest_usual(run.records or 1, chance_to_join(run), _SHARE * delta / run.total)


def chance_of_a_larger_batch(run: LastIterate) -> float:
    """At most so large is the chance that some round has more units than its steps are accounted for."""
    if run.largest_batch is None:
        return 0.0
    return min(1.0, run.total * binomial_tail(run.records or 1, chance_to_join(run), run.largest_batch + 1))
