"""The assumptions of the guarantees of federated averaging, and facts about a run, as rows for people."""

from __future__ import annotations

from fedveil.data.records import DataShape
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.trust import Trust
from fedveil.stages.train.base import Setup
from fedveil.stages.train.fedavg.method import FedAvg, correlated_rows, segment_words, segments_of
from fedveil.stages.train.share_words import ADDED, SENT_ALWAYS, SUMS_ALONE, Row, span, words_of


def assumption_rows(method: FedAvg, adversary: Adversary, setup: Setup) -> list[Row]:
    """Return clipping, divisor, sampling and noise, and what this observer is trusted with."""
    data, trust = setup.data, setup.trust
    if method.noiseless:
        return [("noise", "none", "the study asked for none: nothing is promised to anybody")]
    bound = [("update bound", _shown(method, "update_norm", data), "every update is clipped to it and cut to the grid")]
    if method.adaptive:
        how = "every update is clipped to the present one, and cut to the grid in units of it"
        bound = method.adaptive.rows(f"{method.update_norm:.12g}", how)
    rows = [
        *bound,
        ("fixed divisor", _shown(method, "divisor", data), "sums divide by the plan's number, whoever answers"),
        ("noise of a sum", _shown(method, "noise_std", data), "drawn for every round, also when nobody answers"),
    ]
    if method.segments:
        how = "each is charged with its own cohort and noise, and all are composed exactly"
        rows.append(("segments", segment_words(method), how))
    if method.weights == "records":
        rows.append(("largest weight", f"1, at {method.most_records} records", "larger clients count no more"))
    taking_part = correlated_rows(method, trust) or _sampling_rows(method, adversary, data, trust)
    rows += [*taking_part, *_observer_rows(method, adversary, trust)]
    return [*rows, *words_of(trust).closing(adversary, method.cohorts(setup), SENT_ALWAYS)]


def _sampling_rows(method: FedAvg, adversary: Adversary, data: DataShape, trust: Trust) -> list[Row]:
    server = adversary.startswith("server")
    known = server and not method.hides_draws(trust)
    if method.sampling == "all" or (known and not method.picks):
        return [("a client takes part in", "every round", "the worst case for those who know who takes part")]
    if known:
        return [("a client takes part in", "one round of each pass", "whichever it is: this observer may know")]
    rates = tuple(part.cohort / data.clients for part in segments_of(method).parts)
    rate = f"{span(rates)} of the clients, {method.sampling}"
    if method.own_draws:
        return [("secret draws of the clients", rate, words_of(trust).draws)]
    how = words_of(trust).drawn("drawn from the run's key in every round, never written down")
    return [("secret cohorts", rate, how)]


def _observer_rows(method: FedAvg, adversary: Adversary, trust: Trust) -> list[Row]:
    """Return what this observer is trusted with."""
    said = words_of(trust)
    given = said.if_central(ADDED) if method.noise == "shared" else []
    server = ("the server is trusted", "declared", "declared: it sees more than this observer")
    match adversary:
        case "curious-client":
            alone = ("a single client, not the victim", "1 client", "declared: clients do not pool what they see")
            return [alone, server, *given]
        case "final-model" | "every-model":
            return [server, *given]
        case "server-with-secure-aggregation":
            return said.if_central(SUMS_ALONE, ADDED)
        case _:
            return said.if_central(ADDED)


def _shown(method: FedAvg, name: str, data: DataShape) -> str:
    """Return a number of the method in words, from the least to the largest of its segments."""
    values = [p.divisor(data) if name == "divisor" else getattr(p, name) for p in segments_of(method).parts]
    low, high = min(values), max(values)
    return f"{low:.12g}" if low == high else f"{low:.12g} to {high:.12g}"


def fact_rows(method: FedAvg, setup: Setup) -> list[tuple[str, str]]:
    """Return facts about cohorts, local work and noise."""
    local, server = method.local, method.optimiser
    batch = f"batches of {local.batch:,}" if local.batch else "all records at once"
    places = {"central": "by the server", "shared": "in shares by the clients", "none": "by nobody"}
    parted = [("segments", segment_words(method))] if method.segments else []
    moving = "" if not method.adaptive else f" at the start, then {method.adaptive.words()}"
    if local.mean_gradient:
        batch += ", their gradient as it is"
    pulled = f", pulled towards the global model by {local.proximal:.4g}" if local.proximal else ""
    steps = "momentum" if server.kind == "momentum" else f"{server.kind}, momentum"
    return [
        ("rounds", f"{method.rounds:,}"),
        *parted,
        ("clients a round", f"{method.cohort:,.6g} of {setup.data.clients:,} ({method.sampling})"),
        ("local training", f"{local.epochs:,} epochs, {batch}, step {local.step:.4g}{pulled}"),
        ("updates clipped to", f"{method.update_norm:.4g}{moving}"),
        ("noise multiplier", f"{method.noise_multiplier:.4g}, added {places[method.noise]}"),
        *([] if not method.correlated else [("noise over rounds", method.correlated.words())]),
        ("server", f"step {method.server_step:.4g}, {steps} {server.momentum:.4g}, weights {method.weights}"),
    ]
