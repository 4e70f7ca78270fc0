"""How much of the budget each measurement gets: a rule that looks at public numbers only.

Shares are shares of mu squared, the budget of Gaussian mechanisms, in which measurements and training add up. Each
measurement gets as much as makes its error small against what it is used for, and no more than a cap; what the cap
cannot make precise enough to pay is not measured at all. The constants were chosen on generated data and on the breast
cancer data of docs/preparation.md, which says so.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from fedveil.core.errors import CannotCertify, require
from fedveil.data.records import DataShape
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.learn import USUAL_SPREAD
from fedveil.stages.prepare.learned import CELLS, LEVELS, threshold_of
from fedveil.stages.prepare.ranges import BINS
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.sums import NO_SUMS, SIGNED, STEPS, Measurement, NoisySums, counted, root_up, variance_left
from fedveil.theory.concentrated import gaussian_epsilon

Built = TypeVar("Built")
# The most that each may take of the budget: for the error that is needed, and for the one that is wished for.
_CAPS: Final = {
    "ranges": (0.3, 0.05),
    "categories": (0.1, 0.05),
    "classes": (0.02, 0.01),
    "means": (0.1, 0.03),
    "spreads": (0.05, 0.02),
    "cells": (0.05, 0.02),
    "moments": (0.3, 0.1),
}
_FLOOR: Final = 0.002
# Deviations of the noise, needed and wished for. Counts as shares of all records: so that the bulk of a column stands
# out, and rare magnitudes do; so that words of three records in a hundred are found, and of one in a hundred.
_COUNT_ERRORS: Final = (0.02, 0.002)
_WORD_ERRORS: Final = (1 / 180, 1 / 600)
_CLASS_ERRORS: Final = (0.05, 0.01)
_MEAN_ERRORS: Final = (0.1, 0.02)  # of the usual spread
_SPREAD_ERRORS: Final = (0.06, 0.01)  # of counts, as shares of all records; the first is the most that still pays
_CELL_ERRORS: Final = (0.01, 0.002)  # likewise
_MOMENT_ERRORS: Final = (
    0.3,
    0.05,
)  # of what one of the components has of all squares, for the noise's largest eigenvalue
_SHORT: Final = 0.6  # of the longest row, to which rows are cut where noise weighs more than what is cut off
_SLIP: Final = 0.005  # of delta, for words that should not have been shown: half of what is kept for the grid


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One measurement before its noise is known: its share of mu squared, and what one unit adds at most."""

    name: str
    size: int
    bound: float
    share: float


def settle_preparation(
    request: PrepareRequest, outline: Outline, data: DataShape, target: Target, trust: Trust
) -> tuple[NoisySums, Outline]:
    """Return what will be measured, and the outline with no more slots than categories can be shown.

    ``data``: the records' counts; its features and bound are not looked at.
    """
    found = preparation_of(request, outline, data, target, trust)
    if found is None and outline.knots is not None:
        return NO_SUMS, replace(outline, slots=0)
    hint = 'State prepare.kind = "stated", and data.feature_bound.'
    require(found is not None, "[prepare]", "leave something to learn", "a study that states everything", hint)
    assert found is not None  # noqa: S101  for the type checker
    fitted = _with_slots(outline, found, data, target)
    if outline.components is not None:
        most, asked, hint = fitted.unprojected, outline.components, "Leave prepare.components out to keep all features."
        require(asked < most, "prepare.components", f"be below the {most} features", asked, hint)
    if fitted.turned and fitted != outline:
        # Pairs of features are measured, so their number follows from the slots that are kept.
        found = preparation_of(request, fitted, data, target, trust) or found
    return found, fitting(outline, found, data, target)


def fitting(outline: Outline, planned: NoisySums, data: DataShape, target: Target) -> Outline:
    """The outline of the rows that the plan makes: with the slots that its pairs are measured for, where there are any.

    Otherwise with no more slots than there can be words above the threshold.
    """
    if "categories" in planned and "moments" in planned:
        width = (math.isqrt(8 * planned["moments"].size + 1) - 1) // 2
        return replace(outline, slots=width - replace(outline, slots=0).unprojected)
    return _with_slots(outline, planned, data, target)


