"""Many runs of hidden training whose units draw their own rounds: the trainer's draws, for all runs at once.

The coins and the picks are made by the functions that the trainer uses; only the address of their words differs, since
one stream serves all runs. Batches of unequal sizes are stacked as one sparse matrix.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.data.rows import row_norms
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.train.draws import coins, picks
from fedveil.stages.train.hidden.deal import Batch

Joined = NDArray[np.bool_]  # a row a run, a column a unit
Join = Callable[[LastIterate, int, int, int, Entropy], Joined]
Rows = Callable[[Vector, int, list[int] | None], Vector]


def join(run: LastIterate, turn: int, runs: int, units: int, entropy: Entropy) -> Joined:
    """Return which units join a round (counted through all passes), run by run."""
    if run.order == "poisson":
        return coins(entropy.stream("coins of runs", turn), run.rate or 0.0, runs, units)
    which, place = divmod(turn, run.rounds)
    picked = picks(entropy.stream("picks of runs", which), run.rounds, runs * units)
    return np.asarray(picked.reshape(runs, units) == place)


def drawn_batches(
    plan: Plan, records: Records, runs: int, entropy: Entropy, how: Join, blocks: Rows
) -> tuple[Callable[[int], Batch], Indices]:
    """Return the batch of each round for all runs; where a unit went is told to nobody, so no places are known."""
    whole = plan.target.unit == "client"
    unit_of = records.owner if whole else np.arange(len(records), dtype=np.int64)
    units = records.clients if whole else len(records)
    norms = row_norms(records.features)

    def batch(turn: int) -> Batch:
        joined = how(plan.run, turn, runs, units, entropy)[:, unit_of]
        rows = np.nonzero(joined)[1]
        features = blocks(records.features[rows], runs, joined.sum(axis=1).tolist())
        weights = 1.0 / records.sizes[records.owner[rows]] if whole else None
        return Batch(features, records.targets[rows], norms[rows], weights)

    return batch, np.full((1, len(records)), -1, dtype=np.int64)


def drawn_scores(run: LastIterate, seen: Vector, ahead: Vector, back: Vector) -> list[Vector]:
    """Return how much likelier the rounds are on the first data set than on the second, the victim's draws unknown.

    ``seen``: what each round added; ``ahead``, ``back``: the logarithm of the likelihood ratio of the victim's taking
    part on either data set to its absence, round by round. The first score is exact where every model is seen and
    nothing else pushes. The second would tell if the draws were the same in every pass, and the third if rounds that
    nobody joined were silent.
    """
    shape = (seen.shape[0], run.passes, run.rounds)
    same = [logsumexp(ratios.reshape(shape).sum(axis=1), axis=1) for ratios in (ahead, back)]
    result = [_mixed(run, ahead) - _mixed(run, back), np.asarray(same[0] - same[1], dtype=np.float64)]
    if run.order == "independent":
        result.append(picked_ratio(ahead.reshape(shape), seen.reshape(shape) == 0))
    return result


def picked_ratio(ratios: Vector, silent: Joined) -> Vector:
    """Return the likelihood ratio of a victim that picks one round of each pass, none of those that are ``silent``."""
    heard = np.where(silent & ~silent.all(axis=2, keepdims=True), -np.inf, ratios)
    fresh = logsumexp(heard, axis=2) - np.log(np.isfinite(heard).sum(axis=2))
    return np.asarray(fresh.sum(axis=1), dtype=np.float64)


def _mixed(run: LastIterate, ratios: Vector) -> Vector:
    if run.order == "poisson":
        rate = run.rate or 1.0
        stays = np.log1p(-rate) if rate < 1 else -np.inf
        return np.asarray(np.logaddexp(stays, np.log(rate) + ratios).sum(axis=1), dtype=np.float64)
    by_pass = ratios.reshape(ratios.shape[0], run.passes, run.rounds)
    return picked_ratio(by_pass, np.zeros(by_pass.shape, dtype=np.bool_))
