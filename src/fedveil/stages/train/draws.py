"""Who joins which round, where every unit decides by secret draws of its own.

Each client draws for its own units (its records, or itself where clients are the unit) from its own key. The draws of a
round are a function of the key, the client's number and the round alone: a round that is computed again after a crash,
a simulation and a real site all find the same draws, and none is ever made twice. Theory page: sampled-shift.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import Source
from fedveil.theory.binomial_tail import most_joined as most_joined

Order = Literal["poisson", "independent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnOrder:
    """How units draw: with ``poisson`` a coin for every round, with ``independent`` one round of each pass.

    ``rounds``: of one pass; ``rate``: the chance of a coin. ``block``: for how many rounds the coins come from one
    stream of words. It changes the draws, so it must be the same wherever a run is computed.
    """

    order: Order
    rounds: int
    rate: float | None = None
    block: int = 1

    def __post_init__(self) -> None:
        known = self.order in ("poisson", "independent")
        require(known, "DrawnOrder.order", "be poisson or independent", self.order)
        require(self.rounds >= 1, "DrawnOrder.rounds", "be at least 1", self.rounds)
        require(self.block >= 1, "DrawnOrder.block", "be at least 1", self.block)
        if self.order == "independent":
            require(self.rate is None, "DrawnOrder.rate", "go with poisson draws alone", self.rate)
        else:
            fits = self.rate is not None and 0 < self.rate <= 1
            require(fits, "DrawnOrder.rate", "lie in (0, 1]", self.rate, "Is it a batch size?")


@final
class Draws:
    """The draws of some clients: ``units`` says how many units each client has, by its number in the study.

    All of a study's clients, or a site's own: a client's draws do not depend on who else is there.
    """

    def __init__(self, how: DrawnOrder, units: Mapping[int, int], entropy: Entropy, label: str) -> None:
        self._how, self._units, self._entropy, self._label = how, dict(units), entropy, label
        self._block = lru_cache(maxsize=1)(self._coins)  # the last block or pass is kept, not the whole run
        self._pass = lru_cache(maxsize=1)(self._picked)

    def joined(self, turn: int) -> Indices:
        """Return the units that join a round (counted from 0 through all passes), in rising order.

        Units are counted through the clients in the order in which these were given.
        """
        require(turn >= 0, "turn", "be at least 0", turn)
        if self._how.order == "poisson":
            which, row = divmod(turn, self._how.block)
            return np.flatnonzero(self._block(which)[row]).astype(np.int64)
        which, part = divmod(turn, self._how.rounds)
        order, starts = self._pass(which)
        return order[starts[part] : starts[part + 1]]

    def _coins(self, which: int) -> NDArray[np.bool_]:
        """Return the coins of a block of rounds: a row a round, a column a unit."""
        rate, turns = self._how.rate or 0.0, self._how.block
        parts = [coins(self._stream(client, which), rate, turns, count) for client, count in self._units.items()]
        return np.concatenate([np.empty((turns, 0), dtype=np.bool_), *parts], axis=1)

    def _picked(self, which: int) -> tuple[Indices, Indices]:
        """Return the units of a pass in the order of its rounds, and where each round begins."""
        rounds = self._how.rounds
        parts = [picks(self._stream(client, which), rounds, count) for client, count in self._units.items()]
        chosen = np.concatenate([np.empty(0, dtype=np.int64), *parts])
        starts = np.append(0, np.cumsum(np.bincount(chosen, minlength=rounds))).astype(np.int64)
        return np.argsort(chosen, kind="stable").astype(np.int64), starts

    def _stream(self, client: int, which: int) -> Source:
        return self._entropy.stream(f"{self._label} {client}", which)


def coins(source: Source, rate: float, turns: int, units: int) -> NDArray[np.bool_]:
    """Return whether each unit (a column) joins each round (a row).

    Every coin is tossed on its own and falls with probability at most ``rate`` and at least ``rate - 2**-64``. Fewer
    joins than accounted for are safe: such a run is the planned one with some rounds left out by further coins, which
    may be told to everybody.
    """
    if rate == 1:
        return np.ones((turns, units), dtype=np.bool_)
    limit = np.uint64(int(rate * 2.0**64))  # exact: a float times a power of two, cut to a whole number
    return np.asarray(source.words(turns * units) < limit).reshape(turns, units)


def picks(source: Source, rounds: int, units: int) -> Indices:
    """One round of 0 .. rounds - 1 for each unit, exactly uniform and independent.

    Words beyond the last multiple of ``rounds`` are drawn again.
    """
    words = source.words(units).copy()
    last = np.uint64(2**64 - 1 - 2**64 % rounds)
    while (again := np.flatnonzero(words > last)).size:
        words[again] = source.words(again.size)
    return (words % np.uint64(rounds)).astype(np.int64)
