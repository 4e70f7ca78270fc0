"""The assumptions of DP-SGD's guarantees, and facts about a run, as rows for people."""

from __future__ import annotations

from collections.abc import Sequence

from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.trust import Trust
from fedveil.stages.train.base import Setup
from fedveil.stages.train.dpsgd.cost import correlated_rows
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.settings import Choice
from fedveil.stages.train.share_words import ADDED, SENT_ALWAYS, SUMS_ALONE, Row, company_rows, words_of

_SHOWN = 6
_HOW = {
    "poisson": "every record joins each batch by a coin of its own, which nobody learns",
    "fixed-size": "every batch is drawn uniformly among all of its size, and nobody learns it",
    "shuffled": "every record is used at most once a pass: one release is charged for each pass",
    "cyclic": "every record is in the same batch of every pass, so it comes back after a whole pass",
    "independent": "every record picks one round of each pass by a draw of its own, which nobody learns",
}


def assumption_rows(method: DpSgd, adversary: Adversary, setup: Setup) -> list[Row]:
    """Return what every client does to each of its updates before it sends it."""
    what = "every record's gradient" if method.clipping == "individual" else "the mean gradient of every batch"
    settings = method.client_settings
    norm = _span([p.clip for p in settings])
    clip = [("clipping norm", norm, f"{what} is clipped to it at its client")]
    if method.adaptive:
        clip = method.adaptive.rows(norm, f"{what} is clipped to the present one at its client")
    return [
        *clip,
        ("sampling rate", _span([p.rate for p in settings]), _HOW[method.sampling]),
        *company_rows(setup.model, method.apart(setup.model)),
        ("fixed divisor", "rate times records", "never the number of records that a batch turned out to have"),
        ("noise over clipping norm", _span([p.noise for p in settings]), _drawn(method, setup)),
        *correlated_rows(method),
        *_rounds(method),
        ("the network", "not part of it", "its delays and losses do not depend on the data: declared"),
        *_taking_part(method, setup.trust),
        *_noise_rows(method, adversary, setup),
    ]


def _drawn(method: DpSgd, setup: Setup) -> str:
    """Return who draws the noise of a sum."""
    return "added at the client to every update" if method.local(setup) else words_of(setup.trust).noise


def _noise_rows(method: DpSgd, adversary: Adversary, setup: Setup) -> list[Row]:
    """Return what is assumed of who draws the noise, who answers and who looks."""
    said, cohorts = words_of(setup.trust), method.cohorts(setup)
    if method.local(setup):
        return said.windows(adversary, cohorts) if method.network.together else []
    alone: list[Row] = []
    if adversary == "server-with-secure-aggregation":
        alone = said.if_central(SUMS_ALONE, ADDED)
    elif adversary in ("server", "curious-client"):
        alone = said.if_central(ADDED)
    mixed: list[Row] = []
    if not method.network.together:
        how = "a window of fewer is not mixed; it takes one update of each client, and the others wait for the next"
        least = setup.trust.least(cohorts[0]) if setup.trust.shared else 1
        mixed = [("clients in a window", f"at least {least}, one update of each", how)]
    return [*mixed, *alone, *said.closing(adversary, cohorts, SENT_ALWAYS)]


def fact_rows(method: DpSgd, setup: Setup) -> list[tuple[str, str]]:
    """Return facts about sampling, rounds and noise."""
    settings = method.client_settings
    moving = "" if not method.adaptive else f" at the start, then {method.adaptive.words()}"
    return [
        ("sampling", f"{method.sampling}, rate {_span([p.rate for p in settings])}"),
        ("clipping", f"{method.clipping}, norm {_span([p.clip for p in settings])}{moving}"),
        *((name, value) for name, value, _ in _rounds(method)),
        ("noise over clipping norm", _span([p.noise for p in settings])),
        *([] if not method.correlated else [("noise over rounds", method.correlated.words())]),
        ("step", _span([p.step(turn) for p in settings for turn in (0, p.rounds - 1)])),
        *_optimised(method),
        ("sent", _sent(method, setup)),
    ]


