r"""Adversarial data sets on a line for a hidden run: records as clamped gradients, within the run's own constants.

A record's data gradient is $\mathrm{clip}(offset + curvature\,(w - centre), -L, L)$: linear, quadratic, Huber or clamp.
To it is added a public penalty of curvature ``strong_convexity``, the same for everybody, centred in the middle of the
domain; so the step has the constants that the mechanism names (losses.md). No code of the accountants is used.
"""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from fedveil.audit.chain import Chain, Instance, Line, Mixture, Step
from fedveil.core.checks import require
from fedveil.core.errors import CannotCertify
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate

MOST_ROUNDS = 2000  # most rounds that are followed
MOST_CHAINS = 4000  # most rounds of all chains of a mixture together
_DEVIATIONS = 8.5  # deviations of the noise up to which a run without projection is followed
_CLIFF = 25.0  # Lipschitz constants per deviation: the curvature that stands for "not smooth"


@dataclass(frozen=True, slots=True)
class Shape:
    """A record in units of the run.

    Offset over the Lipschitz constant, curvature over the largest, centre over the width.
    """

    offset: float = 0.0
    curvature: float = 0.0
    centre: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What an adversary chooses. With a secret order all others are alike (``before``) and there is no place.

    Where records draw their own rounds there is no place either, and the others' draws are known: as many as planned
    join every round, alike (``before``) in all but the last (``last``).

    The victim's gradient is +L; on the neighbouring data set -L, or nothing. ``before``, ``after``, ``last``: records
    in the rounds of a pass before the victim's, after it, and the last; ``beside``: those in the victim's own batch.
    """

    place: int | None
    start: float = 0.0
    before: Shape = Shape()
    beside: Shape = Shape()
    after: Shape = Shape()
    last: Shape = Shape()

    def __str__(self) -> str:
        parts = [f"start {self.start:.3g}"] + ([f"place {self.place}"] if self.place else [])
        for name in ("before", "beside", "after", "last"):
            shape: Shape = getattr(self, name)
            if shape != Shape():
                parts.append(f"{name} {shape.offset:.3g} + {shape.curvature:.3g} (w - {shape.centre:.3g})")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A run as plain numbers: one of each per round, and the interval."""

    run: LastIterate
    step: Vector
    batch: Vector
    noise: Vector
    half: float
    unit: float  # unit of starts and centres
    steepest: float  # largest curvature of a data gradient

    @property
    def total(self) -> int:
        """Number of rounds of all passes."""
        return self.step.size


def setting(run: LastIterate) -> Setting:
    """Return the run's numbers, computed here and not by the accountants."""
    require(isinstance(run, LastIterate), "the oracle", "be asked for a hidden run", run)
    if run.total > MOST_ROUNDS:
        raise CannotCertify(f"exact laws are followed for up to {MOST_ROUNDS} rounds, not {run.total}")
    step, batch, std = (_spread(run, values) for values in (run.step_size, run.batch, run.noise_std))
    noise = step * std / (np.sqrt(batch) if run.noise == "gaussian" else 1.0)
    half = run.diameter / 2 if run.diameter is not None else _reach(run, step, noise)
    unit = half if run.diameter is not None else float(np.sqrt(np.sum(noise**2)))
    if run.smoothness is None:
        steepest = _CLIFF * run.lipschitz / float(noise.min())
    else:
        steepest = run.smoothness - run.strong_convexity
    return Setting(run, step, batch, noise, half, unit, steepest)


def _spread(run: LastIterate, values: float | tuple[float, ...]) -> Vector:
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    per_pass = array if array.size in (run.rounds, run.total) else np.full(run.rounds, array[0])
    return per_pass if per_pass.size == run.total else np.tile(per_pass, run.passes)


def _reach(run: LastIterate, step: Vector, noise: Vector) -> float:
    """Return half the length of an interval that a run without projection hardly ever leaves.

    The chance of leaving it is charged, not neglected.
    """
    drift = variance = 0.0
    push = run.lipschitz * (2 if run.sampled else 1)  # a victim that draws its rounds comes on top of the others
    for eta, sigma in zip(step, noise, strict=True):
        slope = abs(1 - eta * run.strong_convexity)
        drift, variance = slope * drift + eta * push, slope**2 * variance + sigma**2
    tails = _DEVIATIONS if run.noise == "gaussian" else 3 * _DEVIATIONS
    return float(drift + tails * math.sqrt(variance))


def instance_of(given: Setting, design: Design, *, clipped_last: bool = True) -> Instance:
    """Return the two data sets of this design.

    ``clipped_last`` false: the last state is not projected, which a chain in many dimensions can nearly reach.
    """
    run = given.run
    sides = [_mixture(given, design, side) for side in (0, 1)]
    return Instance(
        lo=-given.half,
        hi=given.half,
        start=max(-given.half, min(given.half, design.start * given.unit)),
        first=sides[0],
        second=sides[1],
        noise=run.noise,
        projected=run.diameter is not None,
        clipped_last=clipped_last or run.diameter is None,
        label=str(design),
    )


