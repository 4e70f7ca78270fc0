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

from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.errors import CannotCertify
from fedveil.mechanism import sensitivity
from fedveil.prepare.categories import threshold_of
from fedveil.prepare.columns import Outline
from fedveil.prepare.contributions import root_up
from fedveil.prepare.learn import USUAL_SPREAD
from fedveil.prepare.magnitudes import BINS
from fedveil.prepare.request import PrepareRequest
from fedveil.prepare.statement import STEPS, Measurement, Preparation, variance_left
from fedveil.target import Target
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.trust import Trust

Built = TypeVar("Built")
_CAPS: Final = {"ranges": 0.3, "categories": 0.1, "classes": 0.02, "means": 0.1, "spreads": 0.05}
_FLOORS: Final = {"ranges": 0.005, "categories": 0.005, "classes": 0.001, "means": 0.002, "spreads": 0.002}
_COUNT_ERROR: Final = 0.002  # of the records: wanted deviation of a count on the grid of magnitudes
_WORD_ERROR: Final = 1 / 600  # of the records: so that words of one in a hundred records are found
_CLASS_ERROR: Final = 0.01
_MEAN_ERROR: Final = 0.02  # of the usual spread
_SPREAD_ERROR, _USEFUL = 0.05, 0.2  # of the usual variance: wanted, and the most that still pays
_SHORT: Final = 0.6  # of the longest row, to which rows are cut where noise weighs more than what is cut off
_SLIP: Final = 0.005  # of delta, for words that should not have been shown: half of what is kept for the grid


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One measurement before its noise is known: its share of mu squared, and what one unit adds at most."""

    name: str
    size: int
    bound: float
    share: float


def settled(
    request: PrepareRequest, outline: Outline, data: DataShape, target: Target, trust: Trust
) -> tuple[Preparation, Outline]:
    """Return what will be measured, and the outline with no more slots than categories can be shown.

    ``data``: the records' counts; its features and bound are not looked at.
    """
    found = preparation_of(request, outline, data, target, trust)
    hint = 'State prepare.kind = "stated", and data.feature_bound.'
    require(found is not None, "[prepare]", "leave something to learn", "a study that states everything", hint)
    assert found is not None  # noqa: S101  for the type checker
    return found, fitting(outline, found, data, target)


def fitting(outline: Outline, planned: Preparation, data: DataShape, target: Target) -> Outline:
    """The outline with no more slots than there can be words above the threshold."""
    if "categories" not in planned:
        return replace(outline, slots=0)
    units = data.clients if target.unit == "client" else data.records
    threshold = planned["categories"].threshold or math.inf
    most = len(outline.open_texts) * math.floor(units / threshold)
    return replace(outline, slots=max(min(outline.slots, most), 1))


def preparation_of(
    request: PrepareRequest, outline: Outline, data: DataShape, target: Target, trust: Trust
) -> Preparation | None:
    """Return what will be measured, and with which noise; None where everything is stated."""
    hint = "State data.categories for these columns: words that nobody knows beforehand cannot be added up in parts."
    central = not (trust.shared and outline.open_texts)
    require(central, "[prepare]", "find every category stated with [trust]", outline.open_texts, hint)
    units = data.clients if target.unit == "client" else data.records
    left = variance_left(target.adversary, data, target, trust)
    if not left > 0:
        raise CannotCertify(f"{target.adversary} knows all of the preparation's noise, so nothing can be promised")
    # The noise of a sum of contributions of norm 1 that would use the whole budget, in the eyes of the target.
    whole = sensitivity(target.neighbours) / (total_mu(target) * math.sqrt(left))
    rules = _rules(request, outline, data, units, whole)
    if not rules:
        return None
    planned = math.fsum(rule.share for rule in rules)
    scale = 1.0 if request.share is None else request.share / planned
    made = (_measured(rule, whole / math.sqrt(rule.share * scale), data, target) for rule in rules)
    return Preparation(measurements=tuple(made), share=planned * scale)


def _measured(rule: _Rule, noise: float, data: DataShape, target: Target) -> Measurement:
    one = Measurement(
        name=rule.name,
        size=rule.size,
        bound=rule.bound,
        noise=noise,
        **({"threshold": 2.0} if rule.name == "categories" else {}),
    )
    if rule.name != "categories":
        return one
    columns = round(rule.bound**2)
    words = data.largest_client if target.unit == "client" else 1
    slip = _SLIP * target.delta / (1 + math.exp(target.epsilon))
    threshold, chance = threshold_of(one.deviation / STEPS, slip, columns, words)
    return Measurement(name=rule.name, size=rule.size, bound=rule.bound, noise=noise, threshold=threshold, slip=chance)


def _rules(request: PrepareRequest, outline: Outline, data: DataShape, units: int, whole: float) -> list[_Rule]:
    found = []
    if outline.open_numbers:
        count = len(outline.open_numbers)
        found.append(_rule("ranges", BINS * count, root_up(count), whole, _COUNT_ERROR * units))
    if outline.open_texts:
        count = len(outline.open_texts)
        most = data.records * count  # words that can occur at all
        found.append(_rule("categories", most, root_up(count), whole, _WORD_ERROR * units))
    if request.classes and data.classes:
        found.append(_rule("classes", data.classes, 1.0, whole, _CLASS_ERROR * units))
    if outline.numbers:
        found.append(_means(len(outline.numbers), units, whole))
        spreads = _spreads(len(outline.numbers), units, whole)
        found += [] if spreads is None else [spreads]
    return found


def _rule(name: str, size: int, bound: float, whole: float, error: float) -> _Rule:
    """The share at which the noise has the wanted deviation, between floor and cap."""
    share = (whole * bound / error) ** 2
    return _Rule(name=name, size=size, bound=bound, share=min(max(share, _FLOORS[name]), _CAPS[name]))


def _means(count: int, units: int, whole: float) -> _Rule:
    """Rows are as long as they can be where noise is small anyway, and cut shorter where it is not."""
    longest, error = root_up(count), _MEAN_ERROR * USUAL_SPREAD * units
    short = min(longest, max(1.0, _SHORT * longest))
    affordable = (whole * longest / error) ** 2 <= _CAPS["means"] / 5
    return _rule("means", count, longest if affordable else short, whole, error)


def _spreads(count: int, units: int, whole: float) -> _Rule | None:
    """None where even the cap leaves an error that costs more than it brings."""
    longest, variance = root_up(count), USUAL_SPREAD**2
    if (whole * longest / (_USEFUL * variance * units)) ** 2 > _CAPS["spreads"]:
        return None
    return _rule("spreads", count, longest, whole, _SPREAD_ERROR * variance * units)


def total_mu(target: Target) -> float:
    """The mu of the Gaussian mechanism that has the target's epsilon and delta.

    >>> round(total_mu(Target(epsilon=1.0, delta=1e-5)), 4)
    0.2678
    """
    low, high = 1e-6, 60.0
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(middle, target.delta) <= target.epsilon else (low, middle)
    return low


def left_for_training(target: Target, share: float) -> float:
    """A first guess of the epsilon that training may have beside measurements of this share: exact for Gaussians."""
    return gaussian_epsilon(total_mu(target) * math.sqrt(1 - share), target.delta)


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