def _with_slots(outline: Outline, planned: NoisySums, data: DataShape, target: Target) -> Outline:
    """The outline with no more slots than there can be words above the threshold."""
    if "categories" not in planned:
        return replace(outline, slots=0)
    units = data.clients if target.unit == "client" else data.records
    threshold = planned["categories"].threshold or math.inf
    most = len(outline.open_texts) * math.floor(units / threshold)
    return replace(outline, slots=max(min(outline.slots, most), 1))


def preparation_of(
    request: PrepareRequest, outline: Outline, data: DataShape, target: Target, trust: Trust
) -> NoisySums | None:
    """Return what will be measured, and with which noise; None where everything is stated."""
    check_words(outline, trust)
    units = data.clients if target.unit == "client" else data.records
    left = variance_left(target.adversary, data, target, trust)
    if not left > 0:
        raise CannotCertify(f"{target.adversary} knows all of the preparation's noise, so nothing can be promised")
    # The noise of a sum of contributions of norm 1 that would use the whole budget, in the eyes of the target.
    whole = target.sensitivity / (total_mu(target) * math.sqrt(left))
    counts = whole / counted(True, target.neighbours)
    rules = _rules(request, outline, data, whole / units, counts / units)
    if not rules:
        return None
    planned = math.fsum(rule.share for rule in rules)
    scale = 1.0 if request.share is None else request.share / planned
    noises = ((whole if rule.name in SIGNED else counts) / math.sqrt(rule.share * scale) for rule in rules)
    made = (_measured(rule, noise, data, target) for rule, noise in zip(rules, noises, strict=True))
    return NoisySums(measurements=tuple(made), share=planned * scale)


def noisier(sums: NoisySums, times: float, data: DataShape, target: Target) -> NoisySums:
    """Return the same measurements with so many times the noise, at least once, and the thresholds that it asks for."""
    times = max(times, 1.0)
    rules = [_Rule(name=one.name, size=one.size, bound=one.bound, share=sums.share) for one in sums.measurements]
    made = (
        _measured(rule, one.noise * times, data, target) for rule, one in zip(rules, sums.measurements, strict=True)
    )
    return NoisySums(measurements=tuple(made), share=sums.share / times**2)


def check_words(outline: Outline, trust: Trust) -> None:
    """Refuse lists of words that are to be learned where clients add up in parts."""
    hint = "State data.categories for these columns: words that nobody knows beforehand cannot be added up in parts."
    central = not (trust.shared and outline.open_texts)
    require(central, "[prepare]", "find every category stated with [trust]", outline.open_texts, hint)


def _measured(rule: _Rule, noise: float, data: DataShape, target: Target) -> Measurement:
    one = Measurement(
        name=rule.name,
        size=rule.size,
        bound=rule.bound,
        noise=noise,
        threshold=2.0 if rule.name == "categories" else None,
        counts=rule.name not in SIGNED,
    )
    if rule.name != "categories":
        return one
    columns = round(rule.bound**2)
    words = data.largest_client if target.unit == "client" else target.largest_person
    slip = _SLIP * target.delta / (1 + math.exp(target.epsilon))
    threshold, chance = threshold_of(one.deviation / STEPS, slip, columns, words, target.largest_person)
    return replace(one, threshold=threshold, slip=chance)


def _rules(request: PrepareRequest, outline: Outline, data: DataShape, whole: float, counts: float) -> list[_Rule]:
    """``whole``: noise on the mean of contributions of norm 1 with the whole budget; ``counts``: same for counts."""
    found = []
    if outline.open_numbers:
        count = len(outline.open_numbers)
        found.append(_rule("ranges", BINS * count, root_up(count), counts, _COUNT_ERRORS))
    if outline.open_texts:
        count = len(outline.open_texts)
        most = data.records * count  # words that can occur at all
        found.append(_rule("categories", most, root_up(count), counts, _WORD_ERRORS))
    if request.classes and data.classes:
        found.append(_rule("classes", data.classes, 1.0, counts, _CLASS_ERRORS))
    if outline.counted:
        count = len(outline.counted)
        found.append(_rule("cells", CELLS * count, root_up(count), counts, _CELL_ERRORS))
    if outline.numbers and outline.knots is None:
        found.append(_means(len(outline.numbers), whole))
        # Components are those of the scaled columns: divided by their spreads, all columns would count alike.
        spreads = None if outline.turned else _spreads(len(outline.numbers), counts)
        found += [] if spreads is None else [spreads]
    if outline.turned:
        found.append(_moments(outline, whole))
    return found


