"""Exact laws of one-dimensional runs whose records draw their own rounds: transfer of the whole mixture, no theory.

The state before projection lives on a line; a round is ``psi_k`` (which projects first, if the domain is bounded),
the victim's push where it takes part, and Gaussian noise. Poisson: each round's kernel is a mixture over its coin.
Independent: a mixture over places.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from fedveil.core.values import Vector
from fedveil.theory.closing import Part
from fedveil.theory.rounds import Rounds

Map = Callable[[Vector], Vector]


@dataclass(frozen=True)
class Chain:
    """A run: maps with their Lipschitz constants, the pushes of the record and of its replacement, noise, sizes."""

    maps: tuple[Map, ...]
    lipschitz: Vector
    push: tuple[Map, ...]
    other: tuple[Map, ...]
    gaps: Vector
    noise: Vector
    half: float  # of the domain's diameter; infinite without projection
    start: float
    label: str

    @property
    def rounds(self) -> Rounds:
        """What the accountant may know."""
        unknown = np.full(self.noise.size, math.inf)
        return Rounds(self.noise, self.gaps, 2 * self.gaps, self.lipschitz, unknown, 2 * self.half)


def poisson_law(
    chain: Chain, rate: float, pushes: tuple[Map, ...] | None, members: int = 1, points: int = 700
) -> Vector:
    """The law of the last state over cells; ``pushes`` of the record that is present, or None."""
    grid, edges = _grid(chain, points)
    mass: Vector | None = None
    for k, psi in enumerate(chain.maps):
        branches = [(1.0, psi)]
        if pushes is not None:
            coins = [math.comb(members, h) * rate**h * (1 - rate) ** (members - h) for h in range(members + 1)]
            branches = [(p, _pushed(psi, pushes[k], h)) for h, p in enumerate(coins)]
        mass = _round(chain, k, branches, grid, edges, mass)
    assert mass is not None
    return mass


def independent_law(chain: Chain, pushes: tuple[Map, ...] | None, passes: int = 1, points: int = 700) -> Vector:
    """The same when the record picks one round of each pass."""
    grid, edges = _grid(chain, points)
    count = len(chain.maps) // passes
    waiting: Vector | None = None  # has not taken part in this pass
    done: Vector | None = None
    for k, psi in enumerate(chain.maps):
        place = k % count
        if place == 0 and k > 0:
            waiting, done = (done if pushes is not None else waiting), None
        if pushes is None:
            waiting = _round(chain, k, [(1.0, psi)], grid, edges, waiting)
            continue
        hazard = 1 / (count - place)
        joined = _round(chain, k, [(hazard, _pushed(psi, pushes[k], 1))], grid, edges, waiting)
        rest = _round(chain, k, [(1 - hazard, psi)], grid, edges, waiting)
        done = joined if done is None else joined + _round(chain, k, [(1.0, psi)], grid, edges, done)
        waiting = rest
    found = waiting if pushes is None else done
    assert found is not None
    return found


def _pushed(psi: Map, push: Map, times: int) -> Map:
    return lambda w: psi(w) + times * push(w)


def _grid(chain: Chain, points: int) -> tuple[Vector, Vector]:
    reach = 7.5 * float(np.sqrt(np.sum(chain.noise**2))) * max(1.0, float(np.prod(np.maximum(chain.lipschitz, 1.0))))
    reach += 2 * float(chain.gaps.sum()) * max(1.0, float(np.prod(np.maximum(chain.lipschitz, 1.0)))) + 2
    if math.isfinite(chain.half):
        reach = min(reach, 8 * float(chain.noise.max()) + 2 * chain.half + 2 * float(chain.gaps.max()) + 2)
    edges = np.linspace(-reach, reach, points + 1)
    return (edges[1:] + edges[:-1]) / 2, edges


def _round(
    chain: Chain, k: int, branches: list[tuple[float, Map]], grid: Vector, edges: Vector, mass: Vector | None
) -> Vector:
    """Masses of the cells after a round; each cell's mass sits at its middle."""
    sources, weights = (np.array([chain.start]), np.ones(1)) if mass is None else (grid, mass)
    inner = np.clip(sources, -chain.half, chain.half)
    out = np.zeros(grid.size)
    for weight, psi in branches:
        below = ndtr((edges[:, None] - psi(inner)[None, :]) / chain.noise[k]) @ weights
        below[0], below[-1] = 0.0, weights.sum()
        out += weight * np.diff(below)
    return out


