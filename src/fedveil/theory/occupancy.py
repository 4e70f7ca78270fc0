r"""Groups under shuffling: members share batches by chance, and the batches decide how far a pass moves.

Given who shares with whom, a pass is one Gaussian of $\mu \sqrt{\sum_i n_i^2}$, ``n_i`` members in batch ``i``.
Telling the adversary the sharing gives a mixture of labelled Gaussian pairs. Theory page: dominating-pairs.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.theory.loss import GaussianLaw, Tails

LARGEST_SHUFFLED = 40


@final
@dataclass(frozen=True, slots=True)
class LabelledLaw:
    """Gaussian pairs, one of which is drawn and named, so the loss is a mixture of their losses."""

    mus: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = len(self.mus) == len(self.weights) >= 1
        require(sizes, "LabelledLaw", "have one weight for each mu", (len(self.mus), len(self.weights)))
        whole = min(self.weights) > 0 and abs(math.fsum(self.weights) - 1) <= 1e-12
        require(whole, "LabelledLaw.weights", "be positive and add up to 1", self.weights[:4])

    def tails(self, levels: Vector, /) -> Tails:
        """Return the weighted mean of the tails."""
        parts = [[w * t for t in GaussianLaw(mu).tails(levels)] for mu, w in zip(self.mus, self.weights, strict=True)]
        return Tails(*(np.asarray(sum(column), dtype=np.float64) for column in zip(*parts, strict=True)))

    def reach(self, mass: float, /) -> tuple[float, float]:
        """Return the lowest and the highest end of any pair."""
        ends = [GaussianLaw(mu).reach(mass) for mu in self.mus]
        return min(low for low, _ in ends), max(high for _, high in ends)


def shared_batches(group: int, batches: int, size: int | None, mu: float) -> LabelledLaw:
    """Return the law of one pass for a group, where ``mu`` is that of one member.

    Every member has its own slot among ``batches * size``. Without a size, members count as placed independently, which
    is never less: then the counts majorise those of distinct slots (theory page).
    """
    found = sharing(group, batches, size)
    return LabelledLaw(tuple(mu * math.sqrt(squares) for squares in found), tuple(found.values()))


@lru_cache(maxsize=64)
def _sharing(group: int, batches: int, size: int | None) -> tuple[tuple[int, float], ...]:
    found: dict[int, float] = {}
    for counts in _partitions(group, group):
        if len(counts) > batches or (size is not None and counts[0] > size):
            continue
        log_ways = math.fsum(math.log(batches - i) for i in range(len(counts)))  # the choices of batches, in order
        for repeated in {c: counts.count(c) for c in counts}.values():
            log_ways -= math.lgamma(repeated + 1)
        if size is None:
            log_ways += math.lgamma(group + 1) - sum(math.lgamma(c + 1) for c in counts) - group * math.log(batches)
        else:
            log_ways += sum(_log_choose(size, c) for c in counts) - _log_choose(size * batches, group)
        squares = sum(c * c for c in counts)
        found[squares] = found.get(squares, 0.0) + math.exp(log_ways)
    total = math.fsum(found.values())
    require(abs(total - 1) < 1e-6, "group", "fit into the batches", group)
    return tuple((squares, weight / total) for squares, weight in sorted(found.items()) if weight > 0)


def sharing(group: int, batches: int, size: int | None) -> dict[int, float]:
    """Return the probability of each sum of squared counts."""
    require(1 <= group <= LARGEST_SHUFFLED, "group", f"lie in 1..{LARGEST_SHUFFLED}", group)
    return dict(_sharing(group, batches, size))


def _log_choose(items: int, chosen: int) -> float:
    """Return the log of a binomial coefficient; in exact integers if cheap, as lgamma of huge numbers loses digits."""
    return math.fsum(math.log((items - i) / (chosen - i)) for i in range(chosen))


def _partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write ``total`` as a sum of whole numbers in falling order, none above ``largest``."""
    if total == 0:
        yield ()
        return
    for first in range(min(total, largest), 0, -1):
        for rest in _partitions(total - first, first):
            yield first, *rest
