"""The assumptions of hidden training's guarantees, and facts about a run, as rows for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedveil.accounting.hidden import per_round
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.train.hidden.crowd import chance_of_a_larger_batch, steepness
from fedveil.stages.train.hidden.method import Hidden
from fedveil.stages.train.setup import Setup
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
    "secret": "secret",
    "public": "public",
    "poisson": "poisson: a secret coin of its own for every unit and round",
    "independent": "independent: every unit picks one round of each pass, secretly",
}


def fact_rows(method: Hidden, setup: Setup) -> Sequence[tuple[str, str]]:
    """Return facts about order, rounds and noise."""
    run, unit = method.run, setup.target.unit
    batch = f"{run.batch:,}" if isinstance(run.batch, int) else f"{min(run.batch):,} to {max(run.batch):,}"
    return [
        ("order", _ORDERS[run.order]),
        ("rounds", f"{run.passes:,} x {run.rounds:,} of {'about ' if run.sampled else ''}{batch} {unit}s"),
        ("step", _ends(run.step_size)),
        (f"noise a {unit}", _ends(run.noise_std)),
        ("released", "the last model" if run.stopping == "end" else "the model after a random round"),
    ]


def _ends(values: float | tuple[float, ...]) -> str:
    return f"{values:.4g}" if isinstance(values, float) else f"{values[0]:.4g} to {values[-1]:.4g}"
