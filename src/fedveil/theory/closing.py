r"""Closing plans for a run whose records draw their rounds themselves: who closes which gaps with which noise.

The run is cut into parts. The victims of a part are the rounds ``first..last-1``; whatever gap they open is closed by
the noise of the part's window, the rounds ``opens..closes-1``, each victim from its own round on. Windows are
disjoint, or share the noise of their rounds, so different parts use independent noise. Any such plan is valid, so
plans may be searched for. Theory page: sampled-shift.md.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.theory.rounds import Rounds

_UP = 1 + 1e-12  # lengths are rounded up: a longer shift is never less safe


class Part(NamedTuple):
    """Victims ``first..last-1`` (rounds from 0), closed over the window ``opens..closes-1``.

    ``share``: of the variance of each round's noise there, which the part has for itself.
    """

    first: int
    last: int
    opens: int
    closes: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A family of plans, described from the end of the run.

    The last ``tail + lead`` rounds are one part that closes over the last ``tail``. Before it blocks follow, each
    closing over the rounds of the next: ``growth`` times as long as what comes after them, at most ``most`` rounds.
    The first block may use its own noise too, which nobody else needs.
    """

    tail: int
    lead: int
    growth: float
    most: int


def at_once(count: int) -> list[Part]:
    """Return every gap closed in its own round: what is known when every model is seen."""
    return [Part(k, k + 1, k, k + 1) for k in range(count)]


def plan(count: int, shape: Shape, passes: int = 1) -> list[Part]:
    """Return the parts of a shape, in order; victims of one part belong to one of the ``passes`` of equal length."""
    require(count % passes == 0, "passes", "divide the rounds", (count, passes))
    a_pass = count // passes
    tail = min(shape.tail, a_pass if passes == 1 else max(1, a_pass - 1))  # an earlier pass needs noise before it
    start = count - min(tail + shape.lead, a_pass)
    parts = [Part(start, count, count - tail if start > 0 else 0, count)]
    window = count - tail  # the noise of rounds start..window-1 is still free
    while start > 0:
        if window == start:  # no lead: the next block shares nothing, so it must have a round of its own
            raise ValueError("a plan needs a lead of at least one round")
        inside = (start - 1) % a_pass + 1  # rounds of this pass that are left
        size = _size(shape, count - start, inside)
        first = start - size
        parts.append(Part(first, start, start if first > 0 else 0, window))
        window, start = start, first
    return parts[::-1]


def _size(shape: Shape, after: int, inside: int) -> int:
    wished = max(1, min(int(shape.growth * after), shape.most))
    if shape.growth * after >= shape.most:  # equal blocks, so that they are worked out once
        return math.ceil(inside / max(1, math.ceil(inside / wished)))
    return inside if inside < 1.6 * wished else wished


def extended(parts: Sequence[Part], further: int) -> list[Part]:
    """Return the plan of a run that goes on without the victim: the last part closes over the further noise too."""
    return [*parts[:-1], parts[-1]._replace(closes=parts[-1].closes + further)]


def to_the_release(rounds: Rounds, count: int, size: int) -> list[Part]:
    """Return parts of ``size`` victims that all close up to the release, and share the noise by how far they move it.

    The best where much noise follows the last victim: with blocks that close one over the next, only the last one would
    have it.
    """
    firsts = range(0, count, size)
    moved = np.array([float(np.max((rounds.factor * rounds.gap)[k : min(k + size, count)])) for k in firsts])
    shares = moved / moved.sum() if moved.sum() > 0 else np.full(moved.size, 1 / moved.size)
    kept = np.maximum(shares, 1e-12) / (1 + 2e-12 * moved.size)  # so that they sum to at most 1, in floats too
    return [
        Part(first, min(first + size, count), first, rounds.count, share if kept.size > 1 else 1.0)
        for first, share in zip(firsts, kept.tolist(), strict=True)
    ]


def shortened(parts: Sequence[Part], count: int) -> list[Part]:
    """Return a plan of a longer run for victims of the first ``count`` rounds; the last of them closes to the end."""
    kept = [part._replace(last=min(part.last, count)) for part in parts if part.first < count]
    return [*kept[:-1], kept[-1]._replace(closes=parts[-1].closes)]


def check_plan(parts: Sequence[Part], count: int, further: int = 0) -> None:
    """Refuse a plan that leaves a victim out, counts one twice, or uses a round's noise twice.

    Victims are the first ``count`` rounds; the noise of ``further`` rounds after them may close gaps as well.
    """
    victims = np.zeros(count, dtype=np.int64)
    noise = np.zeros(count + further)
    for part in parts:
        right = 0 <= part.first < part.last <= count and part.last <= part.closes <= count + further
        right = right and 0 <= part.opens < part.closes and 0 < part.share <= 1
        require(right, "Part", "close every gap at or after its round", part)
        victims[part.first : part.last] += 1
        noise[part.opens : part.closes] += part.share
    require(bool(np.all(victims == 1)), "plan", "have every round in exactly one part", victims.tolist()[:8])
    require(bool(np.all(noise <= 1)), "plan", "use the noise of a round once", noise.tolist()[:8])


