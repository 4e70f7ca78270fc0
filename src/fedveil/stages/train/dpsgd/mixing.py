"""How the sums of DP-SGD's clients are mixed under one noise, which the clients draw in shares or one party draws.

The server subtracts ``step * sum of pull_k * (sum of client k + noise)``. The client whose records pull most sets the
unit of the sums; what the others send is scaled down to it, so that one noise covers a record of any client. Page:
docs/dpsgd.md; proof: docs/theory/noise-shares.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.base import Setup
from fedveil.stages.train.dpsgd.rounds import DpSgdRounds
from fedveil.stages.train.dpsgd.settings import ClientSettings

_LOCAL = 'Or let every client add all of its noise: [trust] noise = "local".'


@dataclass(frozen=True, slots=True)
class Mixture:
    """The mixed sum of a round's clients.

    ``clip``: the largest contribution of a record (or clipped batch) to the sum; ``noise``: the planned standard
    deviation on the sum; ``pull``: what the noised sum is multiplied by, to be a mean gradient. ``factors``: by what
    a client's sum is multiplied at most before it is added up, one for each of the client settings.
    """

    clip: float
    noise: float
    pull: float
    factors: tuple[float, ...]


@lru_cache(maxsize=256)
def mixture(method: DpSgdRounds, setup: Setup, turn: int = 0) -> Mixture:
    """Return how the sums of a round are mixed, from public numbers alone."""
    parts = (method.settings(0, turn),) if method.segments else method.client_settings
    pulls = [_most_pull(method, index, settings, setup) for index, settings in enumerate(parts)]
    reach = [pull * method.scale(settings) for pull, settings in zip(pulls, parts, strict=True)]
    first = max(range(len(parts)), key=reach.__getitem__)
    noise = max(settings.noise * own for settings, own in zip(parts, reach, strict=True))
    pull = pulls[first]
    return Mixture(method.scale(parts[first]), noise / pull, pull, tuple(own / pull for own in pulls))


def factor_of(method: DpSgdRounds, setup: Setup, client: int, records: int, turn: int) -> float:
    """Return by what a client with so many records multiplies its sum before it is added up."""
    own, mixed = _pull(method, client, method.settings(client, turn), setup, records), mixture(method, setup, turn)
    return min(own / mixed.pull, mixed.factors[method.place(client)])


def in_window(method: DpSgdRounds, setup: Setup, turns: range) -> list[float]:
    """Return by what the sums of each round of a window are multiplied, so that all are in units of the first."""
    pulls = [mixture(method, setup, turn).pull for turn in turns]
    return [pull / pulls[0] for pull in pulls]


def window_noise(method: DpSgdRounds, setup: Setup, turns: range) -> float:
    """Return the planned deviation of a window's sum: that of its rounds together."""
    units = in_window(method, setup, turns)
    return math.hypot(*(mixture(method, setup, turn).noise * unit for turn, unit in zip(turns, units, strict=True)))


def _most_pull(method: DpSgdRounds, index: int, settings: ClientSettings, setup: Setup) -> float:
    """Return a pull that no client with these settings exceeds, whatever its number of records."""
    alone = len(method.client_settings) > 1 and not method.segments
    clients = [index] if alone or not method.weights else list(range(setup.data.clients))
    records = setup.data.largest_client if method.clipping == "batch" else setup.data.smallest_client
    return max(_pull(method, client, settings, setup, records) for client in clients)


def _pull(method: DpSgdRounds, client: int, settings: ClientSettings, setup: Setup, records: int) -> float:
    """Return what a client's sum is multiplied by in the mean; without weights all records of a round weigh the same.

    Where only some clients are asked in a window, they stand for all.
    """
    data, stands_for = setup.data, setup.data.clients / method.asked(setup)
    if not method.weights and method.clipping == "individual":
        return stands_for / (settings.rate * data.records)
    weight = method.weights[client] if method.weights else records / data.records
    return stands_for * (weight if method.clipping == "batch" else weight / (settings.rate * records))


def mean_divisor(method: DpSgdRounds, settings: ClientSettings, setup: Setup) -> float:
    """Return by what the noise of a round is divided in the mean; with batch clipping, a mean of clients' means."""
    if method.clipping == "individual":
        return settings.rate * setup.data.records
    largest = max(method.weights, default=setup.data.largest_client / setup.data.records)
    return method.asked(setup) / (largest * setup.data.clients)


def spread_of(method: DpSgdRounds, setup: Setup) -> float:
    """Return the variance on the mixed mean over that of one noise for all: the price of who draws the noise."""
    if method.local(setup):
        return float(setup.data.clients)
    return setup.trust.surplus(method.asked(setup))


def noise_left(method: DpSgdRounds, setup: Setup, adversary: Adversary) -> float:
    """Return the standard deviation that an observer surely does not know, over the planned one."""
    if method.local(setup):
        return 1.0
    return math.sqrt(setup.trust.left(adversary, method.asked(setup)))


def round_noise(method: DpSgdRounds, setup: Setup) -> Vector:
    """Return the planned deviation of the sum of every round."""
    return np.array([mixture(method, setup, turn).noise for turn in method.starts], dtype=np.float64)


def check_mixing(method: DpSgdRounds, setup: Setup) -> None:
    """Refuse what cannot be added up under one noise."""
    network = method.network
    alone = (
        (
            "compression",
            method.compression.kind,
            "Sums that clients compress no longer add up to one noised sum.",
        ),
        ("network.max_deviation", network.max_deviation, "A client's own model carries too little noise to decide by."),
    )
    for name, given, why in alone:
        free = given in (None, "none")
        require(free, f"algorithm.{name}", "be left out where clients share their noise", given, f"{why} {_LOCAL}")
    if method.adaptive:
        fits = network.together and len(method.client_settings) == 1
        hint = f"All clients have one clip, which moves with every sum. {_LOCAL}"
        require(fits, "algorithm.clip", "be adaptive only with clients that wait and are alike", "others", hint)
    if method.segments:
        hint = f"All clients must be in the same segment. {_LOCAL}"
        require(network.together, "algorithm.segments", "go with clients that wait for each other", "others", hint)
    if method.correlated:
        steady = network.together and setup.trust.dropouts == 0
        hint = f"A stream of noise with a gap protects nobody. {_LOCAL}"
        require(steady, "algorithm.correlation", "go with rounds that no client is missing from", "others", hint)
