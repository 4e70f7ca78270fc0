"""A generator from a study: measured, charged and certified once; rows are drawn from it as often as wanted, free."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.certificate.certify import Certificate, MeasuredCertificate, certify_measured, is_measured
from fedveil.certificate.stage_words import ROWS
from fedveil.core.errors import BadValue, require, why
from fedveil.core.files import public_folder, read_file
from fedveil.core.tables import known, table
from fedveil.engine.ending import check_unfinished
from fedveil.engine.files import PUBLIC, sole_use, write_atomically
from fedveil.engine.measured import conduct_synthesis
from fedveil.engine.synthetic_quality import quality_of
from fedveil.engine.system import Progress, System
from fedveil.jobs.deep_synthesis import is_deep, trained_generator
from fedveil.jobs.generated import holds_deep, released_generator
from fedveil.jobs.local import ENDS as MODEL_ENDS
from fedveil.jobs.local import ReadTables, read_given
from fedveil.planning.study import Study, study_of
from fedveil.release.generating import DeepGenerator
from fedveil.stages.measured.plan import GENERATOR
from fedveil.stages.prepare.loading import Unprepared, open_columns
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.synthesise.generator import FILE, Generator
from fedveil.stages.synthesise.quality import check_rows, csv_parts
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.version import __version__

Described = str | Path | Mapping[str, Any]  # a study file, or its tables
PAGE = "synthetic.html"
QUALITY = "quality.json"
ENDS = ("certificate.json", ROWS, PAGE)  # what follows the release of a generator, in this order
TABLES = ("study", "data", "clients", "privacy", "trust", "books", "prepare", "generator")
LABELS = ("target", "classes", "label_above", "target_scale", "labels", "event", "intervals")


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisResult:
    """A finished generator, its certificate, and how many rows were drawn."""

    folder: Path
    generator: Generator | DeepGenerator
    certificate: MeasuredCertificate | Certificate
    rows: int


def read_synthesis(given: Described | ReadTables, *, data_given: bool = False) -> tuple[Study, GeneratorRequest]:
    """Return the study and its [generator] table; ``data_given``: the records are at sites, and [data] is too.

    A generator has no model and needs no bound on rows, so a study need not state either. Nor need a table have
    something to predict: without a target every column is measured alike.
    """
    read = read_given(given)
    base, name, tables = read.base, read.name, read.tables
    hint = "A torch generator is trained in one process."
    require(not is_deep(tables), "generator.kind", "be marginals here", "torch", hint)
    known(tables, TABLES, "a study of a generator")
    request = GeneratorRequest.read(tables.get("generator", {}))
    rest = {key: value for key, value in tables.items() if key != "generator"}
    data = {key: value for key, value in table(rest.get("data", {}), "data").items() if key != "feature_bound"}
    unlabelled = bool(data) and not any(key in data for key in LABELS)
    if unlabelled:
        data["target_scale"] = [-1.0, 1.0]  # of the zeros that stand for targets
    if data or not data_given:
        rest["data"] = data
    study = study_of({**rest, "model": {"kind": "logistic"}}, base=base, name=name, data_given=data_given)
    return (_without_target(study) if unlabelled else study), request


def _without_target(study: Study) -> Study:
    """Return the study with sources in which nothing is predicted."""
    own, held, split = study.source, study.data.held_out, study.data.split
    if own is None or own.shipped is not None:  # built-in data have their labels apart
        raise BadValue("[data] must name a file, a folder or a database where there is no data.target.")
    labels = split.kind == "dirichlet"
    require(not labels, "clients.kind", "not be dirichlet without data.target: it splits by labels", split.kind)
    if held is not None and held.source is not None:
        held = replace(held, source=held.source.with_keys(unlabelled=True))
    return replace(study, data=replace(study.data, source=own.with_keys(unlabelled=True), held_out=held))


def open_synthesis(given: Described) -> tuple[Study, GeneratorRequest, Unprepared]:
    """Return the study, its [generator] table, and the cells that it measures."""
    study, request = read_synthesis(given)
    return study, request, open_columns_of(study)


def open_columns_of(study: Study) -> Unprepared:
    """Return the cells of a study's table."""
    if study.source is None:
        raise BadValue("[data] must name a source to measure.")
    return open_columns(
        study.source,
        study.data.split,
        study.data.held_out,
        study.prepare or PrepareRequest(),
        base=study.base,
        generator=np.random.default_rng,
        whole_clients=study.target.unit == "client",
    )


