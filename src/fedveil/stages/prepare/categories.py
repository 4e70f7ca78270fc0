"""Category lists by thresholded noisy counts: what is frequent gets a place of its own, what is rare joins the others.

Nobody knows the words beforehand, so noise is added to the counts of those that occur, and only counts above a
threshold are shown. Two neighbouring data sets then show the same words unless a word that a single unit made up gets
past the threshold; the chance of that is the measurement's ``slip``. Proof: docs/theory/preparation.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtri

from fedveil.core.values import Indices, Vector
from fedveil.stages.prepare.columns import Columns
from fedveil.stages.sums import STEPS


@dataclass(frozen=True, slots=True)
class Category:
    """A word of a column and its share of the records, as measured."""

    column: str
    word: str
    share: float


def codes_of(columns: Columns, names: Sequence[str], present: Indices) -> tuple[Indices, list[tuple[str, str]]]:
    """Return every record's words as numbers, a column each, and the (column, word) that each number stands for.

    Only words of the records that are ``present`` get a number: a word that none of them holds must not be counted,
    even with zero, since noise could then show it. Other records get the number 0, and are not to be counted.
    """
    found: list[Indices] = []
    listed: list[tuple[str, str]] = []
    for name in names:
        words = columns.texts[name]
        occurring, own = np.unique(words.codes[present], return_inverse=True)
        codes = np.zeros(len(columns), dtype=np.int64)
        codes[present] = own.reshape(-1) + len(listed)
        found.append(codes)
        listed += [(name, words.spelt[code]) for code in occurring.tolist()]
    return np.column_stack(found), listed


def threshold_of(deviation: float, slip: float, columns: int, words: int, counted: int = 1) -> tuple[float, float]:
    """Return a safe threshold on counts, and a bound on the chance that a word of one unit passes it.

    ``deviation``: of the noise on a count; ``slip``: the chance that is aimed at. One unit can make up ``words`` words
    in each column, each counted with ``counted`` at most. The noise is rounded by less than one grid step.
    """
    tries = columns * words
    away = -float(ndtri(slip / tries))
    chance = tries * float(np.exp(log_ndtr(-away))) * (1 + 1e-9)
    return (counted + away * deviation) * (1 + 1e-12) + 1 / STEPS, chance


def frequent(
    counts: Vector, listed: Sequence[tuple[str, str]], threshold: float, records: int, most: int
) -> list[Category]:
    """Return at most so many categories whose noisy counts are above the threshold, the most frequent first."""
    shown = [int(place) for place in np.flatnonzero(counts > threshold)]
    shown.sort(key=lambda place: (-counts[place], listed[place]))
    return [Category(*listed[place], min(1.0, float(counts[place]) / records)) for place in shown[:most]]
