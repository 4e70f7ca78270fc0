"""The worst case searched: data sets within a run's constants whose last model gives away the most. Deterministic.

A search can only miss, never overstate: every value it reports is the exact lower bound of one instance.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedveil.audit.chain import Instance
from fedveil.audit.exact import COARSE, FINE, Released, released
from fedveil.audit.instances import Design, Setting, Shape, instance_of, setting
from fedveil.errors import BadValue, CannotCertify
from fedveil.mechanism import LastIterate
from fedveil.theory.numerics import check_delta

_PLACES = 12  # tried with the plainest design when the place is open
_FIRST, _LEAST = 0.5, 0.1  # steps of the search, in the units of a design
Dimension = Literal["one", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The most telling instance found; its epsilon at ``delta`` lies from ``epsilon_lower`` to ``epsilon_upper``."""

    design: Design
    instance: Instance
    delta: float
    epsilon_lower: float
    epsilon_upper: float
    tried: int
    laws: Released = field(compare=False, repr=False)


def worst_case(run: LastIterate, delta: float, *, dimension: Dimension = "any", sweeps: int = 6) -> Worst:
    """The worst found over loss shapes, starts and (where it is open) the victim's place; ``sweeps`` bounds the search.

    ``dimension``: "one" for models that are one number; "any" for what some dimension comes arbitrarily near to, which
    is what a bound that does not name the dimension must hold for. With Laplace noise, and with random stops among
    rounds of unequal noise, "any" is taken as "one", where the limit is not known.
    """
    check_delta(delta)
    given = setting(run)
    even = run.stopping == "end" or bool(given.noise.max() == given.noise.min())
    clipped = dimension == "one" or run.noise == "laplace" or not even
    values: dict[Design, float] = {}

    def value(design: Design) -> float:
        if design not in values:
            values[design] = _score(given, design, delta, clipped)
        return values[design]

    ranked = sorted(_seeds(given), key=value, reverse=True)
    best = max((_climb(given, seed, value, sweeps) for seed in ranked[:2]), key=value)
    if value(best) == -math.inf:
        raise CannotCertify("no instance of this run can be followed: the domain is too wide for its noise")
    instance = instance_of(given, best, clipped_last=clipped)
    pair = released(instance, FINE)
    return Worst(
        design=best,
        instance=instance,
        delta=delta,
        epsilon_lower=pair.epsilon_lower(delta),
        epsilon_upper=pair.epsilon_upper(delta),
        tried=len(values),
        laws=pair,
    )


def _score(given: Setting, design: Design, delta: float, clipped: bool) -> float:
    """Epsilon on the coarse cells; below zero, by the logarithm of delta at epsilon 0, where epsilon says nothing."""
    try:
        pair: Released = released(instance_of(given, design, clipped_last=clipped), COARSE)
    except BadValue:  # too steep or too wide for the panels: this design is passed over
        return -math.inf
    epsilon = pair.epsilon_lower(delta)
    return epsilon if epsilon > 0 else math.log(max(pair.delta_lower(0.0), 1e-300)) - 1


def _seeds(given: Setting) -> list[Design]:
    run = given.run
    if run.order != "public":
        places: list[int | None] = [None]
    elif run.place is not None:
        places = [run.place]
    else:
        step = max(1, run.rounds // _PLACES)
        places = list(range(run.rounds, 0, -step))
    designs = (design for place in places for design in _plain(given, Design(place=place)))
    return list(dict.fromkeys(_tidy(given, design) for design in designs))


def _tidy(given: Setting, design: Design) -> Design:
    """Shapes of records that this run does not have are plain, so that alike designs are equal."""
    idle: dict[str, Any] = {name: Shape() for name, used in _active(given, design).items() if not used}
    return replace(design, **idle)


def _active(given: Setting, design: Design) -> dict[str, bool]:
    run = given.run
    place, public = design.place or run.rounds, run.order == "public"
    return {
        "before": not public or place > 1,
        "beside": public and float(given.batch[place - 1]) > 1,
        "after": public and place < run.rounds - 1,
        "last": run.sampled or (public and place < run.rounds),
    }


def _plain(given: Setting, base: Design) -> Iterator[Design]:
    """Starts and drifts worth trying before any search."""
    eta, lam = float(given.step.min()), given.run.strong_convexity
    flat = min(1.0, max(0.0, 1 / eta - lam) / given.steepest) if given.steepest > 0 else 0.0
    for start in (0.0, -1.0, -0.5):
        gather = Shape(0.0, flat, start)  # earlier rounds that bring the state back to one point
        yield replace(base, start=start)
        yield replace(base, start=start, before=gather)
        for drift in (-1.0, 1.0):
            push = Shape(drift)
            yield replace(base, start=start, before=push, beside=push, after=push, last=push)
    if given.run.order != "secret" and given.steepest > 0:
        for bend in (1.0, -1.0) if not given.run.convex else (1.0,):
            yield replace(base, after=Shape(0.0, bend, 0.0), last=Shape(0.0, bend, 0.0))


def _climb(given: Setting, design: Design, value: Callable[[Design], float], sweeps: int) -> Design:
    """Compass search: one number at a time, up and down; the step is halved when nothing helps."""
    step = _FIRST
    for _ in range(sweeps):
        best = design
        for move in _moves(given, design):
            for sign in (1, -1):
                tried = move(best, sign * step)
                if value(tried) > value(best):
                    best = tried
                    break
        if best == design:
            step /= 2
            if step < _LEAST:
                break
        design = best
    return design


def _moves(given: Setting, design: Design) -> Iterator[Callable[[Design, float], Design]]:
    """The numbers that matter for this run, as functions that change one of them within its limits."""
    run, active = given.run, _active(given, design)
    if run.diameter is not None:
        yield lambda d, by: replace(d, start=_within(d.start + by, -1.0))
    for name in (name for name, used in active.items() if used):
        yield _shape_move(name, "offset", -1.0)
        if given.steepest > 0:
            yield _shape_move(name, "curvature", 0.0 if run.convex else -1.0)
            yield _shape_move(name, "centre", -1.0)


def _shape_move(name: str, field: str, least: float) -> Callable[[Design, float], Design]:
    def move(design: Design, by: float) -> Design:
        shape: Shape = getattr(design, name)
        if field == "centre" and shape.curvature == 0:
            return design
        moved: dict[str, Any] = {name: replace(shape, **{field: _within(getattr(shape, field) + by, least)})}
        return replace(design, **moved)

    return move


def _within(value: float, least: float) -> float:
    return max(least, min(1.0, value))
