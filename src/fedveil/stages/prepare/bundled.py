"""What was learned, as the preparation that travels with a model: the same rows, to rounding, from raw columns."""

import math

import numpy as np

from fedveil.data.cells import canonical
from fedveil.data.column import OWN, ZERO, Column
from fedveil.data.row_rule import RowRule
from fedveil.data.spec import OTHER, RULES
from fedveil.stages.prepare.columns import MISSING_WORD
from fedveil.stages.prepare.learned import LearnedRule, Number
from fedveil.stages.prepare.reading import Reading


def preparation_of(learned: LearnedRule, reading: Reading) -> RowRule:
    """The learned rule column by column, with the place of each feature in a row."""
    outline = learned.outline
    columns = [(_curve if one.knots else _number)(one, learned.factor, reading) for one in learned.numbers]
    places, start = [], 0
    for one in learned.numbers:
        last = start + outline.block(one.name)
        places += [*range(start, start + len(one.knots) + 1), *([last - 1] if one.knots else [])]
        start = last
    for name in outline.stated_texts:
        words = outline.categories[name]
        fill = reading.stated_fill(name)
        columns.append(
            Column(
                name=name,
                categories=words,
                weight=learned.factor,
                fill=ZERO if fill is None else fill,
                unknown=OTHER if OTHER in words else "refuse",
            )
        )
        places += range(start, start + len(words))
        start += len(words)
    for index, name in enumerate(outline.open_texts):
        own = [(place, one) for place, one in enumerate(learned.categories) if one.column == name]
        columns.append(_texts(learned, name, [(one.word, one.share) for _, one in own], index, reading))
        places += [*(start + place for place, _ in own), start + outline.slots + index]
    return RowRule(
        columns=tuple(columns),
        labels=reading.labels,
        bound=outline.bound,
        intercept=outline.intercept,
        missing=reading.missing,
        reading=reading.files,
        slots=tuple(places),
        width=outline.unprojected,
        components=learned.components,
        stretch=learned.stretch,
    )


def _number(one: Number, factor: float, reading: Reading) -> Column:
    """Cut, bent, centred and divided; a missing number is the mean, unless the study states a fill."""
    plain = Column(name=one.name, range=(one.range.low, one.range.high), unit=one.range.unit)
    low, high = plain.bent(np.array([one.range.low, one.range.high])).tolist()
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    centre = middle + one.mean * half
    mean = centre if one.range.unit == 0 else one.range.unit * math.sinh(centre)
    fill = reading.stated_fill(one.name)
    return Column(
        name=one.name,
        range=plain.range,
        unit=plain.unit,
        centre=centre,
        scale=half * one.spread / factor,
        fill=mean if fill is None else fill,
    )


def _curve(one: Number, factor: float, reading: Reading) -> Column:
    """A line, hats, and an indicator for a missing number, unless the study states a fill."""
    fill = reading.stated_fill(one.name)
    ends = one.range.low, one.range.high
    knots = np.clip(one.range.numbers(np.array(one.knots)), *ends)  # rounding may lead past an end
    return Column(
        name=one.name,
        range=ends,
        unit=one.range.unit,
        knots=tuple(knots.tolist()),
        line=(one.mean, one.spread),
        weight=factor,
        fill=OWN if fill is None else fill,
        shares=one.shares,
    )


def _texts(learned: LearnedRule, name: str, own: list[tuple[str, float]], index: int, reading: Reading) -> Column:
    """Learned categories, each less its share, and last one for all others."""
    words, shares = [word for word, _ in own], (*(share for _, share in own), learned.others[index])
    given = reading.stated_fill(name)
    missing = MISSING_WORD if MISSING_WORD in words else OTHER
    fitting = given in RULES or (given is not None and canonical(given) in words)
    return Column(
        name=name,
        categories=(*words, OTHER),
        offsets=shares if learned.outline.knots is None else (),
        weight=learned.factor,
        fill=given if fitting and given is not None else (missing if given is None else OTHER),
        unknown=OTHER,
        shares=() if learned.outline.knots is None else shares,
    )
