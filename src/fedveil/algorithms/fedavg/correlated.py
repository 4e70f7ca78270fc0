"""Federated averaging with noise that is correlated over rounds: who takes part when, and what each observer sees."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedveil.algorithms.correlation import Correlation, checked_table, correlation_of
from fedveil.algorithms.setup import Setup
from fedveil.algorithms.share_words import Row, words_of
from fedveil.checks import require
from fedveil.guarantee import Adversary
from fedveil.mechanism import Mechanism
from fedveil.theory.grid import LARGEST_STATE
from fedveil.trust import Trust

if TYPE_CHECKING:
    from fedveil.algorithms.fedavg.method import FedAvg


def correlation_in(method: FedAvg) -> Correlation | None:
    """Return how a method's noise is correlated; None if it is independent from round to round."""
    return correlation_of(method.correlation, method.rounds)


def groups_of(method: FedAvg, clients: int) -> int:
    """Return after how many rounds a client is asked again: so many groups of clients take turns."""
    return 1 if method.sampling == "all" else -(-clients // int(method.cohort))


def check_correlation(method: FedAvg) -> None:
    """Refuse what correlated noise is not proved for, and groups that take turns without it."""
    object.__setattr__(method, "correlation", checked_table(method.correlation))
    found = correlation_in(method)
    if found is None:
        plain = method.sampling != "cyclic" or method.noise == "none"
        hint = 'Groups that take turns go with noise = "correlated"; with bands = 1 that noise is independent.'
        require(plain, "fedavg.sampling", "not be cyclic without correlated noise", method.sampling, hint)
        return
    hint = "Then the plan says how often, and after how many rounds, a client is asked again."
    known = method.sampling in ("cyclic", "all")
    require(known, "fedavg.sampling", "be cyclic or all for correlated noise", method.sampling, hint)
    require(method.noise != "none", "fedavg.noise", "not be none with a correlation", method.noise)
    fixed = method.clip_quantile is None and method.segments is None
    hint = "The matrix is made for rounds that are alike."
    require(fixed, "algorithm.noise", "be correlated without adaptive clips and segments", "both", hint)


def check_pattern(method: FedAvg, clients: int) -> None:
    """Refuse a pattern that this number of clients cannot keep."""
    found = correlation_in(method)
    if found is None:
        return
    groups = min(groups_of(method, clients), method.rounds)
    hint = f"{clients} clients make {groups} groups of at most {method.cohort:g} that take turns: ask fewer in a round."
    rule = f"be at most {groups}, the rounds after which a client is asked again"
    require(found.separation <= groups, "algorithm.correlation.separation", rule, found.separation, hint)
    needed = -(-method.rounds // groups)
    rule = f"be at least {needed}, the rounds that a client is asked in"
    require(found.participations >= needed, "algorithm.correlation.participations", rule, found.participations, hint)


def check_trust(method: FedAvg) -> None:
    """Refuse a matrix for which a client would have to send more than one earlier update again."""
    found = correlation_in(method)
    if found is None:
        return
    hint = "With [trust] a client sends its last update again for as many rounds as there are bands; buffers never end."
    require(
        found.factor.banded, "algorithm.correlation.buffers", "be left out with [trust]", len(found.factor.scales), hint
    )
    rule = f"be at most {found.separation} with [trust], the rounds after which a client is asked again"
    hint = "With [trust] a client keeps one update to send again: it must have left the bands before the next one."
    bands = len(found.factor.column)
    require(bands <= found.separation, "algorithm.correlation.bands", rule, bands, hint)


def seen_together(method: FedAvg, found: Correlation, adversary: Adversary, setup: Setup) -> Mechanism | None:
    """Return what this observer sees of a client in all rounds: one Gaussian; None if it knows all of the noise.

    Who takes part when is known to everybody here. Where clients share the noise, each adds a stream of its own in
    every round, whether it is asked for an update or not.
    """
    trust, clients, noise = setup.trust, setup.data.clients, method.noise_multiplier
    if method.noise == "central" and adversary in ("server", "server-with-secure-aggregation"):
        return None
    if method.noise == "shared" and adversary == "server":  # each update comes with its own stream, and a name
        noise /= math.sqrt(trust.honest(clients))
    elif method.noise == "shared" and adversary == "curious-client":  # it knows its own stream
        noise *= math.sqrt(trust.unknown(clients))
    return found.charged(noise, setup.target.neighbours)


def distance_of(method: FedAvg, found: Correlation, setup: Setup, exponent: int) -> float:
    """Return how far the run's law is from that of ideal noise, in units of the noise: what is taken off is rounded.

    For noise that one party draws; with shares of the clients nothing is taken off before the sums are seen. Updates
    are whole numbers of steps already. Where the noise stands for streams of the clients, one stream by itself is
    rounded too, and an observer may know half of the noise: what is charged covers both.
    """
    unit, clients = 2.0**exponent, setup.data.clients
    parties = clients if method.noise == "shared" else 1
    steps = method.noise_std / unit / math.sqrt(parties)
    largest = found.factor.largest(method.noise_std / unit, method.rounds)
    exact = clients * method.scale / unit + largest <= LARGEST_STATE
    known = math.sqrt(2.0) if parties > 1 else 1.0
    away = found.factor.rounding(steps, method.rounds) * parties * math.sqrt(setup.dimension * method.rounds)
    return away * known * unit / method.noise_std * (1 + 1e-9) if exact else math.inf


def correlated_rows(method: FedAvg, trust: Trust) -> list[Row]:
    """Return what the guarantee assumes of correlated noise, and of those who add it."""
    found = correlation_in(method)
    if found is None:
        return []
    said, (made, *others) = words_of(trust), found.rows()
    how = "every client sends its last update again, weighted by the matrix and cut towards zero, with fresh noise; "
    how += "the server takes off what was sent before"
    rows = [*(said.if_central(made) or [(made[0], made[1], how)]), *others]
    if method.noise == "shared":
        how = "declared: also in rounds in which it is asked for no update; a stream with a gap protects nobody"
        rows += said.if_central(("every client adds its own stream of noise", "in every round, none missing", how))
    return rows