def _optimised(method: DpSgd) -> list[tuple[str, str]]:
    """Return what is done with noised sums besides plain steps, where it is not momentum alone."""
    rows, optimiser = [], method.optimiser
    if optimiser.kind == "adam":
        rows.append(("optimizer", f"{optimiser.kind}, {optimiser.momentum:.6g} and {optimiser.beta2:.6g} of the past"))
    if optimiser.weight_decay:
        rows.append(("weight decay", f"{optimiser.weight_decay:.6g} times the step"))
    if method.average is not None:
        rows.append(("released", f"the moving average of the models, {method.average:.6g} of the past"))
    return rows


def _rounds(method: DpSgd) -> list[Row]:
    """Return how many rounds a client has, and how they are parted."""
    how, settings = "all are charged, lost ones too", method.client_settings
    if not method.segments:
        rows = [("rounds of a client", _span([float(p.rounds) for p in settings]), how)]
        if method.stops:
            why = "its own budget allows no more: by the plan's numbers, later updates are noise alone"
            rows.append(("rounds that use a client's records", _span([float(k) for k in method.stops]), why))
        return rows
    if method.choice:
        return _chosen(method, method.choice)
    parts = ", ".join(f"{p.rounds} of noise {p.noise:.6g}" for p in settings[:_SHOWN])
    parts += f" and {len(settings) - _SHOWN} more" if len(settings) > _SHOWN else ""
    what = "each is charged with its own rate and noise, and all are composed exactly"
    return [("rounds of a client", str(method.total), how), ("segments", parts, what)]


def _chosen(method: DpSgd, choice: Choice) -> list[Row]:
    """Return what may be chosen, how, and within which budget."""
    settings = method.client_settings
    parts = ", ".join(f"{p.rounds} of noise {p.noise:.6g}" for p in settings[:_SHOWN])
    parts += f" and {len(settings) - _SHOWN} more" if len(settings) > _SHOWN else ""
    counted = "inverse squared noise multipliers" if method.sampling == "shuffled" else "rounds that are all alike"
    counted = "passes that are all alike" if method.sampling == "independent" else counted
    how = "all of it is charged, whatever is chosen; a segment that would overspend is refused before its first round"
    rule = "by released models and public records alone"
    return [
        ("rounds of a client", f"at most {method.total}", "the whole budget is charged, however many there are"),
        ("segments to choose from", parts, f"{choice.rule}: {choice.words()}, {rule}"),
        ("budget of all chosen segments", f"{choice.budget:.6g} ({counted})", how),
    ]


def _taking_part(method: DpSgd, trust: Trust) -> list[Row]:
    """Why nobody learns the draws from who takes part: all clients do, whatever their records picked."""
    if method.sampling != "independent":
        return []
    how = "a client whose batch is empty sends its noise like any other, so not even a server that sees single "
    how += "updates learns the draws: they count in favour of every row of this certificate"
    rows = [("every client takes part in each of its rounds", "with an empty batch if need be", how)]
    if trust.dropouts and trust.noise == "local":  # shares say it in their own rows
        why = "declared: who is missing depends on no record and on no draw"
        rows.append(("clients are missing by chance", f"at most {trust.dropouts} a round", why))
    return rows


def _sent(method: DpSgd, setup: Setup) -> str:
    if method.local(setup):
        return "every update, noised at its client" + _shrunk(method)
    shares = "a client's sums with its share of the noise"
    return shares if setup.trust.shared else "a client's sums, to the party that draws the noise"


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"


def _shrunk(method: DpSgd) -> str:
    match method.compression.kind:
        case "none":
            return ""
        case "quantised":
            return f", then rounded to {method.compression.levels} levels"
        case "rotated":
            return f", then rotated and rounded to {method.compression.levels} levels"
        case _:
            return f", then {method.compression.kind} with {method.compression.keep:.0%} kept"
