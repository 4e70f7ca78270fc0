"""How good the rows of a torch generator are, on public held-out records: what ``quality.json`` beside it says."""

from typing import Any, Final

import numpy as np

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.column import Column
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine.measure import centralised
from fedveil.models.metrics import accuracy
from fedveil.models.spec import ModelPlan
from fedveil.release.generating import DeepGenerator
from fedveil.stages.synthesise.quality import compared_cells, distance, shares

_MOST: Final = 20_000  # rows that are drawn to compare
_CELLS: Final = 16  # of equal width, of a column of numbers
_PAIRED: Final = 24  # columns whose pairs are compared
_NEAREST, _AMONG = 400, 5000  # public rows for which the nearest synthetic row is looked for, among so many


def deep_quality(
    generator: DeepGenerator, loaded: Loaded, random: np.random.Generator, *, training_public: bool
) -> dict[str, Any] | None:
    """Return how rows of the generator compare with public held-out records; None where there are none.

    ``training_public``: the records that it was trained on are declared public, so membership may be tested on them.
    """
    if loaded.test is None or not loaded.test_public:
        return None
    held = loaded.test.present()
    count = min(generator.drawing.records, _MOST)
    blocks = list(generator.prepared_rows(count, random))
    rows, kinds = np.concatenate([one for one, _ in blocks]), np.concatenate([one for _, one in blocks])
    told: dict[str, Any] = {"format": 1, "held_out": len(held), "drawn": count}
    told |= _marginals(generator, rows, kinds, held)
    told["model"] = _model(held, rows, kinds)
    away = nearest_rows(rows, held.features)
    told["nearest"] = {"mean": float(away.mean())}
    if training_public:
        own = nearest_rows(rows, random.permutation(loaded.train.present().features))
        # the chance that a record that was trained on is nearer to a synthetic row than one that was not
        nearer = (own[:, None] < away[None, :]).mean() + (own[:, None] == away[None, :]).mean() / 2
        told["nearest"] |= {"membership_area": float(nearer)}
    return told


def _marginals(generator: DeepGenerator, rows: Matrix, kinds: Indices, held: Records) -> dict[str, Any]:
    """Single columns, and pairs of them with the class; of many columns, pairs of some that are evenly spaced."""
    prepared, classes = generator.preparation, len(generator.drawing.shares)
    ones: dict[str, float] = {}
    cells: list[tuple[str, int, Indices, Indices]] = []
    start = 0
    for column in prepared.columns:
        own = list(prepared.places[start : start + column.width])
        size = len(column.categories) or _CELLS
        drawn, real = _cells(column, rows[:, own]), _cells(column, held.features[:, own])
        ones[column.name] = distance(shares(real, size), shares(drawn, size))
        cells.append((column.name, size, drawn, real))
        start += column.width
    chosen = np.unique(np.linspace(0, len(cells) - 1, min(len(cells), _PAIRED - 1)).round().astype(int)).tolist()
    shown = [*(cells[place] for place in chosen), (generator.header[-1], classes, kinds, held.targets.astype(np.int64))]
    names, sizes, synthetic, real_cells = zip(*shown, strict=True)
    found = compared_cells(names, sizes, synthetic, real_cells)
    every = {**ones, names[-1]: found["ones"][names[-1]]}
    return found | {"names": list(names), "ones": every, "mean_one": float(np.mean(list(every.values())))}


def _cells(column: Column, rows: Matrix) -> Indices:
    if column.categories:
        return np.asarray(rows.argmax(axis=1), dtype=np.int64)
    _, _, low, high = column.affine
    places = np.floor((rows[:, 0] - low) / max(high - low, 1e-300) * _CELLS)
    return np.clip(places, 0, _CELLS - 1).astype(np.int64)


def _model(held: Records, rows: Matrix, kinds: Indices) -> dict[str, float] | None:
    """How often a linear model is right on half of the public records: of synthetic rows, and of the other half."""
    half = len(held) // 2
    if half < 10:
        return None
    test = held.features[half:], held.targets[half:]
    told = {}
    for name, (given, targets) in {
        "synthetic": (rows, kinds.astype(np.float64)),
        "real": (held.features[:half], held.targets[:half]),
    }.items():
        told[name] = trained_on(given, targets, *test, classes=held.classes)
    common = np.bincount(held.targets[:half].astype(np.int64), minlength=held.classes).argmax()
    return told | {"most_frequent": float((test[1] == common).mean())}


def trained_on(rows: Matrix, targets: Vector, test: Matrix, truth: Vector, *, classes: int) -> float:
    """Return how often a linear model of these rows is right on others."""
    plan = ModelPlan(kind="softmax", classes=classes)
    width = rows.shape[1]
    records = Records(
        features=_with_constant(rows),
        targets=targets,
        owner=np.zeros(len(rows), dtype=np.int64),
        clients=1,
        bound=float(2 * np.sqrt(width + 1)),
        classes=classes,
    )
    return accuracy(plan.loss, centralised(plan, records), _with_constant(test), truth)


def _with_constant(rows: Matrix) -> Matrix:
    return np.hstack([rows, np.ones((len(rows), 1))])


def nearest_rows(synthetic: Matrix, rows: Matrix) -> Vector:
    """Return how far each of the first rows is from the synthetic row that is nearest to it."""
    among = synthetic[:_AMONG]
    lengths = (among**2).sum(axis=1)
    found = [max(0.0, float((lengths - 2 * among @ row).min() + row @ row)) for row in rows[:_NEAREST]]
    return np.sqrt(np.array(found, dtype=np.float64))
