r"""The cost of running on a grid with floats: very little epsilon, and hardly any delta.

The run on the grid is the rounding of a chain with the ideal noise whose means are displaced by at most $a_k$ in round
k. So on either data set its law and the ideal one are ``distance`` apart, $r^2 = \sum_k (a_k/\sigma_k)^2$, for any
bound that was proved for the ideal run. Theory page: grid-noise.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.divergence import log_laplace, log_theta
from fedveil.theory.numerics import ROUNDING

NoiseLaw = Literal["gaussian", "laplace"]
Moves = Sequence[tuple[float, int]]  # (how far one unit moves a noisy release, over its noise; number of such releases)

SAMPLER_DISTANCE: Final = 2.0**-100  # total variation of one sampled coordinate from its law, given uniform words
LEAST_STEPS: Final = 2.0**24  # least grid steps in a noise deviation, so that rounding is far below the noise
MOST_STEPS: Final = 2.0**45  # most grid steps, so that a sample is exact in 64 bits
LARGEST_STATE: Final = 2.0**52  # most grid steps of a coordinate, so that float64 holds it exactly
LEAST_SHARE: Final = 2.0**8  # least grid steps in one client's share of the noise, so that aliasing is negligible
_REACH: Final = 12.0  # deviations: 2 exp(-72) is below 2**-100
_LOG_TAIL: Final = -40 * math.log(10)  # the cost of a Gaussian displacement in delta
_CAPS: Final = 400  # number of losses of one release at which the cost of imperfect samples is tried
_UP: Final = 1 + 1e-12  # covers the rounding of a few float64 operations


@dataclass(frozen=True, slots=True)
class Slack:
    """A bound for two laws: E_epsilon <= exp(log_delta), both ways."""

    epsilon: float
    log_delta: float


def displacement(step: float, dimension: int, lipschitz: Vector, errors: Vector) -> Vector:
    r"""$a_k = \frac g2\sqrt d\,(1 + c_k) + e_k$: the mean is rounded, its argument was, and floats err by $e_k$."""
    return np.asarray((step / 2 * math.sqrt(dimension) * (1 + lipschitz) + errors) * _UP, dtype=np.float64)


def distance(shares: Vector, law: NoiseLaw) -> float:
    r"""Return how far apart trajectories are, for displacements over noise: $\sqrt{\sum r_k^2}$.

    For Laplace noise it is $\sum r_k$.
    """
    total = math.sqrt(float(np.sum(shares * shares))) if law == "gaussian" else float(np.sum(shares))
    return total * _UP * (1 + shares.size * 2.0**-52)


def slack_of(distance: float, law: NoiseLaw, log_tail: float = _LOG_TAIL) -> Slack:
    r"""Return the epsilon at which a displacement is practically invisible.

    Gaussian: $\theta_e(r) \le \Pr[N(0,1) > e/r - r/2] \le \frac12 e^{-(e/r - r/2)^2/2}$, which is ``exp(log_tail)`` at
    the answer, by default 1e-40.

    >>> slack_of(1e-9, "gaussian").epsilon
    1.35...e-08
    """
    require(distance >= 0, "distance", "be non-negative", distance)
    require(log_tail <= _LOG_TAIL, "log_tail", f"be at most {_LOG_TAIL:.4g}", log_tail)
    if law == "laplace":
        return Slack(distance, -math.inf)
    away = math.sqrt(2 * (-log_tail - math.log(2)))
    return Slack(distance * (distance / 2 + away) * _UP, log_tail if distance > 0 else -math.inf)


def deeper_slack(distance: float, law: NoiseLaw, epsilon: float) -> Slack:
    """Return the slack whose tail is still 1e-40 after multiplication by exp(epsilon), for large epsilons."""
    return slack_of(distance, law, _LOG_TAIL - epsilon)


def log_capped_cost(total_variation: float, moves: Moves, law: NoiseLaw) -> float:
    r"""Logarithm of what imperfect samples cost where every release is seen, whatever epsilon is; inf if that is all.

    $\min_c\;\tau(1 + e^c) + \sum_k \Pr[L_k > c]$, where $L_k$ is the loss of release k alone: rare samples can be
    misjudged by no more than a single release may tell. $\Pr[L_k > c] \le E_{c-1}/(1 - e^{-1})$, and $E_{c-1}$ is
    $\theta_{c-1}(m_k)$ at most for a release that moves by $m_k$. Every $c$ is valid; a few hundred are tried.

    >>> round(log_capped_cost(2.0**-90, ((3.0, 10),), "gaussian"), 1)
    -32.5
    >>> log_capped_cost(2.0**-90, ((20.0, 1),), "gaussian")
    inf
    """
    if not 0 <= total_variation < 1:
        return math.inf
    if total_variation == 0:
        return -math.inf
    caps = np.linspace(1.0, max(2.0, -math.log(total_variation)), _CAPS)
    divergence = log_theta if law == "gaussian" else log_laplace
    total = math.log(total_variation) + np.logaddexp(0.0, caps)
    for move, count in moves:
        above = divergence(caps - 1, np.full_like(caps, move)) - math.log1p(-math.exp(-1)) + ROUNDING
        total = np.logaddexp(total, above + math.log(count))
    least = float(np.min(total))
    return least if least < 0 else math.inf


def _log_cost(epsilon: float, slack: Slack, total_variation: float, log_capped: float = math.inf) -> float:
    """Return the logarithm of what is added to the ideal delta, if the ideal run was evaluated at ``epsilon``."""
    tail = slack.log_delta + np.logaddexp(0.0, slack.epsilon + epsilon)
    sampler = -math.inf
    if total_variation > 0:
        sampler = math.log(total_variation) + float(np.logaddexp(0.0, epsilon + 2 * slack.epsilon))
    return float(np.logaddexp(tail, min(sampler, log_capped)))


def log_delta_on_grid(
    epsilon: float, log_delta: float, slack: Slack, total_variation: float, log_capped: float = math.inf
) -> float:
    r"""On the grid at $\varepsilon + 2e$: $\ln[e^e\delta + t(1 + e^{e+\varepsilon}) + \tau(1 + e^{\varepsilon+2e})]$.

    ``log_delta`` is the ideal run's at ``epsilon``; $e$, $t$ are the slack's; $\tau$ is the total variation. What that
    costs is at most ``log_capped`` (from :func:`log_capped_cost`) where every release is seen.
    """
    if not (epsilon < math.inf and slack.epsilon < math.inf and log_delta < math.inf):
        return 0.0  # in doubt, delta = 1
    total = np.logaddexp(log_delta + slack.epsilon, _log_cost(epsilon, slack, total_variation, log_capped))
    return min(float(total) + 1e-12 * (1 + abs(float(total))) if total > -math.inf else -math.inf, 0.0)


def log_delta_left(epsilon: float, delta: float, slack: Slack, total_variation: float) -> float:
    """Return the largest ideal log delta at ``epsilon`` that gives ``delta`` on the grid.

    ``-inf`` if nothing is left.
    """
    if not (epsilon < math.inf and slack.epsilon < math.inf):
        return -math.inf
    share = math.exp(min(_log_cost(epsilon, slack, total_variation) - math.log(delta), 0.0)) * (1 + 1e-9)
    if not share < 1:
        return -math.inf
    left = math.log(delta) + math.log1p(-share) - slack.epsilon
    return left - 1e-11 * (1 + abs(left))


def halves_of(shares: float) -> float:
    r"""Return how many half grid steps one coordinate of a sum of rounded shares lies at most from a sum of real ones.

    The sum has the law of a Gaussian, plus ``shares - 1`` uniform numbers from (-1/2, 1/2), rounded: noise-shares.md.
    By Hoeffding their sum exceeds $\frac12\cdot12\sqrt{K-1}$ with a chance below 2**-100, which is charged as such.

    >>> halves_of(1), halves_of(3), halves_of(10001)
    (1.0, 3.0, 1201.0)
    """
    require(shares >= 1, "shares", "be at least 1", shares)
    return float(1 + min(shares - 1, _REACH * math.sqrt(shares - 1)))


def log_aliasing(steps: float, shares: float) -> float:
    r"""Logarithm of a bound on the total variation between one coordinate of a sum of rounded shares and its law.

    $e^{-\pi^2s^2}(9K(M+1) + 4)$, $M = \pi s^2\sqrt{2K} + K/2 + 1$, for shares of $s$ grid steps: noise-shares.md.
    """
    require(steps >= 1, "steps", "be at least 1 (a share of the noise over the grid step)", steps)
    if shares == 1:
        return -math.inf
    small = math.log(shares) - math.pi**2 * steps**2 / 2 <= math.log(0.1)  # then (1 + 2.1 exp(..))**shares < 2
    require(small, "shares", "be so few that their aliases do not add up", shares, "Choose a finer grid.")
    reach = math.pi * steps**2 * math.sqrt(2 * shares) + shares / 2 + 2
    return -(math.pi**2) * steps**2 + math.log(9 * shares * reach + 4)
