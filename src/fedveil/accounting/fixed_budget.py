"""Mechanisms chosen one after another, each by what earlier ones released, inside a budget that was fixed beforehand.

Two cases in which the budget alone is what the whole run costs, whatever is chosen (docs/theory/fixed-budget.md): plain
Gaussian releases, whose inverse squared noise multipliers add up to the budget at most, and releases that are all
alike, which are counted.

References:
    Smith, Thakurta. Fully Adaptive Composition for Gaussian Differential Privacy. 2022.
    Koskela, Tobaben, Honkela. Individual Privacy Accounting with Gaussian Differential Privacy. ICLR 2023.
    Feldman, Zrnic. Individual Privacy Accounting via a Renyi Filter. NeurIPS 2021.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from fedveil.core.checks import require
from fedveil.privacy.mechanism import Gaussian, Mechanism, Primitive, Repeat, flatten

_UP = 1 + 2.0**-40


def costs_of(candidates: Sequence[Mechanism]) -> tuple[Fraction, ...]:
    """Return what each candidate takes of the budget, as an exact number.

    Refused are candidates for which neither case holds.

    >>> costs_of([Gaussian(noise_multiplier=2.0, neighbours="zero-out")])
    (Fraction(1, 4),)
    """
    found = [_one(mechanism) for mechanism in candidates]
    first, _ = found[0]
    plain = [(one, count) for one, count in found if isinstance(one, Gaussian)]
    if len(plain) == len(found) and len({one.neighbours for one, _ in plain}) == 1:
        return tuple(count / Fraction(one.noise_multiplier) ** 2 for one, count in plain)
    hint = "Only clip, step and rounds may differ then; or take shuffled batches, which may differ in their noise too."
    alike = all(one == first for one, _ in found)
    rule = "be alike in rate and noise where batches are sampled and a rule chooses"
    require(alike, "algorithm.segments", rule, [str(one) for one, _ in found][:3], hint)
    return tuple(Fraction(count) for _, count in found)


def at_most(candidates: Sequence[Mechanism], budget: float) -> Mechanism:
    """Return one mechanism that dominates every run whose chosen candidates cost at most ``budget`` together."""
    one, _ = _one(candidates[0])
    if isinstance(one, Gaussian):
        return Gaussian(noise_multiplier=1 / (math.sqrt(budget) * _UP), neighbours=one.neighbours)
    times = math.floor(budget)
    require(times >= 1, "The budget of all segments", "pay for one round at least", budget)
    return Repeat(of=one, times=times)


def _one(mechanism: Mechanism) -> tuple[Primitive, int]:
    """The release that a candidate repeats, and how often."""
    parts = flatten(mechanism)
    require(len(parts) == 1, "A segment to choose", "release the same in all of its rounds", len(parts))
    return parts[0]
