r"""A run whose states are seen from time to time: what each use of the victim costs until the next look.

Between two looks the run starts from a known point. So a use in round u that is seen after d rounds (its own included)
is an optimal shift with one gap, closed by the noise of those d rounds; uses separated by a look compose. The maps and
noises of stretches of rounds are joined by doubling: sums of positive numbers only, so nothing cancels. Theory page:
observers.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy.special import xlog1py

from fedveil.core.checks import require
from fedveil.core.values import Indices, Vector
from fedveil.theory.rounds import Rounds

_TINY = 1e-150  # products of Lipschitz constants are kept above this, so that their squares do not underflow
_SURELY = 1_000_000  # most kinds of outcome for which a hypergeometric law is computed


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    r"""For every round u: the factor $G$ and variance $V$ of the rounds u+1 .. u+d-1 (those that exist).

    Joining two stretches: $(G_1, V_1)(G_2, V_2) = (G_1 G_2, G_2^2 V_1 + V_2)$.
    """

    rounds: Rounds
    _levels: list[tuple[Vector, Vector]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        factor = np.append(self.rounds.lipschitz, 1.0)  # nothing happens after the last round
        variance = np.append(self.rounds.noise**2, 0.0)
        object.__setattr__(self, "_levels", [(factor, variance)])

    def _level(self, power: int) -> tuple[Vector, Vector]:
        """Return stretches of 2**power rounds from every round on."""
        count = self.rounds.count
        while len(self._levels) <= power:
            later = np.minimum(np.arange(count + 1) + 2 ** (len(self._levels) - 1), count)
            last = self._levels[-1]
            self._levels.append(_joined(last, (last[0][later], last[1][later])))
        return self._levels[power]

    def after(self, distance: int) -> tuple[Vector, Vector]:
        """Return G and V of the rounds between each round and a look ``distance`` rounds after its beginning."""
        count, length = self.rounds.count, min(distance, self.rounds.count) - 1
        start, power = np.arange(1, count + 1), 0
        found = np.ones(count), np.zeros(count)
        while length:
            if length & 1:
                factor, variance = self._level(power)
                found = _joined(found, (factor[start], variance[start]))
                start = np.minimum(start + 2**power, count)
            length, power = length >> 1, power + 1
        return found


def _joined(first: tuple[Vector, Vector], second: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        factor = np.maximum(first[0] * second[0], _TINY)
        return factor, second[0] ** 2 * first[1] + second[1]


def looked_at_mu(rounds: Rounds, between: tuple[Vector, Vector], left: Vector) -> Vector:
    """Return mu of a use in each round that is seen after the rounds ``between``.

    ``left``: the share of the use's own noise variance that the observer does not know. It is the least of three: the
    use seen at once; its gap closed by all the noise until the look; everything forgotten in a bounded domain.
    """
    require(np.all((left > 0) & (left <= 1)), "left", "lie in (0, 1]", left.tolist()[:3])
    factor, variance = between
    own = rounds.noise**2 * left
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        hidden = rounds.gap * factor / np.sqrt(factor**2 * own + variance)
        width = np.append(np.fmin(rounds.diameter, rounds.image / rounds.lipschitz)[1:], math.inf)
        forgotten = np.where(variance > 0, width * factor / np.sqrt(variance), math.inf)
        best = np.fmin(np.fmin(rounds.gap / np.sqrt(own), hidden), forgotten)  # NaN where a product overflowed
    return np.asarray(best, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A kind of view, for each place.

    How soon after a use the next look comes, what is left of its noise, and the chance.

    ``distance`` counts rounds from the beginning of the use: 1 is at once, and the rounds of a pass is "when the victim
    is due again". An observer who looks later or knows less may be charged here too.
    """

    distance: int
    left: Vector
    chance: Vector


def ahead(batch: Vector, distance: int) -> Vector:
    """Return the slots in the ``distance`` rounds after each round, continuing in the next pass."""
    sums = np.cumsum(np.concatenate([[0.0], batch, batch]))
    place = np.arange(batch.size)
    return np.asarray(sums[place + 1 + distance] - sums[place + 1], dtype=np.float64)


