"""Synthetic rows as the source of a study: ``source = "generator:DIR"``. Training on them is charged to nobody's books.

The rows are drawn anew, always the same ones, from a generator whose certificate was recomputed. They are public: the
records behind the generator were charged once, when it was measured.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from fedveil.certificate.certify import certify, certify_measured, is_measured
from fedveil.core.errors import require
from fedveil.core.files import read_file
from fedveil.core.tables import read_tables
from fedveil.planning.study import Study
from fedveil.release.bundle import Bundle
from fedveil.release.generating import FILE as DRAWING
from fedveil.release.generating import Columns, DeepGenerator, Drawing
from fedveil.stages.measured.plan import GENERATOR
from fedveil.stages.synthesise.generator import FILE, Generator
from fedveil.stages.synthesise.quality import draw_rows, header
from fedveil.version import __version__


def holds_deep(folder: Path) -> bool:
    """Return whether a folder holds the records of a torch generator."""
    path = folder / "plan.toml"
    if not (path.is_file() and (folder / DRAWING).is_file()):
        return False
    return "model" in read_tables(read_file(path).decode("utf-8", "replace"), "plan.toml")


def released_generator(folder: Path) -> DeepGenerator:
    """Return the generator of a folder, after its certificate was recomputed."""
    certify(folder, __version__)
    bundle = Bundle.read(folder)
    same = bundle.files["model.npz"] == read_file(folder / "model.npz")
    require(same, "bundle.zip", "hold the model beside it, which was certified", "another one")
    return DeepGenerator(bundle, Drawing.read(read_file(folder / DRAWING)))


PREFIX: Final = "generator:"
_SEED: Final = 0  # the same rows every time, so that a run can be resumed


def with_drawn_rows(study: Study) -> Study:
    """Return the study with rows drawn in place of a generator's name; any other study as it is."""
    source = study.source
    if source is None or not source.source.startswith(PREFIX):
        return study
    folder = study.base / source.source.removeprefix(PREFIX)
    hint = "It is a folder that fedveil synthesise wrote."
    if holds_deep(folder):
        drawn = deep_columns(released_generator(folder), source.labelling.target)
        return _with_rows(study, drawn)
    require(is_measured(folder, GENERATOR), "data.source", "name a generator that is there", source.source, hint)
    certify_measured(folder, __version__)  # rows of a generator that was altered are covered by nothing
    drawn = drawn_columns(Generator.read(read_file(folder / FILE)), source.labelling.target)
    return _with_rows(study, drawn)


def _with_rows(study: Study, drawn: Columns) -> Study:
    """Return the study with these rows as its source; they are public."""
    assert study.source is not None  # noqa: S101  it named the generator
    return replace(study, data=replace(study.data, source=replace(study.source, frame=drawn), public=True))


def deep_columns(generator: DeepGenerator, target: str | int | None = None) -> Columns:
    """Return as many rows of a torch generator as it was trained on, as named columns."""
    known = target is None or target in generator.header
    require(known, "data.target", f"name a column of the generator, such as {generator.header[-1]}", target)
    draw = np.random.default_rng(_SEED)
    parts = [generator.columns(*block, draw) for block in generator.prepared_rows(generator.drawing.records, draw)]
    return {name: np.concatenate([part[name] for part in parts]) for name in generator.header}


def drawn_columns(
    generator: Generator, target: str | int | None = None
) -> "dict[str, np.ndarray[tuple[int], np.dtype[np.str_]]]":
    """Return as many rows as were measured, as named columns of texts.

    ``target``: the column that the study predicts, which must be there.
    """
    names = header(generator)
    known = target is None or target in names
    require(known, "data.target", f"name a column of the generator: {', '.join(names)}", target)
    rows = [row for block in draw_rows(generator, generator.records, np.random.default_rng(_SEED)) for row in block]
    return {name: np.array([row[place] for row in rows], dtype=np.str_) for place, name in enumerate(names)}
