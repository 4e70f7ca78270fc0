"""What an attacker gains, and what the promise does not cover: what a plan makes public without noise.

The gain is taken from the whole privacy curve of the promise rather than from one of its points. Every point (epsilon,
delta) of a curve is a promise of its own, so a test is held by all of them at once: its greatest power is the least
over the points. Page: docs/report.md; the rates are those of Kairouz, Oh and Viswanath, "The Composition Theorem for
Differential Privacy".
"""

import math
from dataclasses import dataclass

from scipy.optimize import brentq

from fedveil.planning.plan import Plan
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
    for curve in view.proof.curves:
        if curve.adversary == seen.adversary:
            points |= {delta: epsilon for delta, epsilon in curve.points if epsilon is not None}
    ordered = tuple(sorted(points.items()))
    power = {
        alarms: min(words.detection_rate(epsilon, delta, alarms) for delta, epsilon in ordered) for alarms in ALARMS
    }
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
    root = float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 0.0, high, xtol=1e-9))
    while gaussian_epsilon(root, delta) < epsilon:  # the root may lie a hair below
        root = root * (1 + 1e-8) + 1e-12
    return root


def unprotected(view: View) -> list[tuple[str, str]]:
    """Return every quantity that no noise protects, with its value or the reason, as (what, remark)."""
    plan, data = view.plan, view.plan.data
    rows = [
        ("number of records", f"{data.records:,}, used as a public number"),
        ("number of clients", f"{data.clients:,}"),
        ("records of the smallest and the largest client", f"{data.smallest_client:,} and {data.largest_client:,}"),
        ("number of features, classes", f"{data.features:,}, {data.classes:,}"),
        ("names and types of the columns, names of the classes", "public; the bundle and the study name them"),
        ("what the study states", "ranges, categories, fills, scales and bounds, as far as it states them"),
        *_types(plan),
        *_places(plan),
        *_held_out(view),
    ]
    if plan.held_out.baselines and not plan.origin.public:
        rows.append(("metrics of baselines", "computed from the records without noise"))
    if not plan.selection:
        rows.append(("time", "how long the run took, and its rounds' times where messages can be seen"))
    else:
        held = "NOT to be published: it tells how many trials there were, and the promise holds while nobody knows"
        rows.append(("time, and when the files were written", held))
    rows += [(row.what, f"file {row.file}: not covered") for row in view.released if not row.covered]
    return rows


def _types(plan: Plan) -> list[tuple[str, str]]:
    if not plan.preparation:
        return []
    why = "stated (prepare.numbers, prepare.texts), or read off cells of which no single unit could change them"
    return [("which columns hold numbers, and which texts", why)]


def _places(plan: Plan) -> list[tuple[str, str]]:
    if plan.origin.places is None:
        return [("who holds which record", "by row numbers, which tell nothing about values")]
    return [("who holds which record", f"decided by the {plan.origin.places}, which counts as public")]


def _held_out(view: View) -> list[tuple[str, str]]:
    utility = view.utility
    if utility is None:
        return []
    if utility.public:
        return [("held-out test records", f"{utility.records:,}, declared public: their metrics are exact")]
    return [
        (
            "held-out test records",
            f"{utility.records:,}, not declared public: their metrics are exact, without noise: charged as infinite",
        )
    ]
