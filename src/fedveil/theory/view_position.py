r"""Position coupling against an observer who enters one round of each pass and sees the state before it.

Given the observer's round t, nobody knows the victim's, and views with the victim in different rounds are themselves
similar: between two looks they are distinguished by an optimal shift, and looks compose. Rounds t are taken in groups.
Places before t are counted backwards from it, the others as they are; then the tables of a group hardly differ, and the
largest of each entry serves all. Theory page: observers.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Indices, Vector
from fedveil.theory.numerics import ROUNDING, log_sum
from fedveil.theory.position import Star, star
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import uses_mu

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
    found = mu(some, _place(some, label)).max(axis=0)
    if dealt.even:
        found[inside] = mu(at, _place(at, label[:, inside])).max(axis=0)
    # The observer knows its own noise; reducing all noise by that share is worse, and simple.
    found[inside] *= math.sqrt(dealt.batch / max(dealt.batch - 1, 1))
    return np.asarray(np.maximum.reduceat(found, first), dtype=np.float64)
