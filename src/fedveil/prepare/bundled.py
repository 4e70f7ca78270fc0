"""What was learned, as the preparation that travels with a model: the same rows, to rounding, from raw columns."""

import math

import numpy as np

from fedveil.data.cells import canonical
from fedveil.data.column import ZERO, Column
from fedveil.data.preparation import READING, Labels, Preparation
from fedveil.data.spec import RULES, Fill, Source
from fedveil.data.tables import stated
from fedveil.prepare.columns import MISSING_WORD
from fedveil.prepare.learned import OTHER, LearnedPreparation, Number


def preparation_of(learned: LearnedPreparation, source: Source, target: str | None) -> Preparation:
    """The learned rule column by column, with the place of each feature in a row."""
    outline = learned.outline
    columns = [_number(one, learned.factor, source) for one in learned.numbers]
    places = list(range(len(columns)))
    start = len(columns)
    for name in outline.stated_texts:
        words = outline.categories[name]
        fill = _stated(source, name)
        columns.append(Column(name=name, categories=words, weight=learned.factor, fill=ZERO if fill is None else fill))
        places += range(start, start + len(words))
        start += len(words)
    for index, name in enumerate(outline.open_texts):
        own = [(place, one) for place, one in enumerate(learned.categories) if one.column == name]
        columns.append(_texts(learned, name, [(one.word, one.share) for _, one in own], index, source))
        places += [*(start + place for place, _ in own), start + outline.slots + index]
    return Preparation(
        columns=tuple(columns),
        labels=Labels.of(source, target),
        bound=outline.bound,
        intercept=outline.intercept,
        missing=source.missing,
        reading={key: value for key, value in stated(source).items() if key in READING},
        slots=tuple(places),
        width=outline.width - (1 if outline.intercept else 0),
    )


def _number(one: Number, factor: float, source: Source) -> Column:
    """Cut, bent, centred and divided; a missing number is the mean, unless the study states a fill."""
    plain = Column(name=one.name, range=(one.range.low, one.range.high), unit=one.range.unit)
    low, high = plain.bent(np.array([one.range.low, one.range.high])).tolist()
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    centre = middle + one.mean * half
    mean = centre if one.range.unit == 0 else one.range.unit * math.sinh(centre)
    fill = _stated(source, one.name)
    return Column(
        name=one.name,
        range=plain.range,
        unit=plain.unit,
        centre=centre,
        scale=half * one.spread / factor,
        fill=mean if fill is None else fill,
    )


def _texts(learned: LearnedPreparation, name: str, own: list[tuple[str, float]], index: int, source: Source) -> Column:
    """Learned categories, each less its share, and last one for all others."""
    words = [word for word, _ in own]
    given = _stated(source, name)
    missing = MISSING_WORD if MISSING_WORD in words else OTHER
    fitting = given in RULES or (given is not None and canonical(given) in words)
    return Column(
        name=name,
        categories=(*words, OTHER),
        offsets=(*(share for _, share in own), learned.others[index]),
        weight=learned.factor,
        fill=given if fitting and given is not None else (missing if given is None else OTHER),
        unknown=OTHER,
    )


def _stated(source: Source, name: str) -> Fill | None:
    """The fill that the study states for a column; None where it states none."""
    given = source.fill.get(name, source.default_fill)
    return None if given == "refuse" and name not in source.fill else given
