"""What a curious client or server learns: its own rounds, and who took part in them.

It is sent a model at the beginning of each round it takes part in. Between two such looks, the run is hidden from it.
Theory page: observers.md.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from fedveil.accounting.evaluator import Evaluator, mean_theta, moves_of, withdrawn
from fedveil.accounting.hidden import hidden_run, per_round, rounds_of
from fedveil.accounting.last_iterate import evaluators
from fedveil.accounting.participation import Participation, units_of
from fedveil.accounting.sampled import sampled_evaluators
from fedveil.core.errors import require
from fedveil.core.limits import PASSES
from fedveil.core.values import Indices, Vector
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import NO_FURTHER_ROUNDS, LastIterate
from fedveil.theory.views import (
    Dealt,
    Look,
    SeenStars,
    Stretches,
    looked_at_mu,
    looks_of_many_rounds,
    looks_of_one_round,
    seen_stars,
)

# Who takes part with how much, as far as an observer inside the run is concerned.

SERVERS: Final = ("server-with-secure-aggregation", "server")
ONE_HOLDER: Final = "one client holds all units and adds all of the noise: its update is the round's noised sum"


_MOST_ROUNDS = 200_000  # most rounds in all for which stretches between looks are followed
_MOST_MUS = 4_000_000  # most numbers computed
_MOST_OWN = 24  # most different numbers of the client's units in the victim's round
_MOST_PAIRS = {True: 40_000, False: 1_200_000}  # most rounds, or pairs of rounds, for which positions are coupled
_MOST_PLACES = 4000  # most rounds of a pass for which they are
_MERGED = 4096  # number of different mu that are kept

NOBODY = "there is no other client: whoever is sent models knows none of the noise, and sees every model at most"

Mus = tuple[Vector, Vector]  # mu and its weight


def curious_bounds(run: LastIterate, who: Participation) -> Sequence[Evaluator]:
    """Return all bounds against one honest but curious client that does not hold the victim."""
    if who.clients == 1:
        return [replace(next(e for e in evaluators(run) if e.name == "unhidden"), reason=NOBODY)]
    held, units = who.largest_client, units_of(run)
    require(held < units, "Participation.largest_client", f"leave a unit of the {units} to another client", held)
    if not who.every_round:
        smallest = min(run.batch) if isinstance(run.batch, tuple) else run.batch
        hint = "Is every_round meant?"
        require(held <= smallest, "Participation.largest_client", f"fit into a round, {smallest}", held, hint)
    if run.noise == "laplace":
        dealt = run if secret_from_client(run, who) else replace(run, order="public")
        seen = next(bound for bound in evaluators(dealt) if bound.name == "unhidden")
        why = "every model counted as seen; the victim is alone in its round, so no noise there is the client's"
        return [replace(seen, reason=why), withdrawn("segments", "stated for Gaussian noise")]
    return [_unhidden(run, who), _segments(run, who), _position(run, who)]


def secret_from_client(run: LastIterate, who: Participation) -> bool:
    """Return whether averaging over places is allowed: the order is secret and the batches have equal sizes."""
    return run.order == "secret" and who.uniform(run)


def _why_places(run: LastIterate, who: Participation) -> str:
    if secret_from_client(run, who):
        return "mean over the rounds of victim and client"
    uneven = "; clients are not dealt in equal lots" if run.order == "secret" else ""
    return "worst rounds of victim and client" + uneven


def _unhidden(run: LastIterate, who: Participation) -> Evaluator:
    why = "every model counted as seen, the client's own noise taken off; " + _why_places(run, who)
    looks = [replace(look, distance=1) for look in _looks(run, who, np.array([1]), _MOST_OWN)]
    mus = _mus(run, looks, who)
    here = slice(None) if run.place is None else slice(run.place - 1, run.place)
    each = np.stack([seen for seen, _ in _seen(run, looks)])[:, :, here]  # by look, pass and round
    moves = moves_of((float(most), 1) for most in each.max(axis=(0, 2)))
    return Evaluator("unhidden", "certified", why, lambda e: mean_theta(mus, e), moves)


def _segments(run: LastIterate, who: Participation) -> Evaluator:
    name = "segments"
    if run.stopping == "random":
        return withdrawn(name, "worked out for a fixed last round")
    if run.total > _MOST_ROUNDS:
        return withdrawn(name, f"worked out for up to {_MOST_ROUNDS} rounds in all")
    why = "hidden between the rounds of the client, who is sent models in those only; " + _why_places(run, who)
    return Evaluator(name, "certified", why, _segments_log_delta(run, who))


@lru_cache(maxsize=8)
def _segments_log_delta(run: LastIterate, who: Participation) -> Callable[[float], float]:
    kinds = max(12, _MOST_MUS // run.total)  # any number is valid
    alone = who.largest_client == 1 or not who.every_round
    most = 2 if alone else min(_MOST_OWN, max(3, math.isqrt(kinds)))
    distances = _distances(run.rounds, max(6, min(64, kinds // most)))
    mus = _mus(run, _looks(run, who, distances, most), who)
    return lambda e: mean_theta(mus, e)


def _position(run: LastIterate, who: Participation) -> Evaluator:
    name = "position"
    if not secret_from_client(run, who):
        return withdrawn(name, "the order is public, or clients are not dealt in equal lots")
    if who.largest_client > 1:
        return withdrawn(name, "worked out for clients with one unit each")
    if run.stopping == "random" or isinstance(run.batch, tuple) or run.rounds == 1:
        return withdrawn(name, "needs a fixed last round, batches of one size and at least two of them")
    state = hidden_run(run)
    if not state.rounds.contracts or state.rounds.deep:
        return withdrawn(name, "gaps cannot be followed through all rounds")
    work = run.total if state.constant else run.total * run.rounds
    if work > _MOST_PAIRS[state.constant] or run.rounds > _MOST_PLACES:
        return withdrawn(name, f"worked out for fewer rounds than {run.rounds} in each of {run.passes} passes")
    why = "the client does not know the victim's round, and views with the victim in different rounds are alike"
    return Evaluator(name, "certified", why, lambda e: _stars(run).log_delta(e))


@lru_cache(maxsize=8)
def _stars(run: LastIterate) -> SeenStars:
    batch = run.batch if isinstance(run.batch, int) else 1
    return seen_stars(Dealt(rounds=hidden_run(run).rounds, places=run.rounds, batch=batch, units=units_of(run)))


def _distances(rounds: int, most: int) -> Indices:
    """Return 1, 2, 3, ...

    and then more and more widely spaced, below ``rounds``; a look is charged at the one before.
    """
    if rounds <= most:
        return np.arange(1, max(rounds, 2))
    near = most // 2
    return np.unique(np.append(np.arange(1, near), np.geomspace(near, rounds - 1, most - near).astype(np.intp)))


def _looks(run: LastIterate, who: Participation, distances: Indices, most: int) -> Iterable[Look]:
    """Return what the client may see of each place, and the chances; for a public order, everything possible."""
    batch, held = per_round(run.batch, run)[: run.rounds], who.largest_client
    alone = held == 1 or not who.every_round
    if secret_from_client(run, who):
        if alone:
            return looks_of_one_round(batch, units_of(run), held, distances)
        return looks_of_many_rounds(batch, units_of(run), held, distances, most)
    sure = np.ones(run.rounds)
    known = np.minimum(float(held), batch - 1) if not alone else np.where(batch > held, float(held), 0.0)
    due = run.rounds if alone else 1
    return [Look(1, sure, sure), Look(due, (batch - known) / batch, sure)]


def _mus(run: LastIterate, looks: Iterable[Look], who: Participation) -> Mus:
    """Return mu and weight of every kind of view; only the largest mu if the worst case counts."""
    state = hidden_run(run)
    result, chances = [], []
    for each, chance_of in _seen(run, looks):
        result.append(np.sqrt(np.sum(each**2, axis=0)))
        chances.append(chance_of)
    mus, chance = np.stack(result), np.stack(chances)
    if state.weights is None or not secret_from_client(run, who):
        here = slice(None) if run.place is None else slice(run.place - 1, run.place)
        return np.array([np.max(mus[:, here])]), np.ones(1)
    return merged(mus.ravel(), (chance * state.weights).ravel())


def _seen(run: LastIterate, looks: Iterable[Look]) -> Iterator[tuple[Vector, Vector]]:
    """Yield for each look: mu of each use (a row for each pass), and the chance of the look at each place."""
    rounds = hidden_run(run).rounds
    stretches = Stretches(rounds)
    between: dict[int, tuple[Vector, Vector]] = {}
    for look in looks:
        if look.distance not in between:
            between[look.distance] = stretches.after(look.distance)
        each = looked_at_mu(rounds, between[look.distance], np.tile(look.left, run.passes))
        yield each.reshape(run.passes, run.rounds), look.chance


def merged(mus: Vector, weights: Vector) -> Mus:
    """Merge to at most a few thousand values: neighbouring values are charged at the largest of them."""
    mus, weights = mus[weights > 0], weights[weights > 0]
    order = np.argsort(mus)
    mus, weights = mus[order], weights[order]
    first = np.unique(np.linspace(0, mus.size, min(mus.size, _MERGED), endpoint=False).astype(np.intp))
    return np.maximum.reduceat(mus, first), np.add.reduceat(weights, first)


# Observers of a run whose records draw their own rounds: to whom the draws are secret, and who knows them.
#
# A server that adds up sums in which every client takes part in every round learns nothing of the draws. One that sees
# who takes part may know them, and then every round that the record may join counts. Theory page: sampled-shift.md.


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
    run = replace(run, further=NO_FURTHER_ROUNDS)
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
