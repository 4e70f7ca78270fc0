"""How good synthetic rows are, on public held-out records: what ``quality.json`` beside a generator says."""

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
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.generator import Generator
from fedveil.stages.synthesise.quality import compared, compared_cells, distance, draw_codes, nearest, one_hot, shares
from fedveil.stages.synthesise.table import WordCells, public_table, table_of

_MOST = 20_000  # rows that are drawn to compare


def quality_of(
    generator: Generator, found: Unprepared, random: np.random.Generator, *, training_public: bool
) -> dict[str, Any] | None:
    """Return how rows of the generator compare with public held-out records; None where there are none.

    ``training_public``: the records that were measured are declared public, so membership may be tested on them.
    """
    table = public_table(found)
    if table is None:
        return None
    real = table.codes(generator.columns)
    synthetic = draw_codes(generator, min(generator.records, _MOST), random)
    told: dict[str, Any] = {"format": 1, "held_out": int(real.shape[0]), "drawn": int(synthetic.shape[0])}
    told |= compared(generator, synthetic, real) | {"model": _model(generator, synthetic, real)}
    away = nearest(synthetic, real)
    told["nearest"] = {"equal": float((away == 0).mean()), "mean": float(away.mean())}
    if training_public:
        inside = table_of(found).codes(generator.columns)[found.present]
        own = nearest(synthetic, random.permutation(inside))
        # the chance that a record that was measured is nearer to a synthetic row than one that was not
        nearer = (own[:, None] < away[None, :]).mean() + (own[:, None] == away[None, :]).mean() / 2
        told["nearest"] |= {"membership_area": float(nearer)}
    return told


def _model(generator: Generator, synthetic: Indices, real: Indices) -> dict[str, float] | None:
    """How often a linear model is right on half of the public records: fitted to synthetic rows, or to the other half.

    None for a target that is no class, and where there are too few records.
    """
    target = generator.columns[-1]
    if generator.target is None or not isinstance(target, WordCells) or real.shape[0] < 20:
        return None
    half = real.shape[0] // 2
    classes = len(target.words)
    loss = ModelPlan(kind="logistic") if classes == 2 else ModelPlan(kind="softmax", classes=classes)
    told = {}
    fits = real[:, -1] < classes
    train, test = real[:half][fits[:half]], real[half:][fits[half:]]
    for name, rows in (("synthetic", synthetic[synthetic[:, -1] < classes]), ("real", train)):
        records = records_of(generator, rows, classes)
        found = centralised(loss, records)
        told[name] = accuracy(loss.loss, found, one_hot(generator, test), test[:, -1].astype(np.float64))
    common = np.bincount(train[:, -1], minlength=classes).argmax()
    return told | {"most_frequent": float((test[:, -1] == common).mean())}


def records_of(generator: Generator, codes: Indices, classes: int) -> Records:
    """Return rows of zeros and ones for a linear model, with their classes."""
    rows = one_hot(generator, codes)
    return Records(
        features=rows,
        targets=codes[:, -1].astype(np.float64),
        owner=np.zeros(codes.shape[0], dtype=np.int64),
        clients=1,
        bound=float(np.sqrt(rows.shape[1])),
        classes=classes,
    )


# How good the rows of a torch generator are, on public held-out records: what ``quality.json`` beside it says.

_MOST_DRAWN: Final = 20_000  # rows that are drawn to compare
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
    count = min(generator.drawing.records, _MOST_DRAWN)
    blocks = list(generator.prepared_rows(count, random))
    rows, kinds = np.concatenate([one for one, _ in blocks]), np.concatenate([one for _, one in blocks])
    told: dict[str, Any] = {"format": 1, "held_out": len(held), "drawn": count}
    told |= _marginals(generator, rows, kinds, held)
    told["model"] = _classifier(held, rows, kinds)
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
    result = compared_cells(names, sizes, synthetic, real_cells)
    every = {**ones, names[-1]: result["ones"][names[-1]]}
    return result | {"names": list(names), "ones": every, "mean_one": float(np.mean(list(every.values())))}


def _cells(column: Column, rows: Matrix) -> Indices:
    if column.categories:
        return np.asarray(rows.argmax(axis=1), dtype=np.int64)
    _, _, low, high = column.affine
    places = np.floor((rows[:, 0] - low) / max(high - low, 1e-300) * _CELLS)
    return np.clip(places, 0, _CELLS - 1).astype(np.int64)


def _classifier(held: Records, rows: Matrix, kinds: Indices) -> dict[str, float] | None:
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
    result = [max(0.0, float((lengths - 2 * among @ row).min() + row @ row)) for row in rows[:_NEAREST]]
    return np.sqrt(np.array(result, dtype=np.float64))