def synthesise(
    given: Described,
    out: str | Path,
    *,
    rows: int,
    seed: int | None = None,
    resume: bool = False,
    system: System | None = None,
    module: Callable[..., Any] | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> SynthesisResult:
    """Measure a generator into the folder ``out``, certify it, and draw ``rows`` rows from it.

    ``seed``: of the rows alone, so that they can be drawn again; the noise of the generator has none. ``module``: of a
    torch generator, a function in place of the name that [generator] would state for it; ``watch`` is told of its
    rounds.

    Example::

        fedveil.synthesise("study.toml", "generator", rows=10_000)  # the study has a [generator] table
    """
    check_rows(rows)
    out, system = Path(out), system or System()
    read = read_given(given)
    deep = is_deep(read.tables)
    if resume:
        check_unfinished(out, (*(MODEL_ENDS if deep else ()), *ENDS))
    if deep:
        return _deep(read, out, rows, seed, resume, system, module, watch)
    hint = 'State kind = "torch" in [generator] to have it trained.'
    require(module is None, "module", "be left out of a generator by marginals", module, hint)
    study, request, result = open_synthesis(given)
    system.tell("measuring with noise")
    generator = conduct_synthesis(study, request, result, out, resume=resume, system=system)
    return certify_generator(generator, out, rows, seed, system, result, study.data.public)


def certify_generator(
    generator: Generator,
    out: Path,
    rows: int,
    seed: int | None,
    system: System,
    found: Unprepared | None = None,
    training_public: bool = False,
) -> SynthesisResult:
    """Certify a generator that was released in the folder ``out``, and write rows and the page.

    ``found``: the records, where this process has them, whose public part the rows are compared with.
    """
    with sole_use(out / "private"):
        certificate = certify_measured(out, __version__)
        write_atomically(out / "certificate.json", certificate.text().encode(), mode=PUBLIC)
        system.tell("drawing rows")
        _write_rows(generator, rows, out / ROWS, seed, system)
        _write_page(generator, certificate, found, out, training_public)
    return SynthesisResult(folder=out, generator=generator, certificate=certificate, rows=rows)


def _deep(
    read: ReadTables,
    out: Path,
    rows: int,
    seed: int | None,
    resume: bool,
    system: System,
    module: Callable[..., Any] | None,
    watch: Callable[[Progress], None] | None,
) -> SynthesisResult:
    """The same of a torch generator, which is trained."""
    from fedveil.jobs.deep_page import write_deep_page  # imported here because drawing is slow to import

    trained = trained_generator(read, out, module=module, resume=resume, watch=watch, system=system)
    with sole_use(out / "private"):
        system.tell("drawing rows")
        _write_rows(trained.generator, rows, out / ROWS, seed, system)
        write_deep_page(trained, out / PAGE, out / QUALITY)
    return SynthesisResult(folder=out, generator=trained.generator, certificate=trained.certificate, rows=rows)


def _write_page(
    generator: Generator, certificate: MeasuredCertificate, found: Unprepared | None, out: Path, training_public: bool
) -> None:
    """Write how rows compare with public held-out records, if there are any, and the page."""
    from fedveil.report.synthesis_page import synthesis_page  # imported here because drawing is slow to import

    quality = None
    if found is not None:
        draw = np.random.default_rng(0)
        quality = quality_of(generator, found, draw, training_public=training_public)
    if quality is not None:
        text = json.dumps(quality, indent=1, allow_nan=False) + "\n"
        write_atomically(out / QUALITY, text.encode(), mode=PUBLIC)
    write_atomically(out / PAGE, synthesis_page(generator, certificate, quality).encode(), mode=PUBLIC)


def sample(
    folder: str | Path,
    *,
    rows: int,
    out: str | Path | None = None,
    seed: int | None = None,
    system: System | None = None,
) -> Path:
    """Draw rows from a generator that was released, into a file; nothing is charged, since no record is looked at.

    The certificate is recomputed first: rows of a generator that was altered are not covered by it. The module of a
    torch generator of one's own is run, so its name must be allowed (:func:`fedveil.allowing`).

    Example::

        fedveil.sample("generator", rows=5_000, out="more.csv")
    """
    check_rows(rows)
    folder = Path(folder)
    generator: Generator | DeepGenerator
    if holds_deep(folder):
        generator = released_generator(folder)
    else:
        require(is_measured(folder, GENERATOR), "DIR", "be a folder that fedveil synthesise wrote", str(folder))
        certify_measured(folder, __version__)
        generator = Generator.read(read_file(folder / FILE))
    path = folder / ROWS if out is None else Path(out)
    _write_rows(generator, rows, path, seed, system or System())
    return path


def _write_rows(generator: Generator | DeepGenerator, rows: int, path: Path, seed: int | None, system: System) -> None:
    start = int.from_bytes(system.random(16), "big") if seed is None else seed
    require(start >= 0, "--seed", "be 0 or more", start)
    try:
        public_folder(path.parent)
        draw = np.random.default_rng(start)
        if isinstance(generator, DeepGenerator):
            write_atomically(path, generator.csv_parts(rows, draw), mode=PUBLIC)
        else:
            write_atomically(path, csv_parts(generator, rows, draw), mode=PUBLIC)
    except OSError as error:
        raise BadValue(f"{os.fspath(path)} must be a file that can be written: {why(error)}.") from error
