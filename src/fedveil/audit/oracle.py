"""Test the accountants: no certified bound may be below the exact privacy loss of an instance of the run."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from fedveil.accounting.compare import account_for
from fedveil.audit.exact import COARSE, FINE, Chain, Instance, Line, Mixture, Released, Step, released
from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Answer, finite_or_none
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.numerics import check_delta

# Adversarial data sets on a line for a hidden run: records as clamped gradients, within the run's own constants.
#
# A record's data gradient is $\mathrm{clip}(offset + curvature\,(w - centre), -L, L)$: linear, quadratic, Huber or
# clamp. To it is added a public penalty of curvature ``strong_convexity``, the same for everybody, centred in the
# middle of the domain; so the step has the constants that the mechanism names (losses.md). No code of the accountants
# is used.

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
    result = [
        (shares[place] if run.order == "secret" else 1.0, frozenset(range(place, run.total, run.rounds)))
        for place in places
    ]
    if run.order == "secret" and (idle := 1 - math.fsum(weight for weight, _ in result)) > 1e-12:
        result.append((idle, frozenset()))
    return result


def _drawn(run: LastIterate) -> list[tuple[float, frozenset[int]]]:
    """Return every outcome of the victim's draws: a coin for each round, or a round of each pass."""
    count = 2**run.total if run.order == "poisson" else run.rounds**run.passes
    if count * run.total > MOST_CHAINS:
        raise CannotCertify(f"secret draws are followed for up to {MOST_CHAINS} rounds in all outcomes together")
    if run.order == "independent":
        each = product(range(run.rounds), repeat=run.passes)
        return [(1 / count, frozenset(k * run.rounds + place for k, place in enumerate(places))) for places in each]
    rate, result = run.rate or 1.0, []
    for coins in product((False, True), repeat=run.total):
        joined = frozenset(turn for turn, heads in enumerate(coins) if heads)
        weight = rate ** len(joined) * (1 - rate) ** (run.total - len(joined))
        result += [(weight, joined)] if weight > 0 else []
    return result


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


# Search for the worst case: data sets within a run's constants whose last model reveals the most. Deterministic.
#
# A search can only miss, never overstate: every value it reports is the exact lower bound of one instance.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A claim that an instance refutes.

    ``claimed_delta`` at ``epsilon``, where ``exact_delta`` is certainly reached.
    """

    bound: str
    epsilon: float
    claimed_delta: float
    exact_delta: float
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What the oracle found: ``ratio`` is the best certified epsilon over the exact lower one, None if that is 0."""

    verdict: Literal["consistent", "broken"]
    delta: float
    epsilon: float
    certified_by: str | None
    worst: Worst
    dimension: Dimension
    evidence: tuple[Evidence, ...]

    @property
    def ratio(self) -> float | None:
        """The certified epsilon over what some instance reaches: at least 1 unless broken."""
        return self.epsilon / self.worst.epsilon_lower if self.worst.epsilon_lower > 0 else None


def check(
    run: LastIterate,
    delta: float,
    *,
    answer: Answer | None = None,
    dimension: Dimension = "any",
    sweeps: int = 6,
) -> Check:
    """Compare each certified bound of ``account_for`` (or of ``answer``, a claim) with the worst instance found.

    >>> run = LastIterate(rounds=2, place=2, step_size=0.5, lipschitz=1.0, smoothness=0.5, diameter=4.0, noise_std=2.0)
    >>> found = check(run, 1e-5, sweeps=1)
    >>> found.verdict, found.certified_by, found.ratio < 1.1
    ('consistent', 'unhidden', True)
    """
    worst = worst_case(run, delta, dimension=dimension, sweeps=sweeps)
    claims = answer if answer is not None else account_for(run, delta=delta)
    evidence = _refuted(claims, worst)
    if answer is None:  # the rest of the curve, where the instance still shows something
        for epsilon in (0.0, worst.epsilon_lower / 2):
            evidence += _refuted(account_for(run, epsilon=epsilon), worst)
    return Check(
        verdict="broken" if evidence else "consistent",
        delta=delta,
        epsilon=claims.epsilon,
        certified_by=claims.certified_by,
        worst=worst,
        dimension=dimension,
        evidence=evidence,
    )


def _refuted(claims: Answer, worst: Worst) -> tuple[Evidence, ...]:
    result = []
    for bound in claims.bounds:
        epsilon, claimed = bound.epsilon, bound.delta if bound.delta is not None else claims.delta
        if bound.status != "certified" or epsilon is None or not epsilon < math.inf:
            continue
        reached = worst.laws.delta_lower(epsilon)
        if not reached <= claimed:
            row = Evidence(
                bound=bound.name,
                epsilon=epsilon,
                claimed_delta=claimed,
                exact_delta=reached,
                instance=worst.instance.label,
            )
            result.append(row)
    return tuple(result)


def as_record(found: Check) -> dict[str, Any]:
    """Return the check as plain values for JSON; an infinite epsilon is null."""
    worst = found.worst
    return {
        "verdict": found.verdict,
        "delta": found.delta,
        "certified": {"epsilon": finite_or_none(found.epsilon), "by": found.certified_by},
        "exact": {
            "dimension": found.dimension,
            "epsilon_lower": worst.epsilon_lower,
            "epsilon_upper": finite_or_none(worst.epsilon_upper),
            "instance": worst.instance.label,
            "interval": [worst.instance.lo, worst.instance.hi],
            "start": worst.instance.start,
            "tried": worst.tried,
        },
        "ratio": finite_or_none(found.ratio),
        "evidence": [
            {
                "bound": row.bound,
                "epsilon": row.epsilon,
                "claimed_delta": row.claimed_delta,
                "exact_delta": row.exact_delta,
                "instance": row.instance,
            }
            for row in found.evidence
        ],
    }
