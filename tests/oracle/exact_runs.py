"""Exact laws of one-dimensional hidden runs under every order, random stop, further rounds and groups; no theory.

A run is a :class:`LastIterate` with numbers; its records are Huber losses with a penalty, its victims push by at most
the Lipschitz constant. The state lives on a line of cells; a round is one matrix for every number of victims in it. A
*pattern* says how many victims each round has; every order is a mixture of patterns.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from scipy.special import ndtr

from fedveil.core.values import Vector
from fedveil.privacy.mechanism import FurtherRounds, LastIterate

Patterns = list[tuple[float, tuple[int, ...]]]
CELLS = 360


def patterns(run: LastIterate, group: int) -> Patterns:
    """How many of the group are in each round of all passes, with probabilities; a public order has them together."""
    rounds, passes = run.rounds, run.passes
    single: Patterns = []
    if run.order == "poisson":
        rate = run.rate or 1.0
        coins = [math.comb(group, h) * rate**h * (1 - rate) ** (group - h) for h in range(group + 1)]
        return [(math.prod(coins[c] for c in some), some) for some in product(range(group + 1), repeat=run.total)]
    if run.order == "independent":
        for picks in product(range(rounds), repeat=passes * group):
            counts = np.zeros((passes, rounds), dtype=int)
            for index, place in enumerate(picks):
                counts[index % passes, place] += 1
            single.append((rounds ** -float(len(picks)), tuple(counts.ravel().tolist())))
        return single
    if run.order == "public":
        place = rounds - 1 if run.place is None else run.place - 1
        return [(1.0, tuple(group * int(k % rounds == place) for k in range(run.total)))]
    slots = np.repeat(np.arange(rounds), run.batch)
    places = [*slots.tolist(), *[-1] * ((run.records or slots.size) - slots.size)]
    for some in product(range(len(places)), repeat=group):
        if len(set(some)) == group:
            counts = np.zeros(rounds, dtype=int)
            for slot in some:
                if places[slot] >= 0:
                    counts[places[slot]] += 1
            single.append((1.0, tuple(np.tile(counts, passes).tolist())))
    merged: dict[tuple[int, ...], float] = {}
    for weight, some in single:
        merged[some] = merged.get(some, 0.0) + weight / len(single)
    return [(weight, some) for some, weight in merged.items()]


class Line:
    """The cells, and the matrix of each round for each number of victims and each data set."""

    def __init__(self, run: LastIterate, rng: np.random.Generator, group: int, *, linear: bool = False) -> None:
        self.run, self.group = run, group
        further = run.further
        steps, noise, batch = (
            [float(v) for v in np.broadcast_to(getattr(run, name), (run.rounds,))] * run.passes
            + ([float(v) for v in np.broadcast_to(getattr(further, name), (further.rounds,))] if further else [])
            for name in ("step_size", "noise_std", "batch")
        )
        keep = [1.0] * run.total
        keep += np.broadcast_to(further.keep, further.rounds).tolist() if further else []
        self.scale = np.array([s * n / math.sqrt(b) for s, n, b in zip(steps, noise, batch, strict=True)])
        half = run.diameter / 2 if run.diameter is not None else math.inf
        reach = 7.0 * float(np.sqrt(np.sum(self.scale**2))) + 1.0
        reach += sum(s * run.lipschitz * (1 + 2 * group) for s in steps) if not math.isfinite(half) else 0.0
        reach = min(reach, half + 8 * float(self.scale.max()) + 2 * group * max(steps) * run.lipschitz)
        self.edges = np.linspace(-reach, reach, CELLS + 1)
        self.grid = (self.edges[1:] + self.edges[:-1]) / 2
        self.start, self.half = float(rng.normal()) * 0.3, half
        centre, kind = float(rng.normal()), 0 if linear else int(rng.integers(3))
        bend = (run.smoothness or 0.0) - run.strong_convexity
        joined = [float(b) if not run.sampled else float(rng.integers(0, run.records or 1)) for b in batch]
        direction = float(rng.choice([-1.0, 1.0]))

        def others(w: Vector) -> Vector:
            return np.clip(bend * (w - centre), -run.lipschitz, run.lipschitz) if kind else np.zeros_like(w)

        def push(w: Vector, sign: float) -> Vector:
            flat = np.full_like(w, sign * direction * run.lipschitz)
            return flat if kind != 2 else flat * np.where(w > 0, 1.0, 0.4)

        self.other_sign = {"zero-out": 0.0, "replace-one": -1.0}[run.neighbours]
        self.matrices: list[dict[tuple[int, float], Vector]] = []
        inner = np.clip(self.grid, -half, half)
        self.first: list[dict[tuple[int, float], Vector]] = []
        for k, (step, size) in enumerate(zip(steps, batch, strict=True)):
            here: dict[tuple[int, float], Vector] = {}
            begin: dict[tuple[int, float], Vector] = {}
            for count in range(group + 1 if k < run.total else 1):
                for sign in {1.0, self.other_sign}:
                    rest = joined[k] if run.sampled else size - count
                    for into, before in ((here, inner), (begin, np.clip(np.array([self.start]), -half, half))):
                        w = keep[k] * before
                        grad = run.strong_convexity * w + (rest * others(w) + count * push(w, sign)) / size
                        below = ndtr((self.edges[:, None] - (w - step * grad)[None, :]) / self.scale[k])
                        below[0], below[-1] = 0.0, 1.0
                        into[(count, sign)] = np.diff(below, axis=0)
            self.matrices.append(here)
            self.first.append(begin)

    def law(self, counts: tuple[int, ...], sign: float, stop: int) -> Vector:
        """The law of the released state for one pattern."""
        order = [*range(stop), *range(self.run.total, len(self.matrices))]
        mass = np.ones(1)
        for index, k in enumerate(order):
            which = (counts[k] if k < self.run.total else 0, sign if k < self.run.total and counts[k] else 1.0)
            mass = (self.first if index == 0 else self.matrices)[k][which] @ mass
        return mass

    def mixture(self, sign: float) -> Vector:
        """The law over everything that is secret: the pattern, and the stop."""
        stops = range(1, self.run.total + 1) if self.run.stopping == "random" else [self.run.total]
        parts = [
            weight / len(stops) * self.law(some, sign, stop)
            for weight, some in patterns(self.run, self.group)
            for stop in stops
        ]
        return np.asarray(np.sum(parts, axis=0))

    def delta(self, epsilon: float) -> float:
        """What the best test gains, in the worse direction."""
        p, q = self.mixture(1.0), self.mixture(self.other_sign)
        gamma = math.exp(epsilon)
        return max(float(np.maximum(a - gamma * b, 0.0).sum()) for a, b in ((p, q), (q, p)))


def random_run(rng: np.random.Generator, *, leaves: bool | None = None, **fixed: Any) -> LastIterate:
    """A small run: any order, one or two passes, projection or not, strong convexity or not, stops, further rounds.

    ``leaves``: whether rounds without the victim follow, which may begin with a part of the model; drawn if left out.
    """
    order = fixed.get("order", str(rng.choice(["public", "secret", "poisson", "independent"])))
    rounds = int(rng.integers(2, 5))
    passes = int(rng.choice([1, 1, 2])) if order != "poisson" and rounds < 4 else 1
    penalty = float(rng.choice([0.0, 0.0, 0.2]))
    steps = tuple(rng.uniform(0.2, 0.9, rounds)) if rng.random() < 0.5 else float(rng.uniform(0.2, 0.9))
    batch = int(rng.integers(2, 4))
    values: dict[str, Any] = {
        "rounds": rounds, "passes": passes, "batch": batch, "order": order, "step_size": steps,
        "lipschitz": 1.0, "smoothness": 1.0, "strong_convexity": penalty,
        "diameter": float(rng.uniform(0.5, 4.0)) if rng.random() < 0.5 else None,
        "noise_std": float(np.exp(rng.uniform(-0.6, 1.2))), "neighbours": str(rng.choice(["zero-out", "replace-one"])),
        "rate": float(rng.uniform(0.2, 0.6)) if order == "poisson" else None,
        "stopping": str(rng.choice(["end", "random"])),
    }  # fmt: skip
    if order in ("poisson", "independent"):
        values["records"] = 5  # so few that no step expands, even if all of them join
    elif order == "secret" and rng.random() < 0.5:
        values["records"] = rounds * batch + int(rng.integers(1, 4))
    if rng.random() < 0.5 if leaves is None else leaves:
        kept = rng.random() < 0.5 and not isinstance(steps, tuple)
        values["further"] = FurtherRounds(
            rounds=int(rng.integers(1, 5)), batch=batch,
            step_size=steps if kept else float(rng.uniform(0.2, 0.9)),  # type: ignore[arg-type]
            noise_std=values["noise_std"] if kept else float(np.exp(rng.uniform(-0.6, 1.2))),
            keep=float(rng.choice([1.0, 1.0, 0.5, 0.125])) if leaves else 1.0,
        )  # fmt: skip
    return LastIterate(**{**values, **fixed})


def random_lines(
    seed: int, number: int, group: int = 1, *, leaves: bool | None = None, **fixed: Any
) -> Iterator[tuple[LastIterate, Line, float]]:
    """Frozen random runs, each with its line and an epsilon."""
    for index in range(number):
        rng = np.random.default_rng([seed, index])
        run = random_run(rng, leaves=leaves, **fixed)
        if group > 1:
            run = replace(run, batch=max(int(run.batch), group), place=None)  # type: ignore[arg-type]
        yield run, Line(run, rng, group), float(rng.uniform(0.05, 2.5))
