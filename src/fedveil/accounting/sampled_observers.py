"""Observers of a run whose records draw their own rounds: to whom the draws are secret, and who knows them.

A server that adds up sums in which every client takes part in every round learns nothing of the draws. One that sees
who takes part may know them, and then every round that the record may join counts. Theory page: sampled-shift.md.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedveil.accounting.curious import NOBODY
from fedveil.accounting.evaluator import Evaluator, withdrawn
from fedveil.accounting.hidden import per_round, rounds_of
from fedveil.accounting.last_iterate import evaluators
from fedveil.accounting.participation import ONE_HOLDER, SERVERS, Participation
from fedveil.accounting.sampled import sampled_evaluators
from fedveil.core.limits import PASSES
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import LastIterate


def sampled_views(run: LastIterate, adversary: Adversary, who: Participation) -> Sequence[Evaluator]:
    """Return every bound on what this observer learns."""
    batch = per_round(run.batch, run)
    if who.alone and adversary in SERVERS:
        return seen(run, f"{ONE_HOLDER}, whose draws are its secret")
    match adversary:
        case "final-model":
            return sampled_evaluators(run)
        case "every-model":
            return seen(run, "every model seen, the record's draws secret")
        case "curious-client":
            # Noise that the clients add is shared by all of them, whoever draws a round: one of them knows its share.
            left = np.full_like(batch, (who.clients - 1) / max(who.clients, 1))
            return _curious(run, who, left)
        case "server-with-secure-aggregation":
            return _summed(run, who, batch)
        case _:
            why = "each unit's own noisy update seen: local, in every round that it may join"
            return _with_known_draws(replace(run, batch=1), why)


def sampled_views_of_shares(
    run: LastIterate, adversary: Adversary, who: Participation, *, everyone: bool, honest: Vector, beside: Vector
) -> Sequence[Evaluator]:
    """Return every bound on what this observer learns if the clients add the noise in shares.

    ``honest``: clients of each round whose shares make up the planned noise; ``beside``: how much of its variance a
    curious client does not know. ``everyone``: every client sends in every round, if only its noise. Then not even who
    sees single messages sees the draws: each message is its client's sum of drawn records with noise of its own.
    """
    match adversary:
        case "final-model" | "every-model":
            return sampled_views(run, adversary, who)
        case "curious-client":
            return _curious(run, who, beside)
        case "server-with-secure-aggregation":
            noisy, what = run, "every sum seen, with the planned noise of the honest clients that answer"
        case _:
            noisy, what = _noisy(run, 1 / honest), "each client's own update seen with its own share of the noise"
    if everyone:
        return seen(noisy, f"{what}; every client takes part in every round, so the draws stay secret")
    return _with_known_draws(
        noisy, f"{what}; the server sees who takes part: every round that the unit may join counts"
    )


def _curious(run: LastIterate, who: Participation, left: Vector) -> Sequence[Evaluator]:
    """Return bounds for a curious client, which knows its own records, draws and noise.

    The draws and the noise of the victim are independent of all that.
    """
    if who.clients == 1:
        return seen(run, NOBODY)
    return seen(_noisy(run, left), "every model counted as seen, its own noise taken off, the draws secret")


def seen(run: LastIterate, why: str) -> Sequence[Evaluator]:
    """Return the bound that counts every noisy sum as seen."""
    return [replace(bound, reason=why) for bound in sampled_evaluators(run) if bound.name == "unhidden"]


def known_draws(run: LastIterate) -> LastIterate:
    """Return the run as seen by someone who knows the draws: the unit joins every round that it may join.

    Independent draws are one round a pass, whichever it is: the worst of each, which need not be the same in all. A
    poisson order may join all rounds: as many passes of one round each.
    """
    run = replace(run, further=None)
    if run.order == "independent":
        public = replace(run, order="public", records=None, largest_batch=None)
        rounds = rounds_of(public)
        ratios = (rounds.swap / rounds.noise).reshape(run.passes, -1)
        if bool(np.any(np.all(ratios == ratios.max(axis=1, keepdims=True), axis=0))):
            return public  # one place is the worst in every pass
        worst = 2 * run.lipschitz / ratios.max(axis=1)
        return replace(public, rounds=1, batch=1, step_size=1.0, noise_std=tuple(worst.tolist()))
    if isinstance(run.batch, tuple) or run.total > PASSES:
        return replace(run, rate=1.0)
    steps, noise = (tuple(per_round(values, run).tolist()) for values in (run.step_size, run.noise_std))
    return replace(
        run,
        order="public",
        rate=None,
        records=None,
        largest_batch=None,
        rounds=1,
        passes=run.total,
        step_size=steps,
        noise_std=noise,
    )


def _summed(run: LastIterate, who: Participation, batch: Vector) -> Sequence[Evaluator]:
    missing = float(who.colluders + who.dropouts)
    left = np.maximum(batch - missing, 0.0) / batch
    if not bool(np.all(left > 0)):
        why = f"{missing:g} units may add no noise that counts, and a round has {np.min(batch):g}"
        return [withdrawn("unhidden", why)]
    noisy = _noisy(run, left)
    if who.every_round:
        return seen(noisy, "every sum seen; every client takes part in every round, so the draws stay secret")
    why = "every sum seen, and the server sees who takes part: every round that the unit may join counts"
    return _with_known_draws(noisy, why)


def _with_known_draws(run: LastIterate, why: str) -> Sequence[Evaluator]:
    public = known_draws(run)
    if public.sampled:
        return seen(public, why)
    return [replace(bound, reason=why) for bound in evaluators(public) if bound.name == "unhidden"]


def _noisy(run: LastIterate, variance: Vector) -> LastIterate:
    """Return the run with this share of each round's variance."""
    noise = per_round(run.noise_std, run) * np.sqrt(variance)
    same = bool(np.all(noise == noise[0]))
    return replace(run, noise_std=float(noise[0]) if same else tuple(noise.tolist()))
