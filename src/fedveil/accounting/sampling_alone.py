"""What secret sampling alone is worth: a hidden run's steps and noise, with every model seen and other orders.

The factor between "every model seen, order known" and a certificate mixes two things: that nobody knows who took part
when, and that nobody saw the models along the way. A run whose records draw their own rounds has the first without
the second. So what hiding buys is counted from the best of these.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedveil.accounting.curious import known_draws
from fedveil.accounting.evaluator import Evaluator, epsilon_of
from fedveil.accounting.hidden import per_round
from fedveil.accounting.last_iterate import evaluators
from fedveil.privacy.mechanism import NO_FURTHER_ROUNDS, LastIterate

_NOT_PRIVATE = 40.0  # epsilon beyond which nothing is private: no target may be larger


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenByAll:
    """Epsilon at equal noise when every model is seen: records dealt as they are, or drawing their rounds secretly.

    ``known``: as they are dealt; once every model is seen a fixed order hides nothing, even if it is secret. None where
    it has no meaning (other noise than Gaussian) or nothing can be promised; ``independent`` also where Poisson draws
    have an epsilon above 40.
    """

    known: float | None
    poisson: float | None
    independent: float | None

    @property
    def least(self) -> float | None:
        """The best that sampling does without hiding."""
        return min((e for e in (self.known, self.poisson, self.independent) if e is not None), default=None)


Judge = Callable[[Evaluator, float], float]  # the epsilon of a bound at a delta, with whatever else a run releases


def seen_by_all(run: LastIterate, delta: float, judge: Judge = epsilon_of) -> SeenByAll:
    """The same rounds with every model seen.

    Poisson: every record joins each round with the chance that the batch is of all records (the largest batch, if they
    differ). Independent: it picks one round of each pass. Divisors, steps and noise stay as they are. ``judge``: by
    default the training rounds alone count, with ideal noise; ``promises.every_model_seen`` counts all of a plan.
    """

    def seen(run: LastIterate) -> float | None:
        value = judge(next(e for e in evaluators(run) if e.name == "unhidden"), delta)
        return value if value < math.inf else None

    run = replace(run, further=NO_FURTHER_ROUNDS)
    known = seen(known_draws(run) if run.sampled else run)
    if run.noise != "gaussian":
        return SeenByAll(known=known, poisson=None, independent=None)
    batches = per_round(run.batch, run)[: run.rounds]
    records = run.records if run.records is not None else int(batches.sum())
    drawn = replace(run, place=None, rate=None, largest_batch=None, stopping="end", order="independent", records=None)
    share = run.rate if run.rate is not None else min(1.0, max(float(np.max(batches)) / records, 1e-12))
    apart = run.order != "poisson" or abs(share * run.rounds - 1) < 1e-6  # else there is no pass to pick a round of
    # The row of the run's own order is the run itself, as the certificate counts it.
    poisson = seen(run if run.order == "poisson" else replace(drawn, order="poisson", rate=share))
    # What coins cannot protect, picking one round a pass cannot either, and to find that out may take long.
    apart = apart and poisson is not None and poisson <= _NOT_PRIVATE
    own = run if run.order == "independent" else drawn
    return SeenByAll(known=known, poisson=poisson, independent=seen(own) if apart or own is run else None)


def bought(seen: SeenByAll, epsilon: float) -> float | None:
    """How many times smaller hiding makes epsilon than the best sampling with every model seen; below 1: it does not.

    >>> bought(SeenByAll(known=3.0, poisson=0.5, independent=0.4), 0.8)
    0.5
    """
    return None if seen.least is None or not epsilon > 0 else seen.least / epsilon
