"""Who takes part in which round: all clients, a cohort that is drawn for them, or clients that draw for themselves.

Where clients share the noise and draw (``own_draws``), each draws from its own key, and a client that drew nothing
sends its noise alone: then not even the server learns the draws. Otherwise whoever conducts the run draws from its
key. All of it is a function of a key and the round alone. Page: docs/fedavg.md.
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedveil.core.values import Indices
from fedveil.noise.entropy import Entropy, permutation
from fedveil.stages.train.draws import DrawnOrder, Draws
from fedveil.stages.train.fedavg.method import FedAvg, groups_of

LABEL = "draws of client"
_COINS = 2**16  # tossed at once, for as many rounds (up to 64) as so many coins reach for all clients


def own_draws(method: FedAvg, clients: int, numbers: Sequence[int], entropy: Entropy) -> Callable[[int], Indices]:
    """Return which of these clients, by their numbers in the study, draw a round for themselves."""
    drawn = Draws(_order(method, clients), dict.fromkeys(numbers, 1), entropy, LABEL)
    named = np.asarray(numbers, dtype=np.int64)
    return lambda turn: named[drawn.joined(turn)]


def cohorts_of(method: FedAvg, clients: int, entropy: Entropy) -> Callable[[int], Indices]:
    """Return who takes part in each round, in rising order, possibly nobody."""
    if method.own_draws:
        return own_draws(method, clients, range(clients), entropy)
    if method.sampling == "independent":
        return Draws(_order(method, clients), {0: clients}, entropy, "cohort").joined
    return lambda turn: cohort_of(method.at(turn), clients, entropy, turn)


def senders_of(method: FedAvg, clients: int, entropy: Entropy, turn: int) -> Indices:
    """Return who sends in a round with shared noise: all, if clients draw for themselves or send updates again."""
    now = method.at(turn)
    every = now.own_draws or now.streams
    return np.arange(clients, dtype=np.int64) if every else cohort_of(now, clients, entropy, turn)


def cohort_of(method: FedAvg, clients: int, entropy: Entropy, turn: int) -> Indices:
    """Return a round's cohort, drawn by whoever conducts the run: a function of its key and the round."""
    match method.sampling:
        case "all":
            return np.arange(clients, dtype=np.int64)
        case "poisson":
            words = entropy.words("cohort", turn, clients)
            # rounded down, so that nobody takes part more often than planned
            limit = int(method.cohort / clients * 2**64)
            return np.flatnonzero(words < np.uint64(min(limit, 2**64 - 1))).astype(np.int64)
        case "cyclic":  # dealt into groups once, which take turns
            groups = groups_of(method, clients)
            return np.sort(permutation(entropy, clients, "cyclic order")[turn % groups :: groups])
        case "fixed-size":
            return np.sort(permutation(entropy, clients, f"cohort {turn}")[: int(method.cohort)])
        case _:
            return cohorts_of(method, clients, entropy)(turn)


def _order(method: FedAvg, clients: int) -> DrawnOrder:
    """Return how clients draw; a function of the plan alone, so that all who take part agree on it."""
    if method.picks:
        return DrawnOrder(order="independent", rounds=method.picks)
    block = max(1, min(64, _COINS // clients))  # not by the rounds: a shorter run draws as a longer one begins
    return DrawnOrder(order="poisson", rounds=1, rate=min(1.0, method.cohort / clients), block=block)
