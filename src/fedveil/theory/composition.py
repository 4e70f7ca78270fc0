"""Exact composition: a certified bracket on epsilon (or delta) for independent uses of given privacy-loss laws.

Chooses the grid and the tilt, rounds outward on both sides, and refines until the bracket is narrow.
Theory page: loss-distributions.md.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.convolution import (
    LONGEST,
    LatticeLaw,
    Tilt,
    TiltedSum,
    choose_window,
    convolve,
    from_above,
    grid_cells,
    log_moment,
    log_peak,
    lowered,
    minimum,
    opened,
    raised,
    sketch,
    variance,
)
from fedveil.theory.loss import FiniteLaw, LaplaceLaw, LossLaw
from fedveil.theory.numerics import LARGEST_EPSILON, LEAST, ROUNDING, check_delta, check_epsilon, smallest_epsilon

Uses = Sequence[tuple[LossLaw, int]]

NARROW = 2e-3  # width of the bracket over epsilon (or delta) at which refinement stops
LARGEST_COUNT = 10**15
_FIRST = 4e-3  # relative error of the grid in epsilon on the first pass; the second is chosen from its result
_SINGLE = 4e-4  # the same if only one pass is made
_PASSES = 4
_SKETCH = 1000  # number of atoms of the laws on which the tilt is chosen
_AFFORDED = 10.0  # powers of e by which the tilted sum may exceed what is asked for
_LEAST_DELTA = 1e-300  # an upper bound is never rounded to zero
_UNIT = 2.0**-52


class Bracket(NamedTuple):
    """A certified interval: ``lower <= truth <= upper``."""

    lower: float
    upper: float


class _Goal(NamedTuple):
    """What is asked for: the epsilon at a delta, or the delta at an epsilon."""

    log_delta: float | None
    epsilon: float | None


class _Setting(NamedTuple):
    """How a sum is computed; ``chernoff`` (epsilon, or log delta) is valid in any case."""

    uses: Uses
    goal: _Goal
    view: Tilt
    tail: float
    scale: float  # the step at which the grid's relative error is of order one
    finest: float
    chernoff: float


class _State(NamedTuple):
    """Progress of one alternative: a bracket on epsilon or log delta, and the fineness of the next pass (or 0)."""

    setting: _Setting
    lower: float
    upper: float
    fineness: float


def epsilon_upper(uses: Uses, delta: float, fineness: float = _SINGLE) -> float:
    """Return an upper bound on epsilon at ``delta`` for all uses together."""
    return worst_upper([uses], delta, fineness)


def epsilon_bracket(uses: Uses, delta: float, narrow: float = NARROW) -> Bracket:
    """Return a certified lower and upper epsilon at ``delta``."""
    return worst_bracket([uses], delta, narrow)


def delta_bracket(uses: Uses, epsilon: float, narrow: float = NARROW) -> Bracket:
    """Return a certified lower and upper delta at ``epsilon``."""
    return worst_delta([uses], epsilon, narrow)


def worst_upper(alternatives: Sequence[Uses], delta: float, fineness: float = _SINGLE) -> float:
    """Return an upper bound on the largest epsilon over the alternatives, such as the two directions of a pair."""
    check_delta(delta)
    worst = 0.0
    for setting in _settings(alternatives, _Goal(math.log(delta), None)):
        if setting.chernoff > worst:  # otherwise it cannot be the worst
            worst = max(worst, _pass(setting, fineness, above=True, below=False).upper)
    return worst


def worst_bracket(alternatives: Sequence[Uses], delta: float, narrow: float = NARROW) -> Bracket:
    """Return a certified lower and upper value of the largest epsilon over the alternatives."""
    check_delta(delta)
    return _worst(_settings(alternatives, _Goal(math.log(delta), None)), narrow)


def worst_delta(alternatives: Sequence[Uses], epsilon: float, narrow: float = NARROW) -> Bracket:
    """Return a certified lower and upper value of the largest delta over the alternatives."""
    check_epsilon(epsilon)
    settings = _settings(alternatives, _Goal(None, epsilon))
    if not settings:
        return Bracket(0.0, 0.0)
    lower, upper = _worst(settings, narrow)
    return Bracket(math.exp(lower), max(math.exp(upper), _LEAST_DELTA))


def worst_delta_upper(alternatives: Sequence[Uses], epsilon: float, fineness: float = _SINGLE) -> float:
    """Return an upper bound on the largest delta over the alternatives; cheaper than :func:`worst_delta`."""
    check_epsilon(epsilon)
    worst = -math.inf
    for setting in _settings(alternatives, _Goal(None, epsilon)):
        if setting.chernoff > worst:  # otherwise it cannot be the worst
            worst = max(worst, _pass(setting, fineness, above=True, below=False).upper)
    return max(math.exp(worst), _LEAST_DELTA) if worst > -math.inf else 0.0


def _worst(settings: Sequence[_Setting], narrow: float) -> Bracket:
    """Refine only the alternatives that can still be the worst."""
    if not settings:
        return Bracket(0.0, 0.0)
    least = -math.inf if settings[0].goal.log_delta is None else 0.0
    states = [_State(setting, least, _reported(setting, setting.chernoff), _FIRST) for setting in settings]
    lower = least
    for _ in range(_PASSES):
        states.sort(key=lambda state: -state.upper)
        before = states.copy()
        for index, state in enumerate(before):
            if _matters(state, lower, narrow):
                states[index] = _refined(state, narrow)
                lower = max(lower, states[index].lower)
        if states == before:
            break
    return Bracket(max(state.lower for state in states), max(state.upper for state in states))


def _matters(state: _State, lower: float, narrow: float) -> bool:
    if state.upper == math.inf:
        return state.fineness > 0 and lower < math.inf
    return state.fineness > 0 and state.upper - lower > _allowed(state, narrow)


def _allowed(state: _State, narrow: float) -> float:
    """Return the width at which a bracket is narrow: relative in epsilon, absolute in log delta."""
    return narrow if state.setting.goal.log_delta is None else narrow * state.upper


def _refined(state: _State, narrow: float) -> _State:
    after = _pass(state.setting, state.fineness, above=True, below=True)
    upper = min(state.upper, after.upper)
    lower = min(max(state.lower, after.lower), upper)
    moved = _State(state.setting, lower, upper, state.fineness)
    if upper == math.inf or state.setting.scale * math.sqrt(state.fineness) <= state.setting.finest:
        return moved._replace(fineness=0.0)
    width = upper - lower
    stuck = lower > 0 and width > 0.7 * (state.upper - state.lower)
    if stuck and state.fineness < _FIRST:  # the grid is not what limits the bracket
        return moved._replace(fineness=0.0)
    # errors are proportional to the square of the step
    wanted = 0.9 * _allowed(moved, narrow) / width if 0 < width < math.inf else 0.1
    return moved._replace(fineness=state.fineness * min(max(wanted, 0.07), 0.5))


def _pass(setting: _Setting, fineness: float, *, above: bool, below: bool) -> Bracket:
    """Evaluate one grid, from above, from below, or both; if the sum does not fit, only Chernoff's bound is left."""
    step = _aligned(max(setting.scale * math.sqrt(fineness), setting.finest), setting.uses)
    upper, lower = setting.chernoff, -math.inf
    if not 0 < step < math.inf:  # there are no finite losses
        return Bracket(lower, _reported(setting, upper))
    try:
        cells = [(grid_cells(law, step, setting.tail), times) for law, times in setting.uses]
        if above:
            total = _total([(raised(cell, step), times) for cell, times in cells], setting.view)
            upper = min(upper, _answer(total, setting.goal, upper=True)) if total is not None else upper
        if below:
            total = _total([(lowered(cell, step), times) for cell, times in cells], setting.view)
            lower = _answer(total, setting.goal, upper=False) if total is not None else lower
    except OverflowError:
        pass
    return Bracket(lower, _reported(setting, upper))


