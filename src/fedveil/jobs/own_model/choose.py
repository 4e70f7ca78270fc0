"""Which of the ways to make a party's own model is taken: the best by cross-validation on its own records, if any pays.

Every choice is made on records that the fit did not see. A party keeps the shared model unless another is better by
more than the margin, so few records, on which chance alone makes gains, change nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.jobs.own_model.fit import fitted, steepness
from fedveil.models.loss import Loss
from fedveil.models.personal_request import LEAST, PersonalRequest
from fedveil.models.probabilities import margins
from fedveil.release.personal import Personal, decide

_STRENGTHS: Final = (1.0, 0.1, 0.01)  # of the loss's smoothness: strongly drawn to the shared model first
_WEIGHTS: Final = (0.25, 0.5, 0.75, 1.0)  # of the local model
_LOCAL: Final = 0.01  # of the smoothness: how strongly a local model is drawn to 0
_ERRORS: Final = 2.0  # standard errors that a gain has to exceed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Own:
    """A party's records as rows, and the shared model. ``bound``: of the rows' norms."""

    loss: Loss
    shared: Vector
    features: Matrix
    targets: Vector
    bound: float

    def __post_init__(self) -> None:
        require(self.loss.predicts != "survival", "A personal model", "be of classes or of a number", self.loss.kind)
        require(self.loss.linear, "A personal model", "be made from a linear model", "a torch module")


@dataclass(frozen=True, slots=True)
class _Way:
    """One candidate: its name, its weight or strength, and whether its threshold is chosen too."""

    kind: str
    strength: float | None
    moved: bool


Made = dict[tuple[str, float | None], Vector]


def personal(own: Own, request: PersonalRequest, client: str) -> Personal:
    """Return a party's own model: the best way by cross-validation if it gains more than the margin, or the shared."""
    count = own.targets.size
    ways = _ways(own, request)
    if count < LEAST or not ways:
        return Personal(client=client, kind="shared", records=count, parameters=own.shared, margin=request.margin)
    gains: dict[_Way, list[Vector]] = {way: [] for way in ways}
    for rows, out in _folds(own, request):
        shared, made = _goods(own, own.shared, 0.0, out), _fits(own, request, rows)
        for way in ways:
            w = made[way.kind, way.strength]
            gains[way].append(_goods(own, w, _threshold(own, w, way, rows), out) - shared)
    found = {way: np.concatenate(parts) for way, parts in gains.items()}
    best = max(ways, key=lambda way: float(found[way].mean()))  # of equal ones the first, which changes least
    gain, error = float(found[best].mean()), _error(found[best])
    margin = max(request.margin, _ERRORS * error)
    stay = Personal(client=client, kind="shared", records=count, parameters=own.shared, gain=gain, margin=margin)
    if not gain > margin:
        return stay
    everything = np.arange(count)
    w = _fits(own, request, everything)[best.kind, best.strength]
    threshold = _threshold(own, w, best, everything)
    return replace(stay, kind=best.kind, strength=best.strength, threshold=threshold, parameters=w)


def _error(gains: Vector) -> float:
    """The standard error of a mean gain; one record more that goes either way is counted in, so that it is not 0."""
    return float(np.sqrt(np.sum((gains - gains.mean()) ** 2) + 1) / gains.size)


def _threshold(own: Own, w: Vector, way: _Way, rows: Indices) -> float:
    return best_threshold(margins(own.loss.scores(w, own.features[rows])), own.targets[rows]) if way.moved else 0.0


def _ways(own: Own, request: PersonalRequest) -> list[_Way]:
    """All candidates, those that change least first."""
    steep = steepness(own.loss, own.bound)
    fits: list[tuple[str, float]] = []
    if "mixture" in request.ways:
        fits += [("mixture", weight) for weight in _WEIGHTS]
    if "proximal" in request.ways:
        fits += [("proximal", part * steep) for part in _STRENGTHS]
    plain = [_Way(kind, strength, moved=False) for kind, strength in fits]
    if own.loss.classes != 2 or "threshold" not in request.ways:
        return plain
    return [_Way("shared", None, moved=True), *plain, *(_Way(kind, value, moved=True) for kind, value in fits)]


def _fits(own: Own, request: PersonalRequest, rows: Indices) -> Made:
    """Every model that the ways take, fitted to these records alone."""
    loss, features, targets = own.loss, own.features[rows], own.targets[rows]
    steep = steepness(loss, own.bound)
    found: Made = {("shared", None): own.shared}
    if "mixture" in request.ways:
        zero = np.zeros_like(own.shared)
        local = fitted(loss, features, targets, zero, _LOCAL * steep, zero)
        found |= {("mixture", weight): (1 - weight) * own.shared + weight * local for weight in _WEIGHTS}
    if "proximal" in request.ways:
        start = own.shared
        for part in _STRENGTHS:  # each starts where the one before, drawn more strongly, ended
            start = fitted(loss, features, targets, own.shared, part * steep, start)
            found["proximal", part * steep] = start
    return found


def _folds(own: Own, request: PersonalRequest) -> Iterator[tuple[Indices, Indices]]:
    """The records to fit on and those to measure on, part by part; classes are spread evenly."""
    count = own.targets.size
    order = np.random.default_rng(request.seed).permutation(count)
    if own.loss.classes:
        order = order[np.argsort(own.targets[order], kind="stable")]
    fold = np.empty(count, dtype=np.int64)
    fold[order] = np.arange(count) % request.folds
    for index in range(request.folds):
        out = np.flatnonzero(fold == index)
        if out.size and out.size < count:
            yield np.flatnonzero(fold != index), out


def _goods(own: Own, w: Vector, threshold: float, rows: Indices) -> Vector:
    """How good a model is on each of these records: 1 if it is right; of a number, less its error, in shared errors."""
    features, targets = own.features[rows], own.targets[rows]
    if own.loss.classes:
        return np.asarray(decide(own.loss.scores(w, features), threshold) == targets, dtype=np.float64)
    usual = float(np.mean(np.abs(own.loss.predict(own.shared, own.features) - own.targets))) or 1.0
    return np.asarray(-np.abs(own.loss.predict(w, features) - targets) / usual)


def best_threshold(margin: Vector, targets: Vector) -> float:
    """The threshold with the most records on the right side; of several, that nearest to 0; 0 if it is as good."""
    values = np.unique(margin)
    between = (values[1:] + values[:-1]) / 2
    tried = np.concatenate([[0.0, values[0] - 1.0, values[-1] + 1.0], between])
    tried = tried[np.argsort(np.abs(tried), kind="stable")]
    order = np.sort(margin[targets == 1]), np.sort(margin[targets == 0])
    above = order[0].size - np.searchsorted(order[0], tried, side="right")
    below = np.searchsorted(order[1], tried, side="right")
    return float(tried[int(np.argmax(above + below))])
