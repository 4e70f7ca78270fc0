"""Which records of a client are in a round: by draws of their own, a uniformly random set, or a part of a shuffle."""

from functools import lru_cache

import numpy as np

from fedveil.core.values import Indices
from fedveil.noise.entropy import Entropy, ranked
from fedveil.noise.grid import Source
from fedveil.stages.train import draws
from fedveil.stages.train.dpsgd.client_settings import ClientSettings, Sampling, class_rate


class Sampler:
    """The batches of one client in a segment: a function of the key, the client, the segment and its round only."""

    def __init__(
        self,
        settings: ClientSettings,
        sampling: Sampling,
        records: int,
        entropy: Entropy,
        client: int,
        segment: int = 0,
        classes: int = 1,
    ) -> None:
        self._settings, self._sampling, self._records, self._classes = settings, sampling, records, classes
        name = f"dpsgd batch of segment {segment}" if segment else "dpsgd batch"
        self._entropy, self._label = entropy, f"{name} {client}"
        self._shuffle = lru_cache(maxsize=1)(self._shuffled)
        self._picks: draws.Draws | None = None
        if sampling == "independent":
            how = draws.DrawnOrder(order="independent", rounds=settings.batches_a_pass)
            self._picks = draws.Draws(how, {client: records}, entropy, name)

    def batch(self, turn: int) -> Indices:
        """Return the places of the records in this round, ascending (for a shuffle, in its order)."""
        if self._picks is not None:
            return self._picks.joined(turn)
        if self._sampling == "shuffled":
            per_pass, size = self._settings.batches_a_pass, self._settings.size(self._records)
            which, part = divmod(turn, per_pass)
            return self._shuffle(which)[part * size : (part + 1) * size]
        if self._sampling == "cyclic":  # the same batch in every pass, so that a record comes back after a whole one
            return self._shuffle(0)[turn % self._settings.batches_a_pass :: self._settings.batches_a_pass]
        source = self._entropy.stream(self._label, turn)
        if self._sampling == "poisson" and self._classes > 1:
            mine = np.sort(self._class(turn % self._classes))
            return mine[coins(source, class_rate(self._settings.rate, self._classes), mine.size)]
        if self._sampling == "poisson":
            return coins(source, self._settings.rate, self._records)
        return subset(source, self._settings.size(self._records), self._records)

    def _class(self, number: int) -> Indices:
        """Return the records of a class; they are dealt into classes once, by an address that no round has."""
        return self._shuffle(2**63)[number :: self._classes]

    def _shuffled(self, which: int) -> Indices:
        source = self._entropy.stream(self._label, which)
        while True:
            order = ranked(source.words(self._records))
            if order is not None:
                return order


def coins(source: Source, rate: float, records: int) -> Indices:
    """Return the records that join, each with its own coin of probability from ``rate - 2**-64`` to ``rate``."""
    return np.flatnonzero(draws.coins(source, rate, 1, records)[0])


def subset(source: Source, size: int, records: int) -> Indices:
    """Return a uniformly random set of ``size`` places: the smallest words, redrawn if two tie for the last place."""
    if size == records:
        return np.arange(records, dtype=np.int64)
    while True:
        words = source.words(records)
        last = np.partition(words, size - 1)[size - 1]
        chosen = np.flatnonzero(words <= last)
        if chosen.size == size:
            return chosen
