"""What secret sampling alone is worth: a hidden run's steps and noise, with every model seen and other orders.

The factor between "every model seen, order known" and a certificate mixes two things: that nobody knows who took part
when, and that nobody saw the models along the way. A run whose records draw their own rounds has the first without
the second. So what hiding buys is counted from the best of these.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from fedveil.account.hidden import per_round
from fedveil.account.sampled import sampled_evaluators
from fedveil.mechanism import LastIterate


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenByAll:
    """Epsilon at equal noise when every model is seen: by who knows the order, and by how records are sampled secretly.

    None where it has no meaning (other noise than Gaussian) or nothing can be promised.
    """

    known: float | None
    poisson: float | None
    independent: float | None

    @property
    def least(self) -> float | None:
        """The best that sampling does without hiding."""
        return min((e for e in (self.known, self.poisson, self.independent) if e is not None), default=None)


def seen_by_all(run: LastIterate, delta: float, *, known: float | None) -> SeenByAll:
    """The same rounds with every model seen; ``known``: epsilon if the order is known too, as the bounds have it.

    Poisson: every record joins each round with the chance that the batch is of all records (the largest batch, if they
    differ). Independent: it picks one round of each pass. Divisors, steps and noise stay as they are.
    """
    if run.noise != "gaussian":
        return SeenByAll(known=known, poisson=None, independent=None)
    batches = per_round(run.batch, run)[: run.rounds]
    records = run.records if run.records is not None else int(batches.sum())
    plain = replace(run, place=None, rate=None, largest_batch=None, stopping="end", records=records)
    share = min(1.0, float(np.max(batches)) / records)
    poisson = replace(plain, order="poisson", rate=run.rate if run.rate is not None else max(share, 1e-12))
    return SeenByAll(
        known=known,
        poisson=_seen(poisson, delta),
        independent=_seen(replace(plain, order="independent"), delta) if records >= run.rounds else None,
    )


def _seen(run: LastIterate, delta: float) -> float | None:
    found = next(e for e in sampled_evaluators(run) if e.name == "unhidden")
    value = found.epsilon(delta) if found.epsilon is not None else math.inf
    return value if value < math.inf else None


def bought(seen: SeenByAll, epsilon: float) -> float | None:
    """How many times smaller hiding makes epsilon than the best sampling with every model seen; below 1: it does not.

    >>> bought(SeenByAll(known=3.0, poisson=0.5, independent=0.4), 0.8)
    0.5
    """
    return None if seen.least is None or not epsilon > 0 else seen.least / epsilon
