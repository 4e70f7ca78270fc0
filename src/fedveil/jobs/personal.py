"""Make a party's own model from a released one, at that party: nothing is charged, and nothing leaves its folder.

The best of several ways is taken, by cross-validation on the party's own records: every choice is made on records that
the fit did not see. A party keeps the shared model unless another is better by more than the margin, so few records, on
which chance alone makes gains, change nothing.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize

from fedveil.core.errors import AlreadyFinished, BadValue, require, why
from fedveil.core.files import owners_folder
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.cells import Texts, canonical, numbers_of
from fedveil.data.column import as_texts
from fedveil.data.load import Loaded
from fedveil.data.missing import above, class_indices, scaled
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels
from fedveil.data.sources import Chunk, chunks
from fedveil.data.tables import nearest
from fedveil.engine.files import clear_parts, private_folder, write_atomically
from fedveil.federation.site.data import read_site_data
from fedveil.models.adjusted import margins
from fedveil.models.loss import Loss
from fedveil.models.personal_request import LEAST, PersonalRequest
from fedveil.release.bundle import FILE as BUNDLE
from fedveil.release.bundle import Bundle
from fedveil.release.model import ReleasedModel
from fedveil.release.personal import FILE, Personal, decide

_NO_CLIP = 1e99
_STEPS = 100
_PRECISE = 1e-6  # of the loss: a choice by records right or wrong needs no more


def fitted(loss: Loss, features: Matrix, targets: Vector, towards: Vector, strength: float, start: Vector) -> Vector:
    """Return the minimiser of the mean loss plus ``strength / 2`` times the squared distance from ``towards``.

    ``start``: where the search begins; the minimum is the same.
    """
    count = targets.size

    def value(w: Vector) -> tuple[float, Vector]:
        away = w - towards
        total, _ = loss.gradient(w, features, targets, clip=_NO_CLIP)
        height = loss.value(w, features, targets) + strength / 2 * float(away @ away)
        return height, total / count + strength * away

    result = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "ftol": _PRECISE})
    return np.asarray(result.x, dtype=np.float64)


def steepness(loss: Loss, bound: float) -> float:
    """Return the smoothness of the loss, by which strengths are measured."""
    return loss.constants(bound, None).smoothness or 1.0


Rows = tuple[Matrix, Vector]


def own_records(model: ReleasedModel, data: str, client: str, column: str | None, *, blank: bool = False) -> Rows:
    """Return the rows and targets of the records of ``data``; with a client ``column``, those of ``client`` alone.

    ``blank``: rows that the rule for missing values drops are kept as blank ones, so that no count depends on them.
    """
    known = model.preparation
    if known is None or known.labels.name is None:
        raise BadValue(
            "The model must name the column that it predicts, and it does not, since its records came prepared: give "
            "--data a site's data file (TOML), which says how they become rows."
        )
    there = known.source(data).shipped is None and Path(data).exists()
    require(there, "--data", "be a file or folder of records", data)
    labels = known.labels
    numeric = bool(labels.span is not None or labels.above is not None)
    wanted = {one.name: not one.categories for one in known.columns} | {str(labels.name): numeric}
    if column is not None:
        wanted[column] = False
    found, targets = [], []
    with closing(chunks(known.source(data), Path(), wanted)) as parts:
        for chunk in parts:
            rows, dropped = model.rows(chunk.cells, chunk.place, chunk.names)
            own = np.ones_like(dropped) if column is None else _of(chunk, column, client)
            values = np.full(dropped.size, np.nan)
            values[own & ~dropped] = _targets(chunk, labels, own & ~dropped)
            rows[dropped] = 0.0
            mine = own if blank else own & ~dropped
            found.append(rows[mine])
            targets.append(values[mine])
    features = np.ascontiguousarray(np.concatenate(found)) if found else np.zeros((0, 1))
    require(len(features) > 0, "--data", f"hold records of {client!r}", "none")
    return features, np.concatenate(targets)


def _of(chunk: Chunk, column: str, client: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    hint = "" if column in chunk.cells else nearest(column, chunk.names)
    require(column in chunk.cells, "--client-column", "name a column of the data", column, hint)
    return as_texts(chunk.cells[column]).where(lambda word: canonical(word) == canonical(client))


def _targets(chunk: Chunk, labels: Labels, mine: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Vector:
    name = str(labels.name)
    hint = nearest(name, chunk.names)
    require(name in chunk.cells, "--data", f"have the column {name!r}, which is to be predicted", "none", hint)
    cells, places = chunk.cells[name], np.flatnonzero(mine)
    if labels.classes and labels.above is None:
        words = len(labels.classes) if labels.numbered else labels.classes
        place = lambda row: chunk.place(int(places[row]))  # noqa: E731  the place of one of the party's own records
        return class_indices(as_texts(cells).rows(mine), words, f"column {name!r}", place)
    values = (numbers_of(cells, (), name, chunk.place) if isinstance(cells, Texts) else np.asarray(cells))[mine]
    require(bool(np.isfinite(values).all()), f"The column {name!r}", "hold finite numbers", "others")
    return above(values, labels.above) if labels.above is not None else scaled(values, labels.span or (-1.0, 1.0))


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
    result: Made = {("shared", None): own.shared}
    if "mixture" in request.ways:
        zero = np.zeros_like(own.shared)
        local = fitted(loss, features, targets, zero, _LOCAL * steep, zero)
        result |= {("mixture", weight): (1 - weight) * own.shared + weight * local for weight in _WEIGHTS}
    if "proximal" in request.ways:
        start = own.shared
        for part in _STRENGTHS:  # each starts where the one before, drawn more strongly, ended
            start = fitted(loss, features, targets, own.shared, part * steep, start)
            result["proximal", part * steep] = start
    return result


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Personalised:
    """The folder of a party's own model, and what was chosen."""

    folder: Path
    chosen: Personal

    @property
    def model(self) -> ReleasedModel:
        """The party's own model, ready to predict."""
        return ReleasedModel(Bundle.read(self.folder))

    def as_json(self) -> dict[str, Any]:
        """What was chosen, without the parameters."""
        told = {key: value for key, value in self.chosen.as_json().items() if key not in ("parameters", "format")}
        return {"written": str(self.folder / BUNDLE), **told}


