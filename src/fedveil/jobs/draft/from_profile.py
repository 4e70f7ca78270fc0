"""A study that states what a profile has learned, so that a run of it need not learn it again."""

from dataclasses import replace

from fedveil.data.spec import OTHER, Features
from fedveil.jobs.draft.study import Draft
from fedveil.stages.profile.found import Profile

MISSING_WORD = "(missing)"  # the category of an empty cell, where many are
_COVERED = 0.8  # of the targets, that a drafted range must be seen to hold
_RARE = "has no word that is frequent enough to be shown"


def with_profile(draft: Draft, profile: Profile) -> Draft:
    """Return the draft with ranges, categories and labels as they were profile."""
    target = str(profile.target)
    numbers = [one for one in profile.numbers if one.name != target]
    texts = [one for one in profile.texts if one.name != target]
    shown = [one for one in texts if one.words]
    fill = {one.name: MISSING_WORD for one in shown if one.missing > 0}
    categories = {}
    for one in shown:
        words = tuple(word for word, _ in one.words if word not in (OTHER, MISSING_WORD))
        categories[one.name] = (*words, *([MISSING_WORD] if one.name in fill else []), OTHER)
    classes, span = _labels(profile, target)
    known = draft.target
    return replace(
        draft,
        target=replace(
            known,
            classes=known.classes or classes,
            span=known.span if known.declared else span,
            drops_unlisted=bool(classes) and not known.classes,
        ),
        rules=Features(
            scale={one.name: (one.low, one.high) for one in numbers},
            bend={one.name: one.bend for one in numbers if one.bend > 0},
            categories=categories,
            fill={**fill, **draft.rules.fill},
        ),
        columns=replace(
            draft.columns, unused={**draft.columns.unused, **{one.name: _RARE for one in texts if not one.words}}
        ),
    )


def _labels(profile: Profile, target: str) -> tuple[tuple[str, ...], tuple[float, float] | None]:
    """The classes of the target in the order of their names, or the range of a number to predict."""
    listed, number = profile.classes, profile.number(target)
    if listed is not None:
        words = [word for word, _ in listed.words]
        return tuple(sorted(words, key=_order)), None
    if number is None or number.share < _COVERED * (1 - number.missing):
        return (), None  # noise hides where the targets lie, and a range that cuts them would be learned wrongly
    return (), (number.low, number.high)


def _order(word: str) -> tuple[int, float, str]:
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word
