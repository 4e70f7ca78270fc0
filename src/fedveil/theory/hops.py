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
from fedveil.theory.numerics import LARGEST_EPSILON

_POINTS = 160
_CELLS = 4000  # of the grid of losses, over the widest law's reach
_SKETCH = 400
_TAIL = 1e-13


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


def log_delta_upper(alternatives: Sequence[Uses], epsilon: float) -> float:
    """Return the logarithm of an upper bound on the largest delta over the alternatives."""
    return math.log(max(worst_delta_upper(alternatives, epsilon), 1e-300))
