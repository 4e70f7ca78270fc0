"""Observers of a run whose records draw their own rounds: to whom the draws are secret, and who knows them.

A server that adds up sums in which every client takes part in every round learns nothing of the draws. One that sees
who takes part may know them, and then every round that the record may join counts. Theory page: sampled-shift.md.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedveil.account.evaluator import Evaluator, withdrawn
from fedveil.account.hidden import per_round
from fedveil.account.last_iterate import evaluators
from fedveil.account.participation import Participation
from fedveil.account.sampled import sampled_evaluators
from fedveil.guarantee import Adversary
from fedveil.mechanism import LastIterate
from fedveil.values import Vector


def sampled_views(run: LastIterate, adversary: Adversary, who: Participation) -> Sequence[Evaluator]:
    """Return every bound on what this observer learns."""
    batch = per_round(run.batch, run)
    match adversary:
        case "final-model":
            return sampled_evaluators(run)
        case "every-model":
            return seen(run, "every model seen, the record's draws secret")
        case "curious-client":
            left = np.maximum(batch - who.largest_client, 1.0) / batch
            return seen(_noisy(run, left), "every model counted as seen, its own noise taken off, the draws secret")
        case "server-with-secure-aggregation":
            return _summed(run, who, batch)
        case _:
            alone = replace(known_draws(run), batch=1)
            return seen(alone, "each unit's own noisy update seen: local, in every round that it may join")


def seen(run: LastIterate, why: str) -> Sequence[Evaluator]:
    """Return the bound that counts every noisy sum as seen."""
    return [replace(found, reason=why) for found in sampled_evaluators(run) if found.name == "unhidden"]


def known_draws(run: LastIterate) -> LastIterate:
    """The run as it looks to one who knows the draws: every round that the unit may join is joined.

    Independent draws are one round a pass, whichever it is: a public order, at its worst place.
    """
    plain = {"order": "public", "rate": None, "largest_batch": None}
    return replace(run, rate=1.0) if run.order == "poisson" else replace(run, records=None, **plain)  # type: ignore[arg-type]


def _summed(run: LastIterate, who: Participation, batch: Vector) -> Sequence[Evaluator]:
    missing = float(who.colluders + who.dropouts)
    left = np.maximum(batch - missing, 0.0) / batch
    if not bool(np.all(left > 0)):
        why = f"{missing:g} units may add no noise that counts, and a round has {np.min(batch):g}"
        return [withdrawn("unhidden", why)]
    noisy = _noisy(run, left)
    if who.every_round:
        return seen(noisy, "every sum seen; every client takes part in every round, so the draws stay secret")
    public = known_draws(noisy)
    why = "every sum seen, and the server sees who takes part: every round that the unit may join counts"
    if public.sampled:
        return seen(public, why)
    return [replace(found, reason=why) for found in evaluators(public) if found.name == "unhidden"]


def _noisy(run: LastIterate, variance: Vector) -> LastIterate:
    """Return the run with this share of each round's variance."""
    noise = per_round(run.noise_std, run) * np.sqrt(variance)
    same = bool(np.all(noise == noise[0]))
    return replace(run, noise_std=float(noise[0]) if same else tuple(noise.tolist()))
