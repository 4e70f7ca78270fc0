"""What a certificate does not say but its plan implies: epsilon at other deltas, and at each place of a public order.

Every value holds for the run on its grid, and is a bound from above. Of a hidden run it is the least by the
certificate's own bound, not by all of them, and usually within a percent; of other methods it is the promise itself.
The certificate's own point is the certificate's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fedveil.accounting.evaluator import epsilon_of
from fedveil.accounting.grid import Grid, on_grid
from fedveil.accounting.places import PlaceCurve, place_curve
from fedveil.core.errors import CannotCertify, FedveilError
from fedveil.planning.plan import Plan
from fedveil.planning.promises import grid_of, hidden_views, promise
from fedveil.privacy.guarantee import Adversary, Answer, Bound, Moves, finite_or_none
from fedveil.theory.numerics import smallest_epsilon

DELTAS = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_FEW = DELTAS[1::2]  # where a preparation is composed with a hidden run, which takes longer
_PLACES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Epsilon (none: no guarantee) at each delta, by one bound."""

    adversary: str
    bound: str
    points: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Epsilon of each round's participants if the order were public; ``why_not`` says why there is none."""

    delta: float
    points: tuple[tuple[int, float | None], ...] = ()
    why_not: str = ""


def curve_of(plan: Plan, adversary: Adversary, bounds: Sequence[Bound], known: tuple[float, float | None]) -> Curve:
    """Epsilon over delta; ``known`` is the certificate's point (its epsilon is absent if the noise was no secret)."""
    if not plan.hides:
        return _at_deltas(plan, adversary, known)
    proved = {b.name: b.epsilon for b in bounds if b.status == "certified" and b.epsilon is not None}
    name = min(proved, key=lambda key: proved[key], default="")
    seen = next((e for e in hidden_views(plan, adversary) if e.name == name), None)
    if seen is None and plan.evaluation.apart:  # what is promised is about the counts of held-out records
        return _at_deltas(plan, adversary, known)
    deltas = sorted({*(DELTAS if not plan.measured else _FEW), known[0]})
    if seen is None or seen.log_delta is None:
        return Curve(adversary=adversary, bound=name, points=tuple((delta, None) for delta in deltas))
    direct = seen.epsilon is not None  # then it is quicker, and nearer, than inverting delta
    inverse = partial(epsilon_of, seen) if direct else Inverse(seen.log_delta, start=proved[name])
    grid = grid_of(plan)
    epsilons: dict[float, float | None] = {known[0]: proved[name] if known[1] is None else known[1]}
    for delta in sorted(deltas, key=lambda d: abs(math.log(d / known[0]))):  # outwards: what is known lies near
        if delta not in epsilons:
            answer = on_grid(grid, lambda inner: _answer(inverse(inner), inner, seen.moves), delta)
            epsilons[delta] = finite_or_none(answer.epsilon)
    return Curve(adversary=adversary, bound=name, points=tuple(sorted(epsilons.items())))


def _at_deltas(plan: Plan, adversary: Adversary, known: tuple[float, float | None]) -> Curve:
    """Return the promise at every delta: quick where no run has to be hidden."""

    def epsilon(delta: float) -> float | None:
        try:
            return finite_or_none(promise(plan, adversary, delta).epsilon)
        except CannotCertify:
            return None

    points = {delta: epsilon(delta) for delta in sorted({*DELTAS, known[0]})}
    if known[1] is not None:
        points[known[0]] = known[1]
    return Curve(adversary=adversary, bound="", points=tuple(points.items()))


class Inverse:
    """Epsilon at many deltas of one bound, in few evaluations: each starts from all that were made before.

    Every epsilon given satisfies its delta as evaluated; it is usually within a percent of the least.

    >>> inverse = Inverse(lambda e: -e, start=10.0)  # delta = exp(-epsilon)
    >>> [round(inverse(delta), 2) for delta in (1e-5, 1e-6)]
    [11.55, 13.84]
    """

    def __init__(self, log_delta: Callable[[float], float], start: float) -> None:
        self._log_delta = log_delta
        self._known: dict[float, float] = {}  # epsilon -> root of -log(delta), in which such curves are nearly straight
        for epsilon in (start, 1.2 * start + 1e-9):
            self._ask(epsilon)

    def __call__(self, delta: float) -> float:
        """Return an epsilon at this delta."""
        wanted, least = math.sqrt(-math.log(delta)), math.inf
        for margin in (0.002, 0.002, 0.004, 0.008, 0.016):
            epsilon = self._guess(wanted) * (1 + margin)
            reached = self._ask(epsilon) if epsilon < least else -math.inf
            if reached >= wanted:
                least = epsilon
                if reached <= 1.005 * wanted:  # near enough; otherwise look between
                    break
        return least if least < math.inf else smallest_epsilon(self._log_delta, delta, tolerance=1e-3)

    def _ask(self, epsilon: float) -> float:
        value = self._log_delta(epsilon)
        self._known[epsilon] = math.sqrt(max(-value, 0.0))
        return self._known[epsilon] if value <= 0 else -math.inf

    def _guess(self, wanted: float) -> float:
        """Along the line through the two known points next to what is wanted."""
        near = sorted(self._known.items(), key=lambda item: abs(item[1] - wanted))[:2]
        (first, here), (second, there) = near
        slope = (there - here) / (second - first)
        return max(first + (wanted - here) / slope, 0.0) if slope > 0 else math.inf


def _answer(epsilon: float, delta: float, moves: Moves | None = None) -> Answer:
    name = "one bound"
    bound = Bound(name=name, status="certified", reason="", epsilon=epsilon, moves=moves)
    return Answer(epsilon=epsilon, delta=delta, certified_by=name, bounds=(bound,))


def places_of(plan: Plan) -> Places:
    """What each round's participants would have if everyone knew who took part when."""
    run, delta = plan.run, plan.target.delta
    if plan.target.unit == "person":
        return Places(delta=delta, why_not="A person's records stand at several places of a pass.")
    if run.sampled:
        why = "Every unit draws its own rounds, and nobody knows whose turn is when: no unit has a place in a pass."
        return Places(delta=delta, why_not=why)
    if run.rounds == 1:
        return Places(delta=delta, why_not="A pass has one round only, so there is only one place.")
    curves: dict[float, PlaceCurve] = {}

    def at(inner: float) -> PlaceCurve:
        if inner not in curves:
            curves[inner] = place_curve(replace(run, order="public", place=None), delta=inner, most=_PLACES)
        return curves[inner]

    def epsilon(grid: Grid, index: int) -> float | None:
        return finite_or_none(on_grid(grid, lambda inner: _answer(at(inner).epsilons[index], inner), delta).epsilon)

    try:
        grid = grid_of(plan)
        first = epsilon(grid, 0)
        places = next(iter(curves.values())).places
        points = ((place, epsilon(grid, index)) for index, place in enumerate(places[1:], start=1))
        return Places(delta=delta, points=((places[0], first), *points))
    except FedveilError as error:
        return Places(delta=delta, why_not=f"It cannot be worked out for this run: {error}")
