"""A preparation across machines: whoever knows the sums so far knows what is asked for next, or what was learned.

Both sides call the same function: a site with its own cells, to find what its clients contribute next; the aggregator
with no cells at all, to find the rule in the end. So both learn the same bits as a run in one process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from fedveil.prepare.columns import Columns, Outline, Words
from fedveil.prepare.learn import learn
from fedveil.prepare.learned import LearnedRule
from fedveil.stages.sums import Measurement, NoisySums
from fedveil.stages.units import Sums
from fedveil.values import Indices, Vector


@final
@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The next measurement, and what rows contribute to it."""

    planned: Measurement
    contributions: Sums


class NextError(Exception):
    """Carries the measurement that is next out of the computation."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked.planned.name)
        self.asked = asked


@final
@dataclass(slots=True)
class _Replayed:
    """Gives the sums that are known, in order, and stops at the first that is not."""

    sums: list[Vector]
    present: Indices

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        if not self.sums:
            raise NextError(Asked(planned, contributions))
        return self.sums.pop(0)


def replayed(
    planned: NoisySums,
    outline: Outline,
    columns: Columns,
    targets: Vector,
    classes: int,
    units: int,
    sums: Sequence[Vector],
) -> Asked | LearnedRule:
    """Return the measurement that comes after these noisy sums; what was learned, if there is none."""
    by = _Replayed(list(sums), np.arange(len(columns), dtype=np.int64))
    try:
        return learn(planned, outline, columns, targets, classes, units, by)
    except NextError as next_one:
        return next_one.asked


def learned_by(planned: NoisySums, outline: Outline, classes: int, units: int, sums: Sequence[Vector]) -> LearnedRule:
    """Return what all sums together say, computed without any record."""
    empty = Words(spelt=(), codes=np.zeros(0, dtype=np.int64))
    columns = Columns(numbers=np.zeros((0, len(outline.numbers))), texts=dict.fromkeys(outline.texts, empty))
    found = replayed(planned, outline, columns, np.zeros(0), classes, units, sums)
    if isinstance(found, Asked):
        raise TypeError(f"the sum of {found.planned.name} is missing")
    return found
