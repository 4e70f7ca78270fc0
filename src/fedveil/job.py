"""The main job: a study in, a trained model, its certificate and its report out.

>>> from fedveil import run_study
>>> result = run_study("study.toml", out="results")  # doctest: +SKIP
>>> result.certificate.guarantees[0].answer.epsilon  # doctest: +SKIP
1.0
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.certify import Certificate, certify
from fedveil.checks import require
from fedveil.data.load import Loaded, load
from fedveil.data.records import Records
from fedveil.planning import Planned
from fedveil.run.conduct import Progress, System, conduct
from fedveil.run.files import PUBLIC, write_atomically
from fedveil.study import Study, read_study, study_of
from fedveil.version import __version__

Wanted = Study | str | Path | Mapping[str, Any]
Given = Records | tuple[Records, Records] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a finished run left in its folder."""

    folder: Path
    certificate: Certificate
    metrics: dict[str, Any]


def open_study(study: Wanted, data: Given = None) -> tuple[Study, Loaded]:
    """The study and its records: from a file, from tables (as in a file), with records of its own or given ones."""
    if isinstance(study, Study):
        found = study
    elif isinstance(study, str | Path):
        found = read_study(Path(study))
    else:
        found = study_of(study, base=Path(), data_given=data is not None)
    if data is not None:
        train, test = data if isinstance(data, tuple) else (data, None)
        return found, Loaded(train=train, test=test, test_public=False, dropped_rows=0, feature_names=())
    require(found.source is not None, "data", "be given when the study names no source", None)
    assert found.source is not None  # noqa: S101  for the type checker
    return found, load(found.source, found.split, found.held_out, base=found.base, generator=np.random.default_rng)


def plan_study(study: Wanted, data: Given = None) -> Planned:
    """The plan of a study; trains nothing."""
    found, loaded = open_study(study, data)
    held = 0 if loaded.test is None else loaded.test.targets.size
    train = loaded.train if found.slots is None else found.slots.blank(loaded.train)
    return found.planned(train.shape, held, loaded.test_public if held else True)


def run_study(
    study: Wanted,
    out: str | Path,
    *,
    data: Given = None,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    system: System | None = None,
) -> Result:
    """Train, certify and report into the folder ``out``; ``resume`` goes on with a run that was interrupted there.

    ``study``: the path of a study file, or its tables as a dictionary. ``data``: records made from arrays, or a pair of
    those to train on and those to measure on (which then count as not public).
    """
    found, loaded = open_study(study, data)
    folder = Path(out)
    metrics = conduct(found, loaded, folder, resume=resume, watch=watch, system=system or System())
    return concluded(folder, metrics)


def concluded(folder: Path, metrics: dict[str, Any]) -> Result:
    """Certificate and report of a run that has released its model."""
    certificate = certify(folder, __version__)
    write_atomically(folder / "certificate.json", certificate.text().encode(), mode=PUBLIC)
    from fedveil.report.page import write_report  # drawing is slow to import, and only needed here

    write_report(folder)
    return Result(folder=folder, certificate=certificate, metrics=metrics)
