"""A run whose states are seen from time to time: what each use of the victim costs until the next look.

Between two looks the run starts from a known point. So a use in round u that is seen after d rounds (its own included)
is an optimal shift with one gap, closed by the noise of those d rounds; uses separated by a look compose. The maps and
noises of stretches of rounds are joined by doubling: sums of positive numbers only, so nothing cancels. Theory page:
observers.md.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.theory.numerics import ROUNDING, log_sum
from fedveil.theory.position import Star, star
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import uses_mu

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
        result = np.ones(count), np.zeros(count)
        while length:
            if length & 1:
                factor, variance = self._level(power)
                result = _joined(result, (factor[start], variance[start]))
                start = np.minimum(start + 2**power, count)
            length, power = length >> 1, power + 1
        return result


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
        xlog1py = scipy.special.xlog1py
        log = xlog1py(held / 2, -np.minimum(slots / of, 1.0)) + xlog1py(held / 2, -np.minimum(slots / last, 1.0))
    return np.asarray(np.where(some, np.exp(log), 1.0), dtype=np.float64)


# Position coupling against an observer who enters one round of each pass and sees the state before it.
#
# Given the observer's round t, nobody knows the victim's, and views with the victim in different rounds are themselves
# similar: between two looks they are distinguished by an optimal shift, and looks compose. Rounds t are taken in
# groups. Places before t are counted backwards from it, the others as they are; then the tables of a group hardly
# differ, and the largest of each entry serves all. Theory page: observers.md.

_SINGLE = 10  # places next to a look that are not merged
_WIDER = 1.35  # growth factor of groups of rounds and of places away from the ends


@dataclass(frozen=True, slots=True, eq=False)
class SeenStars:
    """One star for each group of the observer's rounds, and the chance that the observer is there."""

    chances: Vector
    stars: tuple[Star, ...]

    def log_delta(self, epsilon: float) -> float:
        """Return the logarithm of an upper bound on delta; the observer knows its round, so the stars are averaged."""
        values = np.array([part.log_delta(epsilon) for part in self.stars])
        return min(log_sum(values + np.log(self.chances)) + ROUNDING, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dealt:
    """``units`` units dealt at random into ``places`` rounds of ``batch`` each, the same in every pass."""

    rounds: Rounds
    places: int
    batch: int
    units: int

    @property
    def even(self) -> bool:
        """True if all rounds are of one kind and none expands."""
        r = self.rounds
        same = all(bool(np.all(a == a[0])) for a in (r.noise, r.gap, r.swap, r.lipschitz, r.reach))
        return same and float(r.lipschitz[0]) <= 1

    @property
    def passes(self) -> int:
        """Number of passes through the places."""
        return self.rounds.count // self.places

    def uses(self, at: Indices, place: Indices, stretch: int) -> tuple[Indices, NDArray[np.bool_]]:
        """Return the round between look number ``stretch`` and the next that uses ``place``, and whether it exists."""
        turn = stretch - (place >= at)
        there = (turn >= 0) & (turn < self.passes)
        rounds: Indices = place + np.where(there, turn, 0) * self.places
        return rounds, there

    def own(self, at: Indices, place: Indices, gap: Vector) -> Vector:
        """Return mu of views with the victim at ``place``, between the data sets.

        The looks are before rounds ``at``.
        """
        total = np.zeros(np.broadcast_shapes(at.shape, place.shape))
        for stretch in range(self.passes + 1):
            use, there = self.uses(at, place, stretch)
            ends = np.minimum(at + stretch * self.places, self.rounds.count)
            total += uses_mu(self.rounds, use[..., None], (gap[use] * there)[..., None], ends) ** 2
        return np.asarray(np.sqrt(total), dtype=np.float64)

    def pair(self, at: Indices, place: Indices, hub: Indices, gaps: tuple[Vector, Vector]) -> Vector:
        """Return mu of views that differ at ``place`` by the first gaps and at ``hub`` by the second."""
        total = np.zeros(np.broadcast_shapes(at.shape, place.shape))
        hub = np.broadcast_to(hub, total.shape)
        for stretch in range(self.passes + 1):
            first, one = self.uses(at, place, stretch)
            second, two = self.uses(at, hub, stretch)
            # An absent use opens no gap; it is put where the other is.
            uses = np.stack([np.where(one, first, second), np.where(two, second, first)], axis=-1)
            opened = np.stack([gaps[0][first] * one, gaps[1][second] * two], axis=-1)
            order = np.argsort(uses, axis=-1)
            uses, opened = np.take_along_axis(uses, order, -1), np.take_along_axis(opened, order, -1)
            ends = np.minimum(at + stretch * self.places, self.rounds.count)
            total += uses_mu(self.rounds, uses, opened, ends) ** 2
        return np.asarray(np.sqrt(total), dtype=np.float64)


def seen_stars(dealt: Dealt) -> SeenStars:
    """Return a star for every group of the observer's rounds."""
    groups = _groups(dealt.places)
    chances = [len(group) * dealt.batch / dealt.units for group in groups]
    stars = [_star(dealt, group, _hub(dealt, group)) for group in groups]
    spare = dealt.units - dealt.places * dealt.batch
    if spare > 0:  # the observer may be left over: then it sees the last state only
        places = np.arange(dealt.places)[:, None] + dealt.places * np.arange(dealt.passes)
        weights = np.full(dealt.places, dealt.batch / (dealt.units - 1))
        stars.append(star(dealt.rounds, places, weights, dealt.places // 2))
        chances.append(spare / dealt.units)
    return SeenStars(np.array(chances), tuple(stars))


def _groups(places: int) -> list[range]:
    """Return groups of consecutive rounds: single ones at both ends, longer and longer ones towards the middle."""
    half, borders, width = places // 2, [0], 1.0
    while borders[-1] < half:
        borders.append(min(half, borders[-1] + max(1, int(width))))
        width = 0.5 + (_WIDER - 1) * borders[-1]
    edges = sorted({*borders, *(places - border for border in borders)})
    return [range(first, after) for first, after in pairwise(edges)]


def _hub(dealt: Dealt, group: range) -> int:
    """Return a label in the longer of the two parts, far from the look that ends it.

    Any label outside the group is valid.
    """
    before, after = group[0], dealt.places - 1 - group[-1]
    return dealt.places - 1 - int(0.8 * (after - 1)) if after >= before else int(0.8 * (before - 1))


def _blocks(dealt: Dealt, group: range, hub: int) -> Indices:
    """Return the first labels of blocks that share their tables: single ones next to a look, and the hub alone."""
    near, growing = [], float(_SINGLE)
    while growing < dealt.places:
        near.append(int(growing))
        growing = growing * _WIDER + 1
    steps = np.array([*range(_SINGLE), *near])
    before, after = steps[steps < group[0]], dealt.places - steps
    edges = [*before, group[0], group[-1] + 1, *after[after > group[-1] + 1], hub, hub + 1]
    return np.unique([edge for edge in edges if 0 <= edge < dealt.places]).astype(np.intp)


def _star(dealt: Dealt, group: range, hub: int) -> Star:
    """Return the ties through one label, the same star for all of the observer's rounds in the group."""
    first = _blocks(dealt, group, hub)
    hub_block, middle = int(np.searchsorted(first, hub)), int(np.searchsorted(first, group[0]))
    slots = np.diff(np.append(first, dealt.places)) * float(dealt.batch)
    slots[middle] -= 1  # the observer's own slot

    def ties(theirs: Vector, hubs: Vector) -> Vector:
        return _merged(dealt, group, first, lambda at, place: dealt.pair(at, place, _place(at, hub), (theirs, hubs)))

    gap, swap = dealt.rounds.gap, dealt.rounds.swap
    own = _merged(dealt, group, first, lambda at, place: dealt.own(at, place, gap))

    def towards(up: Vector, down: Vector, back: Star | None = None) -> Star:
        up[hub_block], down[hub_block] = 0.0, own[hub_block]
        return Star(slots / (dealt.units - 1), up, down, own, back)

    if np.array_equal(gap, swap):
        up = ties(swap, swap)
        return towards(up, up.copy())
    return towards(ties(swap, swap), ties(gap, swap), towards(ties(gap, gap), ties(swap, gap)))


def _place(at: Indices, label: Indices | int) -> Indices:
    """Return places from labels: before the observer's round they count backwards from it, otherwise as they are."""
    return np.where(label < at, at - 1 - label, label)


def _merged(dealt: Dealt, group: range, first: Indices, mu: Callable[[Indices, Indices], Vector]) -> Vector:
    """Return the largest entry of each block, over all rounds of the group."""
    at, label = np.array(group)[:, None], np.arange(dealt.places)[None, :]
    inside = slice(group[0], group[-1] + 1)
    some = at[:1] if dealt.even else at  # if all rounds are of one kind, the first of a group sees the most
    result = mu(some, _place(some, label)).max(axis=0)
    if dealt.even:
        result[inside] = mu(at, _place(at, label[:, inside])).max(axis=0)
    # The observer knows its own noise; reducing all noise by that share is worse, and simple.
    result[inside] *= math.sqrt(dealt.batch / max(dealt.batch - 1, 1))
    return np.asarray(np.maximum.reduceat(result, first), dtype=np.float64)
