"""A preparation across machines: whoever adds up learns the rule from the sums, without a record.

A site runs the same function on its own cells, up to the next measurement (fedveil.stages.measuring.after). So both
learn the same bits as a run in one process.
"""

import numpy as np

from fedveil.stages.measuring import Measures
from fedveil.stages.prepare.columns import Columns, Outline, Words
from fedveil.stages.prepare.learn import learn
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.sums import NoisySums


def learned_by(planned: NoisySums, outline: Outline, classes: int, units: int, by: Measures) -> LearnedRule:
    """Return what the sums together say, computed without any record."""
    empty = Words(spelt=(), codes=np.zeros(0, dtype=np.int64))
    columns = Columns(numbers=np.zeros((0, len(outline.numbers))), texts=dict.fromkeys(outline.texts, empty))
    return learn(planned, outline, columns, np.zeros(0), classes, units, by)
