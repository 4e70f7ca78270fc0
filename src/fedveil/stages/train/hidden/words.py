"""The assumptions of hidden training's guarantees, and facts about a run, as rows for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedveil.accounting.hidden import per_round
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.train.base import Setup
from fedveil.stages.train.hidden.method import Hidden, chance_of_a_larger_batch, steepness
from fedveil.stages.train.share_words import (
    ADDED,
    SENT_ALWAYS,
    SUMS_ALONE,
    CentralWords,
    Row,
    company_rows,
    span,
    words_of,
)

_SERVER: Row = ("the server is trusted", "declared", "declared: it sees more than this observer")
_ALONE: Row = (
    "one client holds all records",
    "it deals them and adds all of the noise",
    "so in this process: anybody else gets its noised sums at most",
)
_SENT: Row = ("it is sent a model only when it takes part", "declared", "declared: so in this process")


def assumption_rows(method: Hidden, adversary: Adversary, setup: Setup) -> Sequence[Row]:
    """Return everything that the guarantee against this observer assumes, besides what every algorithm does."""
    trust, said = setup.trust, words_of(setup.trust)
    company = company_rows(setup.model, method.run.sampled)
    rows = [*_units(method), *company, *_noise(method, said)]
    if setup.data.clients == 1 and not trust.shared and adversary not in ("final-model", "every-model"):
        return [*rows, *_order(method, said), _ALONE, *said.closing(adversary, method.cohorts(setup), _SENT)]
    if adversary == "final-model" or (adversary == "curious-client" and not method.run.sampled):
        rows += [*_steps(method), *_hiding(method, said)]
    elif adversary in ("every-model", "curious-client") or (method.run.sampled and trust.all_send):
        rows += _order(method, said)  # where noise differs between rounds, not to know a unit's own round counts
    rows += _observer(method, adversary, setup.held, said)
    seen = method.everyone or trust.key_holder == "clients"
    return [*rows, *said.closing(adversary, method.cohorts(setup), SENT_ALWAYS if seen else _SENT)]


def _units(method: Hidden) -> list[Row]:
    run = method.run
    once = "at most one round of each pass" if run.rounds > 1 else "every round"
    how, who = "the rounds are slices of one permutation", "joins" if run.sampled else "answers"
    if run.order == "poisson":
        once, how = f"every round with chance {run.rate:.6g}", "by a coin of its own for every round"
    elif run.order == "independent":
        once, how = f"one of {run.rounds} rounds of each pass", "picked uniformly by a draw of its own for every pass"
    return [
        ("gradient bound", f"{run.lipschitz:.12g}", "every record's gradient is clipped to it before it is averaged"),
        ("a unit takes part in", once, how),
        ("fixed divisor", f"{span(run.batch)} units", f"averages divide by the planned batch, whoever {who}"),
    ]


def _noise(method: Hidden, said: CentralWords) -> list[Row]:
    run = method.run
    law = "normal" if run.noise == "gaussian" else "Laplace"
    return [(f"noise per unit ({law})", f"{span(run.noise_std)}", said.noise)]


def _steps(method: Hidden) -> list[Row]:
    run = method.run
    if run.smoothness is None or not run.convex:
        return [("convexity", "not used", "only bounds that do without it are offered")]
    if run.sampled:
        return [*_sampled_steps(run), *_curvature(run)]
    largest = float(np.max(per_round(run.step_size, run)))
    limit = f"{largest:.6g} <= {2 / run.smoothness:.6g}" if largest <= 2 / run.smoothness else f"{largest:.6g}"
    held = "checked when the plan was made" if largest <= 2 / run.smoothness else "not met: the growth is charged"
    rows = [
        ("step_size <= 2/smoothness", limit, held),
        ("smoothness", f"{run.smoothness:.12g}", "derived from the loss and the feature bound"),
    ]
    return rows + _curvature(run)


def _sampled_steps(run: LastIterate) -> list[Row]:
    """Return rows about steps of rounds that more units may join than are planned."""
    if run.largest_batch is None:
        return []
    largest = float(np.max(per_round(run.step_size, run) * steepness(run, float(run.largest_batch))))
    limit = f"{largest:.6g} <= 2" if largest <= 2 else f"{largest:.6g}"
    held = "checked when the plan was made" if largest <= 2 else "not met: the growth is charged"
    chance = chance_of_a_larger_batch(run)
    more = f"accounted for up to so many; the chance of more in any round, at most {chance:.2g}, is in delta"
    return [
        ("units that join a round", f"at most {run.largest_batch}", more),
        ("step_size * smoothness of such a round", limit, held),
        ("smoothness of a unit", f"{run.smoothness:.12g}", "derived from the loss and the feature bound"),
    ]


def _curvature(run: LastIterate) -> list[Row]:
    rows: list[Row] = []
    if run.strong_convexity:
        rows.append(("strong convexity", f"{run.strong_convexity:.12g}", "the l2 term of the loss"))
    if run.diameter is not None:
        rows.append(("diameter", f"{run.diameter:.12g}", "the model is projected before every step"))
    return rows


def _hiding(method: Hidden, said: CentralWords) -> list[Row]:
    kept = "they are kept in memory and in private checkpoints only; whoever copies those voids it"
    rows = [("intermediate models stay hidden", f"{method.run.total} rounds", kept), *_order(method, said)]
    if method.run.stopping == "random":
        rows.append(("random stopping", "uniform", said.drawn("drawn from the run's key, never written down")))
    return rows


def _order(method: Hidden, said: CentralWords) -> list[Row]:
    if method.run.sampled:
        return [("secret draws", "of every unit, for itself", said.draws)]
    if method.run.order != "secret":
        return []
    how = said.drawn("drawn from the run's key, never written down")
    return [("secret order", f"{method.run.rounds} rounds a pass", how)]


def _observer(method: Hidden, adversary: Adversary, held: int, said: CentralWords) -> list[Row]:
    """Return what this observer is trusted with."""
    match adversary:
        case "final-model" | "every-model":
            return [_SERVER]
        case "curious-client":
            if method.run.sampled:
                own = ("a single client, not the victim's", f"at most {held} units", "it knows its own draws alone")
                return [own, _SERVER]
            alone = ("a single client, not the victim's", f"at most {held} units", "the plan's data shape")
            return [alone, *said.if_central(_SENT), _SERVER]
        case "server-with-secure-aggregation":
            why = "counted as known: only where clients add shares of the noise do all take part in every round"
            draws = [("the draws", "known to the server", why)] if method.run.sampled else []
            return said.if_central(SUMS_ALONE, ADDED, *draws)
        case _:
            return said.if_central(("every client adds its share of the noise", "before it sends", "declared"))


_ORDERS = {
    "secret": "each {unit} is used in one round of a pass, dealt once and secretly",
    "public": "each {unit} is used in one round of a pass, in a public order",
    "poisson": "each {unit} joins each round by its own secret coin (Poisson sampling)",
    "independent": "each {unit} secretly picks one round of each pass (random allocation)",
}


def fact_rows(method: Hidden, setup: Setup) -> Sequence[tuple[str, str]]:
    """Return facts about order, rounds and noise."""
    run, unit = method.run, setup.target.counted
    batch = f"{run.batch:,}" if isinstance(run.batch, int) else f"{min(run.batch):,} to {max(run.batch):,}"
    passes = f"{run.passes:,} passes of {run.rounds:,} rounds" if run.passes > 1 else f"{run.rounds:,} rounds"
    each, about = " each" if run.rounds * run.passes > 1 else "", "about " if run.sampled else ""
    last = "only the last model" if run.stopping == "end" else "only the model after a random round"
    return [
        ("rounds", f"{passes} with {about}{batch} {unit}s{each}"),
        ("sampling", _ORDERS[run.order].format(unit=unit)),
        ("step size", _course(per_round(run.step_size, run))),
        ("noise", f"{_course(_noise_multipliers(run))} times the largest contribution of one {unit} to a round's sum"),
        ("released", last),
    ]


def _noise_multipliers(run: LastIterate) -> Vector:
    """The noise on the sum of each round, over the most that one unit adds to it."""
    noise, batch = per_round(run.noise_std, run), per_round(run.batch, run)
    on_the_sum = noise * (np.sqrt(batch) if run.noise == "gaussian" else batch)
    return np.asarray(on_the_sum / run.lipschitz, dtype=np.float64)


def _course(values: Vector) -> str:
    """One number, or the first and the last one, with the way between them where it has one."""
    first, last = float(values[0]), float(values[-1])
    if f"{first:.3g}" == f"{last:.3g}":
        return f"{first:.3g}"
    way = "falls " if np.all(np.diff(values) <= 0) else "rises " if np.all(np.diff(values) >= 0) else ""
    return f"{way}from {first:.3g} to {last:.3g}"