def looks_of_one_round(batch: Vector, units: int, held: int, distances: Indices) -> Iterator[Look]:
    """Yield the looks of an observer with all its ``held`` units in one random round, which it enters in every pass.

    Given the victim's round, each of the other ``units - held`` slots is equally likely to be one of the observer's.
    """
    full, due = np.ones(batch.size), int(batch.size)
    others = float(units - held)
    yield Look(due, np.where(batch > held, (batch - held) / batch, 1.0), np.maximum(batch - held, 0.0) / others)
    for first, after in zip(distances, np.append(distances[1:], due), strict=True):
        if after > first:
            yield Look(int(first), full, (ahead(batch, int(after) - 1) - ahead(batch, int(first) - 1)) / others)
    yield Look(due, full, full * (units - float(batch.sum())) / others)


def looks_of_many_rounds(batch: Vector, units: int, held: int, distances: Indices, most: int) -> Iterator[Look]:
    """Yield the looks of an observer whose ``held`` units are dealt at random; it looks before each of its rounds."""
    sizes, kinds = np.unique(batch, return_inverse=True)
    laws = [own_units(int(size), units, held, most) for size in sizes]
    # A group knows the noise of its largest number, and looks as often as its least: fewer here are more elsewhere.
    least = [max(0, held - (units - int(size))) for size in sizes]
    lows = [np.append(start, law[0][:-1] + 1) for start, law in zip(least, laws, strict=True)]
    due = int(batch.size)
    for rank in range(max(len(law[0]) for law in laws)):
        known = np.array([law[0][rank] if rank < law[0].size else 0 for law in laws], dtype=np.float64)[kinds]
        low = np.array([many[rank] if rank < many.size else 0 for many in lows], dtype=np.float64)[kinds]
        chance = np.array([law[1][rank] if rank < law[1].size else 0.0 for law in laws])[kinds]
        sooner = np.ones(batch.size)  # the chance that no look comes before this distance
        for first, after in zip(distances, np.append(distances[1:], due), strict=True):
            beyond = spared(ahead(batch, int(after) - 1), units - batch, np.maximum(held - low, 0.0))
            yield Look(int(first), (batch - known) / batch, chance * np.maximum(sooner - beyond, 0.0))
            sooner = np.minimum(beyond, sooner)
        yield Look(due, (batch - known) / batch, chance * sooner)


def own_units(batch: int, units: int, held: int, most: int) -> tuple[Indices, Vector]:
    """Return how many of the observer's units share the victim's round: numbers and their hypergeometric chances.

    More than ``most`` numbers are charged in groups, each at its largest; so are all if there are too many to count.
    """
    least, top = max(0, held - (units - batch)), min(held, batch - 1)
    if top - least > _SURELY:
        return np.array([top]), np.ones(1)
    k = np.arange(least, top + 1)
    ratio = np.log(batch - 1.0 - k[:-1]) + np.log(held - k[:-1]) - np.log(k[1:])
    ratio -= np.log(units - batch - held + k[1:].astype(np.float64))
    logs = np.append(0.0, np.cumsum(ratio))
    chance = np.exp(logs - logs.max())
    chance /= chance.sum()
    if k.size <= most:
        return k, chance
    usual = np.flatnonzero(chance > 1e-18 * chance.max())
    ends = np.unique(np.append(np.linspace(usual[0], usual[-1], most - 1).astype(np.intp), k.size - 1))
    return k[ends], np.add.reduceat(chance, np.append(0, ends[:-1] + 1))


def spared(slots: Vector, of: Vector, held: Vector) -> Vector:
    r"""Return a lower bound on the chance that none of ``held`` units falls into ``slots`` of the ``of`` free ones.

    It is $\prod_{i<h}(1 - M/(N-i))$. The logarithm of a factor is concave in i: the first and the last bound the sum.
    """
    held = np.minimum(held, of)
    last = np.maximum(of - held + 1, 1.0)
    some = (held > 0) & (slots > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = xlog1py(held / 2, -np.minimum(slots / of, 1.0)) + xlog1py(held / 2, -np.minimum(slots / last, 1.0))
    return np.asarray(np.where(some, np.exp(log), 1.0), dtype=np.float64)
