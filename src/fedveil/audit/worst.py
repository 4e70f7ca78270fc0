"""Search for the worst case: data sets within a run's constants whose last model reveals the most. Deterministic.

A search can only miss, never overstate: every value it reports is the exact lower bound of one instance.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedveil.audit.chain import Instance
from fedveil.audit.exact import COARSE, FINE, Released, released
from fedveil.audit.instances import Design, Setting, Shape, instance_of, setting
from fedveil.core.errors import BadValue, CannotCertify
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.numerics import check_delta

_PLACES = 12  # places tried with the simplest design if the place is open
_FIRST, _LEAST = 0.5, 0.1  # first and last step size of the search, in the units of a design
Dimension = Literal["one", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The most revealing instance found.

    Its epsilon at ``delta`` lies between ``epsilon_lower`` and ``epsilon_upper``.
    """

    design: Design
    instance: Instance
    delta: float
    epsilon_lower: float
    epsilon_upper: float
    tried: int
    laws: Released = field(compare=False, repr=False)


def worst_case(run: LastIterate, delta: float, *, dimension: Dimension = "any", sweeps: int = 6) -> Worst:
    """Return the worst case found over loss shapes, starts and (if it is open) the victim's place.

    ``sweeps`` bounds the search. ``dimension``: "one" for models that are one number; "any" for what some dimension
    comes arbitrarily near to, which a bound that does not name the dimension must cover. With Laplace noise, and with
    random stops among rounds of unequal noise, the limit is not known, and "any" is taken as "one".
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
    """Return epsilon on the coarse cells.

    If it is zero, return a negative score from the logarithm of delta at epsilon 0 instead.
    """
    try:
        pair: Released = released(instance_of(given, design, clipped_last=clipped), COARSE)
    except BadValue:  # too steep or too wide for the quadrature: skip this design
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
    """Make shapes of records that this run does not have plain, so that equivalent designs are equal."""
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
    """Yield starts and drifts worth trying before any search."""
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
    """Search one number at a time, up and down, and halve the step when nothing helps (compass search)."""
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
    """Yield functions that change one of the relevant numbers of this run within its limits."""
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
