"""Rounds of DP-SGD in segments, each with its own rate, clip, noise and steps: what they cost, with their grid.

van Dijk and Nguyen (2023), section 5.2. Page: docs/segments.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from fedveil.accounting.calibrate import calibrate
from fedveil.accounting.compare import account_for
from fedveil.accounting.fixed_budget import at_most, costs_of
from fedveil.accounting.grid import Grid
from fedveil.core.checks import require
from fedveil.privacy.mechanism import Compose, Gaussian, Mechanism
from fedveil.privacy.target import Target
from fedveil.stages.train.choosing import most
from fedveil.stages.train.dpsgd.client_settings import MOST_ROUNDS, ClientSettings, Clipping, Sampling

if TYPE_CHECKING:
    from fedveil.stages.train.dpsgd.method import DpSgd


def charged(parts: Sequence[ClientSettings], sampling: Sampling, clipping: Clipping, target: Target) -> Mechanism:
    """Return what a client releases in all its segments: the composition of what it releases in each.

    Every segment draws its batches anew, so a shuffled or independent pass that a segment only began is charged whole.
    """
    each = tuple(settings.charged(sampling, clipping, target.neighbours) for settings in parts)
    return each[0] if len(each) == 1 else Compose(parts=each)


def affordable(
    settings: ClientSettings, sampling: Sampling, clipping: Clipping, target: Target, epsilon: float, delta: float
) -> int:
    """Return the largest number of a client's rounds whose records' cost is at most (epsilon, delta); 0 if none is."""

    def costs(rounds: int) -> float:
        part = replace(settings, rounds=rounds, step_size=1.0)
        return account_for(charged((part,), sampling, clipping, target), delta=delta).epsilon

    return largest_count(settings.rounds, lambda rounds: costs(rounds) <= epsilon)


def largest_count(high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to ``high`` that fits, where whatever is smaller than a fitting one fits too."""
    if fits(high):
        return high
    low = 0
    while high - low > 1:  # ``low`` fits and ``high`` does not
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def check_choice(method: DpSgd) -> None:
    """Refuse a rule where it could not choose, or where what it spends is not proved."""
    require(method.segments, "algorithm.choose", "go with segments to choose from", method.choice)
    network = method.network
    hint = "Leave delay, loss, jitter, speeds, max_deviation, participants and window out."
    waits = network.together and network.window == 1 and network.window_steps is None
    require(waits, "algorithm.choose", "go with clients that wait for each other in every round", "others", hint)
    costs = costs_of_segments(method)
    budget = 0.0 if method.choice is None else method.choice.budget
    paid = any(cost <= Fraction(budget) for cost in costs)
    hint = "Raise privacy.epsilon, or give the segments more noise or fewer rounds."
    rule = "have one whose cost is within the budget"
    require(paid, "algorithm.segments", rule, f"a least cost of {float(min(costs)):.6g} for {budget:.6g}", hint)


def costs_of_segments(method: DpSgd) -> tuple[Fraction, ...]:
    """Return what each candidate takes of the budget, which is the same for all neighbours."""
    return costs_of([p.charged(method.sampling, method.clipping, "replace-one") for p in method.client_settings])


def most_rounds(method: DpSgd, budget: float) -> int:
    """Return how many rounds all chosen segments together can have at most."""
    rounds = [float(settings.rounds) for settings in method.client_settings]
    return max(1, math.floor(most(rounds, costs_of_segments(method), budget)))


def most_segments(method: DpSgd) -> int:
    """Return how many segments are run at most."""
    if method.choice is None:
        return len(method.client_settings)
    return max(1, math.floor(Fraction(method.choice.budget) / min(costs_of_segments(method))))


def within_budget(method: DpSgd, target: Target, budget: float) -> Mechanism:
    """Return what a client releases at most, whatever is chosen, as one mechanism for the target's neighbours."""
    rows = [p.charged(method.sampling, method.clipping, target.neighbours) for p in method.client_settings]
    return at_most(rows, budget)


def joint_cost(method: DpSgd) -> float:
    """Return a budget that pays for every candidate once."""
    total = sum(costs_of_segments(method))
    found = float(total)
    return found if Fraction(found) >= total else math.nextafter(found, math.inf)


def fitting_budget(method: DpSgd, target: Target, epsilon: float, delta: float) -> float:
    """Return the largest budget that costs at most (epsilon, delta) when it is used up."""
    whole = within_budget(method, target, 1.0)
    if isinstance(whole, Gaussian):
        return float(calibrate(whole, epsilon=epsilon, delta=delta)[0]) ** -2

    def fits(count: int) -> bool:
        return account_for(within_budget(method, target, float(count)), delta=delta).epsilon <= epsilon

    high = 1
    while high < MOST_ROUNDS and fits(high):
        high *= 2
    found = largest_count(min(high, MOST_ROUNDS), fits)
    rule = f"cost at most epsilon {epsilon:.6g} at delta {delta:.6g} in one round at least"
    require(found >= 1, "algorithm.segments", rule, "more", "Raise privacy.epsilon, or give the segments more noise.")
    return float(found)


def joined_grids(grids: Sequence[Grid], times: Sequence[int]) -> Grid:
    """Return the grid's cost over segments, each as often as stated: squared distances add, and so do deviations."""
    pairs = list(zip(grids, times, strict=True))
    squares = math.fsum(count * grid.distance**2 for grid, count in pairs)
    return replace(
        grids[0],
        rounds=sum(count * grid.rounds for grid, count in pairs),
        distance=math.sqrt(squares) * (1 + 1e-12),
        total_variation=min(1.0, math.fsum(count * grid.total_variation for grid, count in pairs)),
    )