def _aligned(step: float, uses: Uses) -> float:
    """Return a step with a grid point a few ulps below the largest atom.

    Anywhere else, that atom would cost a first-order error.
    """
    atoms = [abs(loss) for law, _ in uses if isinstance(law, LaplaceLaw | FiniteLaw) for loss in law.reach(0.0)]
    largest = max(atoms, default=0.0)
    return largest / math.floor(largest / step) * (1 - 8 * _UNIT) if step <= largest < math.inf else step


def _total(parts: Sequence[tuple[LatticeLaw, int]], view: Tilt) -> TiltedSum | None:
    try:
        return convolve(parts, view)
    except OverflowError:
        return None


def _answer(total: TiltedSum, goal: _Goal, *, upper: bool) -> float:
    if goal.log_delta is not None:
        return total.epsilon(math.exp(goal.log_delta), upper=upper)
    return total.log_delta(goal.epsilon or 0.0, upper=upper)


def _reported(setting: _Setting, upper: float) -> float:
    """Return the value to report: a delta of at most one; an epsilon of at least zero, infinite beyond reach."""
    if setting.goal.log_delta is None:
        return min(upper, 0.0)
    return max(upper, 0.0) if upper < LARGEST_EPSILON else math.inf


def _settings(alternatives: Sequence[Uses], goal: _Goal) -> list[_Setting]:
    merged = [_merged(uses) for uses in alternatives]
    return [_setting(uses, goal) for uses in merged if uses]


