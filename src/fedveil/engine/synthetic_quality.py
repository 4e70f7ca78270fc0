"""How good synthetic rows are, on public held-out records: what ``quality.json`` beside a generator says."""

from typing import Any

import numpy as np

from fedveil.core.values import Indices
from fedveil.data.records import Records
from fedveil.engine.measure import centralised
from fedveil.models.metrics import accuracy
from fedveil.models.spec import ModelPlan
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.cells import WordCells
from fedveil.stages.synthesise.generator import Generator
from fedveil.stages.synthesise.quality import compared, nearest, one_hot
from fedveil.stages.synthesise.rows import draw_codes
from fedveil.stages.synthesise.table import public_table, table_of

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