def lengths(rounds: Rounds, part: Part) -> Vector:
    """Return the shift, in units of the noise, that closes the gap of each victim alone; rounded up."""
    victims = np.arange(part.first, part.last)
    starts = np.maximum(victims, part.opens)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        room = np.sqrt(part.share * rounds.span(starts, np.full_like(starts, part.closes)))
        result = rounds.factor[victims] * rounds.gap[victims] / room
    return np.asarray(np.minimum(np.where(np.isnan(result), np.inf, result), _forgotten(rounds, part)) * _UP)


def own_lengths(rounds: Rounds, parts: Sequence[Part]) -> Vector | None:
    """Return the lengths of all parts at once if each is one round that its own noise closes; else None.

    The numbers are those of :func:`lengths`, to the bit: runs of thousands of rounds have as many such parts.
    """
    places = np.array(parts)
    if not np.array_equal(places, np.column_stack([places[:, :1] + np.array([0, 1, 0, 1]), np.ones(len(parts))])):
        return None
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        victims = places[:, 0].astype(np.intp)
        result = rounds.factor[victims] * rounds.gap[victims] / np.sqrt(rounds.span(victims, victims + 1))
    return np.asarray(np.where(np.isnan(result), np.inf, result) * _UP)


def longest(rounds: Rounds, part: Part) -> float:
    """Return a bound on the shift however many victims there are: two points of a bounded domain; else infinite."""
    return _forgotten(rounds, part) * _UP


def _forgotten(rounds: Rounds, part: Part) -> float:
    """Return the shift if two arbitrary points enter the window, which needs all victims to come before it.

    A part that shares its noise goes without: the others' gaps are in the same points.
    """
    if part.opens < part.last or part.share < 1 or not math.isfinite(rounds.diameter):
        return math.inf
    opens, closes = np.array([part.opens]), np.array([part.closes])
    with np.errstate(over="ignore"):
        image = rounds.factor[part.opens] * rounds.lipschitz[part.opens] * rounds.diameter
    return float(image / np.sqrt(rounds.span(opens, closes))[0])


def joint_lengths(rounds: Rounds, part: Part, victims: Indices) -> Vector:
    """Return the shortest shift for sets of victims (rows, sorted): optimal shift inside the window; rounded up.

    Only for a part that uses its victims' own noise: there sets close more cheaply together than one by one.
    """
    inside = np.maximum(victims, part.opens)  # a victim before the window waits until it opens
    waiting = rounds.factor[victims] / rounds.factor[inside]
    gaps = rounds.gap[victims] * waiting
    return np.asarray(_window_mu(rounds, inside, gaps, part.closes) / math.sqrt(part.share) * _UP, dtype=np.float64)


def _window_mu(rounds: Rounds, uses: Indices, gaps: Vector, closes: int) -> Vector:
    """Return mu of sets of uses; several gaps in one round are pooled, as pieces of zero width."""
    opened = rounds.factor[uses] * gaps
    stops = np.concatenate([uses[..., 1:], np.full((*uses.shape[:-1], 1), closes)], axis=-1)
    widths = rounds.span(uses, stops)
    rise = np.cumsum(np.triu(np.broadcast_to(opened[..., None, :], (*opened.shape, opened.shape[-1]))), axis=-1)
    run = np.cumsum(np.triu(np.broadcast_to(widths[..., None, :], (*widths.shape, widths.shape[-1]))), axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(run > 0, rise / run, np.inf)
        least = np.minimum.accumulate(slope[..., ::-1], axis=-1)[..., ::-1]
        fitted = np.stack([np.max(least[..., : j + 1, j], axis=-1) for j in range(uses.shape[-1])], axis=-1)
        energy = np.sum(np.where(widths > 0, widths * fitted**2, 0.0), axis=-1)
    return np.sqrt(np.where(np.isnan(energy), np.inf, energy))


def shapes(count: int, few: bool) -> Iterator[Shape]:
    """Yield starting points of the search; ``few``: rounds of many kinds, where every block costs."""
    least = max(1, count // 100) if few else 1
    for tail, lead in ((1, 1), (4, 2), (8, 4)):
        for most in (8, 32, 128):
            yield Shape(tail, lead, 0.5, max(most, least))


def neighbours(shape: Shape, count: int, few: bool) -> Iterator[Shape]:
    """Yield shapes one step away."""
    least = max(1, count // 100) if few else 1
    sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24)
    at = min(range(len(sizes)), key=lambda i: abs(sizes[i] - shape.tail))
    for index in (at - 1, at + 1):
        if 0 <= index < len(sizes) and sizes[index] < count:
            yield Shape(sizes[index], max(1, sizes[index] // 2), shape.growth, shape.most)
    for lead in (shape.lead - 1, shape.lead + 1, 2 * shape.lead):
        if 1 <= lead <= 32:
            yield Shape(shape.tail, lead, shape.growth, shape.most)
    for growth in (shape.growth * 0.7, shape.growth * 1.4):
        if 0.1 <= growth <= 8.0:
            yield Shape(shape.tail, shape.lead, growth, shape.most)
    for most in (round(shape.most / 1.4), round(shape.most * 1.4), 4 * shape.most):
        if least <= most <= 4 * count and most != shape.most:
            yield Shape(shape.tail, shape.lead, shape.growth, most)