def _merged(uses: Uses) -> tuple[tuple[LossLaw, int], ...]:
    """Merge equal laws and count them."""
    counts: dict[LossLaw, int] = {}
    for law, times in uses:
        rule = f"be a whole number from 0 to {LARGEST_COUNT:g}"
        require(0 <= times <= LARGEST_COUNT and times == int(times), "times", rule, times)
        counts[law] = counts.get(law, 0) + int(times)
    return tuple((law, times) for law, times in counts.items() if times > 0)


@lru_cache(maxsize=64)  # a bracket and its upper end, and observers who see the same, ask for the same
def _setting(uses: tuple[tuple[LossLaw, int], ...], goal: _Goal) -> _Setting:
    """Choose tilt, grid and cut-off on sketches (which dominate, so their Chernoff bound is valid)."""
    rounds = sum(times for _, times in uses)
    tail = max(math.exp(goal.log_delta if goal.log_delta is not None else -40.0) * 1e-7 / rounds, 1e-290)
    widths = [max(high - low, 1e-12) for low, high in (law.reach(tail) for law, _ in uses)]
    points = max(_SKETCH // 4, min(_SKETCH, 100 * _SKETCH // len(uses)))
    drawn = [(sketch(law, tail, points), times) for law, times in uses]
    infinite = min(1.0, sum(times * law.infinite for law, times in drawn))
    laws = opened(drawn)

    def bound(log_tilt: float) -> float:
        """Return Chernoff's bound, with room for the rounding of as many logarithms as there are uses."""
        tilt = math.exp(log_tilt)
        log_chernoff = log_moment(laws, tilt) + log_peak(tilt) + 64 * _UNIT * rounds
        if goal.log_delta is not None:
            room = math.exp(goal.log_delta) - infinite
            value = (log_chernoff - math.log(room)) / tilt if room > 0 else math.inf
        else:
            value = log_chernoff - tilt * (goal.epsilon or 0.0)
        return value if not math.isnan(value) else math.inf

    spread = math.sqrt(max(variance(laws, 0.0), 1e-24))
    log_tilt, best = minimum(bound, math.log(1e-3 / spread), math.log(max(300.0 / spread, 300.0 / min(widths))))
    tilt = math.exp(log_tilt)
    epsilon = goal.epsilon if goal.epsilon is not None else best if math.isfinite(best) else spread
    log_aim = goal.log_delta if goal.log_delta is not None else best - 3.0
    # A tilt below the best makes the tilted tails lighter and the window shorter, at the price of precision.
    for used in (tilt / 2, 0.7 * tilt, 0.85 * tilt, tilt):
        excess = log_moment(laws, used) - used * epsilon + log_peak(used) - log_aim
        if excess <= _AFFORDED:
            break
    log_outside = min(max(math.log(1e-5) - excess, -200.0), -3.0)
    # Rounding to a grid of step h adds at most rounds h^2/6 to the variance of the sum, and half of that to its mean;
    # the variance is judged by what a Gaussian of the same epsilon and tilt would have.
    size = max(epsilon, 0.1 / tilt)
    scale = math.sqrt(12 * min(size / tilt, size, spread**2) / rounds)
    finest = max(sum(widths) / (LONGEST - 8 * len(uses)), 1e-14) if len(uses) < LONGEST // 16 else math.inf
    if goal.log_delta is None:
        best = float(np.logaddexp(best, math.log(infinite) if infinite > 0 else -math.inf))
    return _Setting(uses, goal, choose_window(laws, used, log_outside), tail, scale, finest, best)


# From one data set to another through a third: two hops, each with its own privacy profile.
#
# $E_{a+b}(P\|Q) \le E_a(P\|N) + e^a E_b(N\|Q)$, because a test has $P(A) \le E_a(P\|N) + e^a N(A)$ and likewise for the
# second pair. At the best split this is the composition of the two trade-off functions, and exact for Gaussians on a
# line. Theory page: sampled-shift.md.

_POINTS = 160
_CELLS = 4000  # of the grid of losses, over the widest law's reach
_HOP_SKETCH = 400
_TAIL = 1e-13
_HOP_POINTS, _JOINED_POINTS = 96, 400  # of the profile of one hop, and of several
_REACH = 3.5  # epsilons up to which one hop is followed, over its epsilon at delta 1e-5


def profile(uses: Sequence[tuple[LossLaw, int]], least: float = 1e-13) -> tuple[Vector, Vector]:
    """Return epsilons from 0 on, and upper bounds on delta there for all uses, until delta is below ``least``."""
    laws = [(law, times) for law, times in uses if times > 0]
    widest = max(high - low for low, high in (law.reach(_TAIL) for law, _ in laws))
    step = max(widest, 1e-9) / _CELLS
    drawn = opened([(sketch(law, _TAIL, _HOP_SKETCH), times) for law, times in laws])
    total = convolve([(from_above(law, step, _TAIL), times) for law, times in laws], choose_window(drawn, 0.0, -34.0))
    top = max(step, step * (total.start + total.mass.size))
    far = top
    for share in (0.05, 0.1, 0.2, 0.4, 0.7):
        if total.log_delta(share * top, upper=True) <= math.log(least):
            far = share * top
            break
    epsilons = np.linspace(0.0, far, _POINTS)
    return epsilons, np.exp(np.array([total.log_delta(float(e), upper=True) for e in epsilons]))


def two_hops(
    first: tuple[Vector, Vector], second: tuple[Vector, Vector]
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return log delta as a function of epsilon, and epsilon as a function of delta, from the two hops' profiles."""
    epsilons, deltas = first

    def at(epsilon: Vector) -> Vector:
        """Return delta of the second hop.

        It is convex in exp(epsilon), so chords lie above it; beyond the last point, the last value is used.
        """
        grid, values = second
        inside = np.clip(epsilon, 0.0, grid[-1])
        place = np.clip(np.searchsorted(grid, inside, side="right") - 1, 0, grid.size - 2)
        share = np.expm1(inside - grid[place]) / np.expm1(grid[place + 1] - grid[place])
        return np.asarray(np.where(epsilon < 0, 1.0, values[place] * (1 - share) + values[place + 1] * share))

    def log_delta(epsilon: float) -> float:
        with np.errstate(over="ignore"):
            best = float(np.min(deltas + np.exp(np.minimum(epsilons, 700.0)) * at(epsilon - epsilons)))
        return math.log(min(best * (1 + 1e-9), 1.0)) if best > 0 else LEAST

    def epsilon_at(delta: float) -> float:
        grid, values = second
        falling = np.minimum.accumulate(values)
        best = math.inf
        for one, lost in zip(epsilons.tolist(), deltas.tolist(), strict=True):
            room = (delta * (1 - 1e-9) - lost) * math.exp(-min(one, 700.0))
            if room <= falling[-1] or room <= 0:
                continue
            index = int(np.searchsorted(-falling, -room))
            two = _between(grid, falling, index, room)
            best = min(best, one + two)
        return best if best < LARGEST_EPSILON else math.inf

    return log_delta, epsilon_at


def _between(grid: Vector, values: Vector, index: int, room: float) -> float:
    """Return where the chord in exp(epsilon) falls to ``room``."""
    if index == 0:
        return 0.0
    high, low = float(values[index - 1]), float(values[index])
    share = (high - room) / (high - low) if high > low else 1.0
    width = math.expm1(float(grid[index] - grid[index - 1]))
    return float(grid[index - 1]) + math.log1p(min(max(share, 0.0), 1.0) * width)


LogProfile = tuple[Vector, Vector]  # epsilons from 0 on, and upper bounds on the logarithm of delta there


def group_curve(log_delta: Callable[[float], float], size: int) -> Callable[[float], float]:
    r"""Return log delta of a group of ``size`` as a function of epsilon, from that of one member.

    Data sets that differ in a group are so many hops between neighbours apart, and the trade-off functions of the hops
    compose: $1 - (1 - f)^{\circ g}$, which is $G_{g\mu}$ for $G_\mu$. The group rule for (epsilon, delta) takes every
    hop at the same epsilon, and is never less. ``log_delta`` bounds both directions.
    """
    known: dict[int, LogProfile] = {}

    def hops(number: int) -> LogProfile:
        if number not in known:
            known[number] = (
                _one_hop(log_delta) if number == 1 else _joined(hops(number // 2), hops(number - number // 2))
            )
        return known[number]

    def log_delta_of_group(epsilon: float) -> float:
        if size == 1:
            return log_delta(epsilon)
        return float(_hopped(hops(size // 2), hops(size - size // 2), np.array([epsilon]))[0])

    return log_delta_of_group


def _one_hop(log_delta: Callable[[float], float]) -> LogProfile:
    """Return the profile of one member, far beyond what is asked of it: a later hop multiplies it by exp(epsilon)."""
    usual = min(smallest_epsilon(log_delta, 1e-5, tolerance=1e-2), 1e3)
    epsilons = max(usual, 1e-6) * _REACH * np.linspace(0.0, 1.0, _HOP_POINTS)
    logs = np.array([min(log_delta(float(e)), 0.0) for e in epsilons])
    return epsilons, np.minimum.accumulate(np.where(np.isnan(logs), 0.0, logs))


def _joined(first: LogProfile, second: LogProfile) -> LogProfile:
    epsilons = (first[0][-1] + second[0][-1]) * np.linspace(0.0, 1.0, _JOINED_POINTS)
    return epsilons, _hopped(first, second, epsilons)


def _hopped(first: LogProfile, second: LogProfile, epsilons: Vector) -> Vector:
    """Return the logarithm of the least of delta_1(a) + e^a delta_2(epsilon - a) over the points a of the first."""
    at, before = first
    with np.errstate(invalid="ignore"):
        after = _log_chords(second, epsilons[:, None] - at[None, :])
        both = np.logaddexp(before[None, :], at[None, :] + after)
    return np.asarray(np.minimum(np.min(both, axis=1) + ROUNDING, 0.0))


def _log_chords(profile: LogProfile, epsilon: Vector) -> Vector:
    """Return log delta between the points: delta is convex in exp(epsilon), so chords lie above it; 0 below 0."""
    grid, logs = profile
    inside = np.clip(epsilon, 0.0, grid[-1])
    place = np.clip(np.searchsorted(grid, inside, side="right") - 1, 0, grid.size - 2)
    share = np.expm1(inside - grid[place]) / np.expm1(grid[place + 1] - grid[place])
    with np.errstate(divide="ignore"):
        chord = np.logaddexp(logs[place] + np.log1p(-np.minimum(share, 1.0)), logs[place + 1] + np.log(share))
    return np.asarray(np.where(epsilon < 0, 0.0, chord))


def log_delta_upper(alternatives: Sequence[Uses], epsilon: float) -> float:
    """Return the logarithm of an upper bound on the largest delta over the alternatives."""
    return math.log(max(worst_delta_upper(alternatives, epsilon), 1e-300))
