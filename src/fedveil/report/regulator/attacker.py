"""What an attacker gains, from the whole privacy curve of the promise rather than from one of its points.

Every point (epsilon, delta) of a curve is a promise of its own, so a test is held by all of them at once: its greatest
power is the least over the points. Page: docs/report.md; the rates are those of Kairouz, Oh and Viswanath, "The
Composition Theorem for Differential Privacy".
"""

import math
from dataclasses import dataclass

from scipy.optimize import brentq

from fedveil.report import words
from fedveil.report.view import Observer, View
from fedveil.theory.concentrated import gaussian_epsilon, group_epsilon_delta

ALARMS = (0.01, 0.001)
_LARGEST_MU = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The most that anyone achieves.

    ``power``: by rate of false alarms, the share of true cases that a test finds. ``bit``: the chance to guess one
    secret bit of a record when everything else about it is known. ``mu``: a Gaussian mechanism of this mu is no more
    private at any delta of the curve; None without a promise. ``points``: the curve itself, (delta, epsilon).
    """

    power: dict[float, float]
    bit: float
    mu: float | None
    points: tuple[tuple[float, float], ...]


def gain(view: View, seen: Observer) -> Gain:
    """Return what an attacker gains from what this observer sees."""
    if seen.epsilon is None:
        return Gain(power=dict.fromkeys(ALARMS, 1.0), bit=1.0, mu=None, points=())
    points = {seen.delta: seen.epsilon}
    for curve in view.curves:
        if curve.adversary == seen.adversary:
            points |= {delta: epsilon for delta, epsilon in curve.points if epsilon is not None}
    ordered = tuple(sorted(points.items()))
    power = {alarms: min(words.detected(epsilon, delta, alarms) for delta, epsilon in ordered) for alarms in ALARMS}
    bit = min(_bit(epsilon, delta, view.plan.target.neighbours) for delta, epsilon in ordered)
    return Gain(power=power, bit=bit, mu=max(mu_of(epsilon, delta) for delta, epsilon in ordered), points=ordered)


def _bit(epsilon: float, delta: float, neighbours: str) -> float:
    """Two values of a bit are one exchange apart; where the promise is about leaving out, two steps: out, and in."""
    if neighbours != "replace-one":
        epsilon, delta = group_epsilon_delta(epsilon, delta, 2)
    return words.right_guesses(epsilon, delta)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the mu of the Gaussian mechanism with this epsilon at this delta, rounded up.

    >>> round(mu_of(4.3772, 1e-5), 4)
    1.0
    """
    if epsilon <= 0:
        return 0.0
    high = 1.0
    while gaussian_epsilon(high, delta) < epsilon:
        high *= 2
        if high > _LARGEST_MU:
            return math.inf
    found = float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 0.0, high, xtol=1e-9))
    while gaussian_epsilon(found, delta) < epsilon:  # the root may lie a hair below
        found = found * (1 + 1e-8) + 1e-12
    return found