def _mixture(given: Setting, design: Design, side: int) -> Mixture:
    """Return all that may happen on one side, with its chance: where the victim takes part, and when the run stops."""
    run = given.run
    weighted = [(weight, _chain(given, design, side, turns)) for weight, turns in _taken(given, design)]
    total = math.fsum(weight for weight, _ in weighted)
    if run.stopping == "random":
        count = given.total
        weighted = [(weight / count, chain[:stop]) for weight, chain in weighted for stop in range(1, count + 1)]
    return tuple((weight / total, chain) for weight, chain in weighted)


def _taken(given: Setting, design: Design) -> list[tuple[float, frozenset[int]]]:
    """Return the rounds (from 0, of all passes) in which the victim may take part, each set with its chance."""
    run = given.run
    if run.sampled:
        return _drawn(run)
    a_pass = given.batch[: run.rounds]
    shares = (a_pass / (run.records if run.records is not None else a_pass.sum())).tolist()
    places = range(run.rounds) if run.order == "secret" else [(design.place or run.rounds) - 1]
    if len(places) * given.total > MOST_CHAINS:
        raise CannotCertify(f"a secret order is followed for up to {MOST_CHAINS} rounds in all places together")
    found = [
        (shares[place] if run.order == "secret" else 1.0, frozenset(range(place, run.total, run.rounds)))
        for place in places
    ]
    if run.order == "secret" and (idle := 1 - math.fsum(weight for weight, _ in found)) > 1e-12:
        found.append((idle, frozenset()))
    return found


def _drawn(run: LastIterate) -> list[tuple[float, frozenset[int]]]:
    """Return every outcome of the victim's draws: a coin for each round, or a round of each pass."""
    count = 2**run.total if run.order == "poisson" else run.rounds**run.passes
    if count * run.total > MOST_CHAINS:
        raise CannotCertify(f"secret draws are followed for up to {MOST_CHAINS} rounds in all outcomes together")
    if run.order == "independent":
        each = product(range(run.rounds), repeat=run.passes)
        return [(1 / count, frozenset(k * run.rounds + place for k, place in enumerate(places))) for places in each]
    rate, found = run.rate or 1.0, []
    for coins in product((False, True), repeat=run.total):
        joined = frozenset(turn for turn, heads in enumerate(coins) if heads)
        weight = rate ** len(joined) * (1 - rate) ** (run.total - len(joined))
        found += [(weight, joined)] if weight > 0 else []
    return found


def _chain(given: Setting, design: Design, side: int, taken: frozenset[int]) -> Chain:
    """Return the rounds with the victim in those that are ``taken``; steps that are equal are one object."""
    known: dict[tuple[float, float, float, int, bool], Step] = {}
    chain = []
    for k in range(given.total):
        key = (float(given.step[k]), float(given.batch[k]), float(given.noise[k]), _kind(given, design, k), k in taken)
        if key not in known:
            known[key] = Step(_map(given, design, key, side), key[2])
        chain.append(known[key])
    return tuple(chain)


def _kind(given: Setting, design: Design, turn: int) -> int:
    """0 before the victim's round, 1 in it, 2 after it, 3 the last round of a pass; where it is secret, 0 (or 3)."""
    run, number = given.run, turn % given.run.rounds + 1
    if run.order == "secret":
        return 0
    if run.sampled:
        return 3 if turn == run.total - 1 else 0
    place = design.place or run.rounds
    if number <= place:
        return int(number == place)
    return 3 if number == run.rounds else 2


def _map(given: Setting, design: Design, key: tuple[float, float, float, int, bool], side: int) -> Line:
    """Return w - eta (penalty + mean of the data gradients), linear between its knots."""
    run, (eta, batch, _, kind, used) = given.run, key
    others = (design.before, design.beside, design.after, design.last)[kind]
    bound, half = run.lipschitz, given.half
    slope, centre = others.curvature * given.steepest, others.centre * given.unit
    kinks = [centre + (edge - others.offset) * bound / slope for edge in (-1, 1)] if slope else []
    knots = np.unique(np.array([-half, *(kink for kink in kinks if -half < kink < half), half]))
    data = np.clip(others.offset * bound + slope * (knots - centre), -bound, bound)
    if used:
        victim = bound if side == 0 else (-bound if run.neighbours == "replace-one" else 0.0)
        data = data + victim / batch if run.sampled else ((batch - 1) * data + victim) / batch
    values = knots - eta * (run.strong_convexity * knots + data)
    return Line(tuple(knots.tolist()), tuple(values.tolist()))