def personalise(
    path: str | Path,
    client: str,
    data: str | Path,
    out: str | Path,
    *,
    client_column: str | None = None,
    request: PersonalRequest | None = None,
    resume: bool = False,
) -> Personalised:
    """Make the model of ``client`` from a run's folder or bundle and its own records; write it into ``out``.

    ``data``: labelled records in any format that the model can predict (``client_column``: those that name the client),
    or a site's data file (TOML). Only the owner can read what is written. ``resume``: finish a folder in which this was
    interrupted; the same records give the same model.
    """
    folder = Path(out)
    written, told = folder / BUNDLE, folder / FILE
    if resume and written.exists() and told.exists():
        raise AlreadyFinished(str(folder))
    hint = "Name another folder, or go on with --resume."
    require(resume or not written.exists(), "--out", "name a folder without a model in it", str(folder), hint)
    bundle = Bundle.read(Path(path))
    require(bundle.personal is None, "The model", "be the shared one", "a party's own model")
    model, loss = ReleasedModel(bundle), bundle.plan.model.loss
    linear = bundle.plan.model.linear
    require(linear, "A personal model", "be made from a linear model", "a torch module")
    stated, hint = bundle.plan.model.decision_threshold, "Every party finds its own threshold."
    require(stated is None, "The shared model", "have no decision threshold of its own", stated, hint)
    features, targets = site_rows(model, str(data), client, client_column)
    own = Own(loss=loss, shared=bundle.parameters, features=features, targets=targets, bound=bundle.plan.data.bound)
    chosen = personal(own, request or bundle.plan.personal or PersonalRequest(), client)
    try:
        owners_folder(folder)
    except OSError as error:
        raise BadValue(f"--out must name a folder that can be made: {why(error)}.") from error
    clear_parts(folder)
    write_atomically(written, bundle.with_personal(chosen).write())
    write_atomically(told, (json.dumps(chosen.as_json(), indent=1, allow_nan=False) + "\n").encode())
    return Personalised(folder=folder, chosen=chosen)


def site_rows(model: ReleasedModel, data: str, client: str, column: str | None, *, blank: bool = False) -> Rows:
    """Return the rows and targets of a party, of its records or of a site's data file; ``blank``: as above."""
    if not data.endswith(".toml"):
        return own_records(model, data, client, column, blank=blank)
    require(column is None, "--client-column", "be left out with a site's data file", column)
    records = read_site_data(Path(data)).records
    plan = model.plan
    same = (records.features.shape[1], records.classes) == (plan.real_features, plan.data.classes)
    rule = f"make {plan.real_features} features and {plan.data.classes} classes, as the model has"
    require(same, "--data", rule, (records.features.shape[1], records.classes))
    mine = ~records.blank | blank
    if records.clients > 1:
        names = [records.name(index) for index in range(records.clients)]
        require(client in names, "--client", f"be one of {', '.join(names[:12])}", client)
        mine &= records.owner == names.index(client)
    require(bool(mine.any()), "--data", f"hold records of {client!r}", "none")
    return np.ascontiguousarray(records.features[mine]), records.targets[mine]


def personal_models(folder: Path, loaded: Loaded) -> None:
    """Make the own model of every client of a run in this process; all of it stays in the private folder.

    ``private/personal.json`` says what was chosen and, where held-out records name the same clients, how often the
    shared model and each client's own are right on them. It is computed without noise.
    """
    bundle, homes = Bundle.read(folder), private_folder(folder / "private" / "personal")
    asked, records, rows = bundle.plan.personal or PersonalRequest(), loaded.train, {}
    for client in range(records.clients):
        mine, name = (records.owner == client) & ~records.blank, records.name(client)
        own = Own(
            loss=bundle.plan.model.loss,
            shared=bundle.parameters,
            features=np.ascontiguousarray(records.features[mine]),
            targets=records.targets[mine],
            bound=records.bound,
        )
        chosen = personal(own, asked, name)
        home = private_folder(homes / f"{client + 1}")
        clear_parts(home)  # of a run that was killed here
        write_atomically(home / BUNDLE, bundle.with_personal(chosen).write())
        told = {key: value for key, value in chosen.as_json().items() if key not in ("parameters", "format")}
        rows[name] = {"folder": home.name, **told, **_compared(own, chosen, loaded.test, name)}
    text = json.dumps({"format": 1, "clients": rows}, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "private" / FILE, text.encode())


def _compared(own: Own, chosen: Personal, test: Records | None, name: str) -> dict[str, float]:
    """How often both models are right on the client's held-out records; nothing without any, or of a number."""
    if test is None or name not in test.names or not test.classes:
        return {}
    mine = (test.owner == test.names.index(name)) & ~test.blank
    if not mine.any():
        return {}
    rows, truth = test.features[mine], test.targets[mine]
    shares = [
        float(np.mean(decide(own.loss.scores(w, rows), threshold) == truth))
        for w, threshold in ((own.shared, 0.0), (chosen.parameters, chosen.threshold))
    ]
    return {"held_out_records": int(mine.sum()), "shared_accuracy": shares[0], "own_accuracy": shares[1]}