def hockey(p: Vector, q: Vector, epsilon: float) -> float:
    """What the best test of the cells gains."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def random_chain(rng: np.random.Generator, most: int = 6) -> Chain:
    """Clamps, quadratics at the largest step, kinks, forgetting maps; pushes that lean on the state; any c."""
    count = int(rng.integers(2, most + 1))
    noise = np.exp(rng.uniform(-0.5, 0.5, count)) if rng.random() < 0.5 else np.ones(count)
    ratio = math.exp(rng.uniform(math.log(0.3), math.log(3.0)))
    gaps = ratio * (noise if rng.random() < 0.5 else np.exp(rng.uniform(-0.4, 0.4, count)))
    base = float(rng.choice([1.0, 1.0, 1.0, 0.7, 0.95, 1.15]))
    half = float(rng.choice([math.inf, math.inf, 1.0, 3.0]))
    maps, pushes, others, constants = [], [], [], []
    bad = float(rng.choice([-1.0, 1.0]))
    for k in range(count):
        c = base if rng.random() < 0.8 else base * float(rng.uniform(0.3, 1.0))
        maps.append(_some_map(int(rng.integers(7)), c, float(rng.normal())))
        kind = int(rng.integers(4))
        pushes.append(_some_push(kind, bad * float(gaps[k])))
        others.append(_some_push(kind if rng.random() < 0.7 else int(rng.integers(4)), -bad * float(gaps[k])))
        constants.append(c)
    label = f"{count} rounds, c {base}, ratio {ratio:.3g}, half {half}"
    return Chain(
        *(tuple(maps), np.array(constants), tuple(pushes), tuple(others), gaps, noise, half, float(rng.normal())), label
    )


def _some_map(kind: int, c: float, at: float) -> Map:
    shapes: list[Map] = [
        lambda w: c * w,
        lambda w: -c * (w - at),
        lambda w: c * np.clip(w, -1.0, 1.0),
        lambda w: c * np.abs(w - at),
        lambda w: np.full_like(w, at),
        lambda w: c * np.maximum(w, at),
        lambda w: c * w + 0.5 * at,
    ]
    return shapes[kind]


def _some_push(kind: int, size: float) -> Map:
    shapes: list[Map] = [
        lambda w: np.full_like(w, size),
        lambda w: np.full_like(w, size),
        lambda w: size * np.tanh(2 * w),
        lambda w: np.where(w > 0, size, 0.3 * size),
    ]
    return shapes[kind]


def random_plan(rng: np.random.Generator, count: int) -> list[Part]:
    """Any cut of the run: a last part that closes over its own end, blocks that close over the next one's rounds."""
    tail = int(rng.integers(1, count + 1))
    if tail == count or rng.random() < 0.2:
        return [Part(0, count, int(rng.integers(0, count)), count)]
    start = count - tail - int(rng.integers(1, count - tail + 1))
    parts, window = [Part(start, count, count - tail if start > 0 else 0, count)], count - tail
    while start > 0:
        first = start - int(rng.integers(1, start + 1))
        own = first == 0 and rng.random() < 0.7
        parts.append(Part(first, start, 0 if own else start, window))
        window, start = start, first
    return parts[::-1]


def shared_plan(rng: np.random.Generator, count: int) -> list[Part]:
    """Any cut into parts whose windows all end with the run, and which share the noise of their rounds."""
    bounds = [0, *sorted({int(k) for k in rng.integers(1, count + 1, rng.integers(0, 4))} - {count}), count]
    shares = rng.dirichlet(np.ones(len(bounds) - 1)) * (1 - 1e-12) if len(bounds) > 2 else np.ones(1)
    return [
        Part(first, last, int(rng.integers(0, count)), count, float(share))
        for first, last, share in zip(bounds, bounds[1:], shares, strict=False)
    ]


def chains(seed: int, number: int) -> Iterator[tuple[np.random.Generator, Chain]]:
    """Frozen random chains, each with the generator that made it."""
    for index in range(number):
        rng = np.random.default_rng([seed, index])
        yield rng, random_chain(rng)
