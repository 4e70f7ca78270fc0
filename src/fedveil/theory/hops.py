r"""From one data set to another through a third: two hops, each with its own privacy profile.

$E_{a+b}(P\|Q) \le E_a(P\|N) + e^a E_b(N\|Q)$, because a test has $P(A) \le E_a(P\|N) + e^a N(A)$ and likewise for the
second pair. At the best split this is the composition of the two trade-off functions, and exact for Gaussians on a
line. Theory page: sampled-shift.md.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedveil.core.values import Vector
from fedveil.theory.composition import Uses, worst_delta_upper
from fedveil.theory.convolution import choose_window, convolve, opened
from fedveil.theory.lattice import from_above, sketch
from fedveil.theory.loss import LossLaw
from fedveil.theory.numerics import LARGEST_EPSILON, ROUNDING, smallest_epsilon

_POINTS = 160
_CELLS = 4000  # of the grid of losses, over the widest law's reach
_SKETCH = 400
_TAIL = 1e-13
_HOP_POINTS, _JOINED_POINTS = 96, 400  # of the profile of one hop, and of several
_REACH = 3.5  # epsilons up to which one hop is followed, over its epsilon at delta 1e-5


def profile(uses: Sequence[tuple[LossLaw, int]], least: float = 1e-13) -> tuple[Vector, Vector]:
    """Return epsilons from 0 on, and upper bounds on delta there for all uses, until delta is below ``least``."""
    laws = [(law, times) for law, times in uses if times > 0]
    widest = max(high - low for low, high in (law.reach(_TAIL) for law, _ in laws))
    step = max(widest, 1e-9) / _CELLS
    drawn = opened([(sketch(law, _TAIL, _SKETCH), times) for law, times in laws])
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
        return math.log(min(best * (1 + 1e-9), 1.0)) if best > 0 else -690.0

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
