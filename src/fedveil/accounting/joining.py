"""How many records may join a round of a run whose records draw their own rounds, and how rarely more do.

A step is a sum over whoever joined, divided by the planned batch, so it is as steep as so many records make it. Rounds
are charged as if ``most`` records joined; the chance that some round has more is added to delta. Theory page:
sampled-shift.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedveil.accounting.hidden import until_release
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.binomial_tail import binomial_tail, largest_usual

_SHARE = 1e-3  # of the delta asked for, that crowded rounds may take
_WHOLE = 1e15  # from here on floats are whole numbers, and no data set is as large


@dataclass(frozen=True, slots=True, eq=False)
class Joining:
    """``lipschitz``: of each round's step when at most ``most`` records join; ``chance``: that more join some round."""

    lipschitz: Vector
    chance: float
    most: float

    @property
    def words(self) -> str:
        """Return what is charged, in words."""
        worst = float(np.max(self.lipschitz))
        steps = f"steps may expand by {worst:.4g} when that many join" if worst > 1 else "steps then do not expand"
        return f"up to {self.most:.12g} records count as joining a round ({steps}), more with chance {self.chance:.2g}"


def other_records(run: LastIterate) -> int | None:
    """Return how many records there are beside the one in question; None if the run does not say.

    Without ``records`` the planned batch is the expected one: batch / rate records, or the batches of a pass together.
    """
    if run.records is not None:
        return run.records - 1
    batches = run.batch if isinstance(run.batch, tuple) else (run.batch,) * run.rounds
    if run.rate is None:
        return sum(batches) - 1
    if len(set(batches)) > 1:
        return None
    return max(1, math.ceil(batches[0] / run.rate * (1 - 1e-12))) - 1


@lru_cache(maxsize=8)  # a long run holds many megabytes
def joining(run: LastIterate, delta: float) -> Joining:
    """Return what to charge if about this delta is asked for; without smoothness nothing is known about a step.

    ``largest_batch`` is taken as it is stated. Otherwise it is the smallest number that all rounds together exceed
    with a chance of at most a thousandth of delta; and where a round contracts as well with more, so many more.
    """
    step, batch = until_release("step_size", run), until_release("batch", run)
    others = other_records(run)
    if run.smoothness is None or others is None:
        return Joining(np.full(step.size, math.inf), 0.0, math.inf)
    rate = run.rate if run.rate is not None else 1 / run.choices
    if run.largest_batch is not None:
        most = np.full(step.size, float(run.largest_batch))
    else:
        usual = float(largest_usual(others, rate, max(_SHARE * delta / step.size, 1e-300)))
        most = np.maximum(usual, _harmless(run, step, batch))
    most = np.minimum(most, others)
    sizes, counts = np.unique(most, return_counts=True)
    tails = [c * binomial_tail(others, rate, int(s) + 1) for s, c in zip(sizes.tolist(), counts.tolist(), strict=True)]
    flat = run.smoothness == run.strong_convexity  # only the penalty bends, whoever joins
    chance = 0.0 if flat else min(1.0, math.fsum(tails) * (1 + 1e-12))
    return Joining(step_lipschitz(run, step, most / batch), chance, float(most.max()))


def step_lipschitz(run: LastIterate, step: Vector, crowd: Vector) -> Vector:
    """Return the Lipschitz constant of steps joined by at most ``crowd`` times the planned batch; the penalty is there
    once.
    """
    penalty = run.strong_convexity
    steep = penalty + ((run.smoothness or 0.0) - penalty) * crowd
    if not run.convex:
        return np.asarray(1 + step * steep)
    return np.asarray(np.maximum(np.abs(1 - step * penalty), np.abs(1 - step * steep)))


def _harmless(run: LastIterate, step: Vector, batch: Vector) -> Vector:
    """Return how many may join without a larger Lipschitz constant than an empty round has."""
    penalty, bend = run.strong_convexity, (run.smoothness or 0.0) - run.strong_convexity
    if not run.convex:
        return np.full(step.size, 0.0 if bend > 0 else _WHOLE)
    if bend == 0:
        return np.full(step.size, _WHOLE)
    room = (1 + np.abs(1 - step * penalty)) / step - penalty
    return np.asarray(np.floor(np.clip(room * batch / bend * (1 - 1e-12), 0.0, _WHOLE)))
