"""Noise that the clients add in shares: how much each adds, and that 64-bit integers hold every sum.

Used by trainers and accountants alike. Proofs: docs/theory/noise-shares.md.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedveil.accounting.grid import Grid
from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.trust import Trust
from fedveil.theory.grid import LARGEST_STATE, LEAST_SHARE, MOST_STEPS, SAMPLER_DISTANCE, log_aliasing
from fedveil.theory.neighbours import SAFE

MODULUS = 2.0**64
_ROOM = MODULUS / 4  # a sum stays within half of the representable range, whatever happens
_LOOSE = 1 + 2.0**-20  # covers float errors, as in the clients' own checks
_SAMPLE = 13.0  # deviations: no sample of a share lies farther out, because the sampler's blocks end before


def share_deviation(deviation: float, trust: Trust, cohort: int) -> float:
    """Return the standard deviation of one client's share of a round's noise.

    The shares of the clients that are surely honest and answer make up the planned noise; all others are extra.

    >>> share_deviation(2.0, Trust(dropouts=3, colluders=3), 10)
    1.0
    """
    trust.check(cohort)
    return deviation / math.sqrt(trust.honest(cohort))


def extra_noise(cohorts: Sequence[int], trust: Trust) -> float:
    """Return the largest ratio of a round's variance to the planned one, reached if all clients answer."""
    return max(trust.surplus(cohort) for cohort in sorted(set(cohorts)))


def check_cohorts(cohorts: Sequence[int], trust: Trust) -> None:
    """Refuse rounds in which no client might be left whose noise protects the others."""
    for cohort in sorted(set(cohorts)):
        trust.check(cohort)


def check_punctual(trust: Trust, kind: str) -> None:
    """Refuse patience for an algorithm whose rounds need all of their clients at once, and noise that is not shared."""
    hint = "Its rounds need the answers of their own clients."
    require(trust.patience is None, "trust.patience", f"be left out for {kind}", trust.patience, hint)
    hint = "Only the updates of dpsgd can each carry all the noise that they need."
    require(trust.noise != "local", "trust.noise", f"be shares for {kind}", trust.noise, hint)


def check_range(noise: Vector, cohorts: Sequence[int], trust: Trust, exponent: int, most: Vector, each: Vector) -> None:
    """Refuse a grid on which a share is too coarse, or a sum of contributions and shares could exceed 64 bits.

    ``most`` and ``each`` bound the contributions of all clients to a round, and of one client: what a client sends as
    planned is never too large to be sent.

    Every sample is below 13 deviations of its share, so the bound holds for every outcome, not only for 12 deviations
    of the sum; the half step by which each contribution is rounded is far below the room that is left.
    """
    unit = 2.0**exponent
    share = np.array([share_deviation(s, trust, c) for s, c in zip(noise.tolist(), cohorts, strict=True)]) / unit
    hint = "Use a smaller radius, fewer clients, or noise that varies less between rounds."
    fine = share.min() >= LEAST_SHARE and share.max() <= MOST_STEPS
    require(fine, "A share of the noise", "hold 2**8 to 2**45 steps of the grid", float(share.min()), hint)
    single = float(np.max(each)) / unit * _LOOSE + 1
    require(single <= LARGEST_STATE, "A client's contribution", "stay within 2**52 steps of the grid", single, hint)
    reach = float(np.max(most / unit * _LOOSE + np.array(cohorts) * (_SAMPLE * share + 2)))
    require(reach <= _ROOM, "A round's sum with its noise", "stay within 2**62 steps of the grid", reach, hint)


def variation(noise: Vector, cohorts: Sequence[int], trust: Trust, found: Grid) -> float:
    """Return the total variation of all shares from their law, of their sums from theirs, and of rare events."""
    sizes = np.array(cohorts, dtype=np.float64)
    honest = sizes - trust.dropouts - trust.colluders
    # with the fewest steps, aliasing is largest
    steps = math.ldexp(float(np.min(noise / np.sqrt(honest))), -found.exponent)
    alias = log_aliasing(steps, float(sizes.max())) if steps >= LEAST_SHARE else 0.0
    each = SAMPLER_DISTANCE * float(np.sum(sizes + 1)) + sizes.size * math.exp(min(alias, 0.0))
    return min(1.0, found.dimension * each)


def with_masks(found: Grid, trust: Trust, adversary: Adversary, rounds: int) -> Grid:
    """Return the grid with the chance that masks reveal more than sums (docs/theory/secure-aggregation.md)."""
    if adversary == "server-with-secure-aggregation" and trust.server == "secure-aggregation":
        return replace(found, mishap=min(1.0, SAFE * rounds))
    return found