def _rule(name: str, size: int, bound: float, noise: float, errors: tuple[float, float]) -> _Rule:
    """The share for the error that is needed, or, if that is more, for the one that is wished for; each up to its cap.

    ``noise``: on the mean of contributions of norm 1, if the measurement had the whole budget.
    """
    shares = (min((noise * bound / error) ** 2, cap) for error, cap in zip(errors, _CAPS[name], strict=True))
    return _Rule(name=name, size=size, bound=bound, share=max(*shares, _FLOOR))


def _means(count: int, noise: float) -> _Rule:
    """Rows are as long as they can be where the noise is then small enough, and cut shorter where it is not.

    To cut rows moves the mean of columns whose numbers lie near one end of their range.
    """
    longest, errors = root_up(count), (_MEAN_ERRORS[0] * USUAL_SPREAD, _MEAN_ERRORS[1] * USUAL_SPREAD)
    short = min(longest, max(1.0, _SHORT * longest))
    affordable = (noise * longest / errors[0]) ** 2 <= _CAPS["means"][0]
    return _rule("means", count, longest if affordable else short, noise, errors)


def _spreads(count: int, noise: float) -> _Rule | None:
    """None where even the cap leaves an error that costs more than it brings."""
    longest = root_up(count)
    if (noise * longest / _SPREAD_ERRORS[0]) ** 2 > _CAPS["spreads"][0]:
        return None
    return _rule("spreads", LEVELS * count, longest, noise, _SPREAD_ERRORS)


def _moments(outline: Outline, noise: float) -> _Rule:
    """Noise of deviation s on each product has eigenvalues up to about 2 s sqrt(width); a component has 1/k of all."""
    width, bound = outline.unprojected, outline.bound**2
    part = bound / (outline.components or width) / (2 * math.sqrt(width))
    errors = (_MOMENT_ERRORS[0] * part, _MOMENT_ERRORS[1] * part)
    return _rule("moments", width * (width + 1) // 2, bound, noise, errors)


def total_mu(target: Target) -> float:
    """Return the mu of the Gaussian mechanism that has the target's epsilon at its delta, rounded down.

    >>> round(total_mu(Target(epsilon=1.0, delta=1e-5)), 4)
    0.2681
    """
    low, high = 1e-6, 60.0
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(middle, target.delta) <= target.epsilon else (low, middle)
    return low


def left_for_training(target: Target, share: float) -> float:
    """A first guess of the epsilon that training may have beside measurements of this share: exact for Gaussians.

    Where persons are protected, it is that of one record.
    """
    return gaussian_epsilon(total_mu(target) * math.sqrt(1 - share) / target.largest_person, target.delta)


def largest_within(target: float, first: float, at: Callable[[float], tuple[Built, float]]) -> Built:
    """Return what is built for the largest inner epsilon found whose promise is at most ``target``.

    ``at`` builds for an inner epsilon, and says what is then promised of the whole, which grows with it.
    """
    low, high, inner, best, over = 0.0, math.inf, first, None, None
    aim, before = target * (1 - 3e-4), (0.0, 0.0)
    for _ in range(10):
        built, promised = at(inner)
        if promised <= target:
            low, best = inner, built
            if promised >= target * (1 - 1e-3):
                break
        else:
            high, over = inner, promised
        slope = (promised - before[1]) / (inner - before[0])  # between the last two; at first, that of a line through 0
        before = inner, promised
        inner += (aim - promised) / slope if 0.05 < slope < 20 else inner * (aim - promised) / promised
        if not low < inner < high:
            inner = (low + high) / 2 if high < math.inf else low * 1.01
        if low > 0 and high - low <= 1e-4 * low:
            break
    if best is None:
        raise CannotCertify(f"with the preparation the best found promises {over}; raise epsilon or state more")
    return best
