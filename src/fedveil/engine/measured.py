"""Jobs of one stage of noisy sums that train nothing: a profile, a generator, an evaluation, any stage of one's own.

Each is a plan and a program, which computes what is released from noisy sums alone. The same program runs here, on all
rows, and at an aggregator, on none.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices
from fedveil.data.records import DataShape
from fedveil.data.spec import Source
from fedveil.engine.here import Here, KeptHere
from fedveil.engine.job import Fingerprint, Job, Release, Started, conduct
from fedveil.engine.run import Rows
from fedveil.engine.system import System
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import Books, Study
from fedveil.stages.measured.plan import MeasuredPlan, Settings
from fedveil.stages.measured.stage import measured_plan, stage_named
from fedveil.stages.measuring import Kept, Measures
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.asking import empty_table
from fedveil.stages.synthesise.budget import synthesis_plan
from fedveil.stages.synthesise.generator import Generator
from fedveil.stages.synthesise.learn import learned_generator
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import Table, day_of, table_of

Program = Callable[[Measures], bytes]  # what is released, from the noisy sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Implements Sited: a source that is looked at, and the books where that is charged."""

    source: Source
    base: Path
    books: Books


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measuring:
    """A plan, its program over these rows, and where it is charged.

    ``fingerprint``: of the source's rows, as they were read; ``cells``: of what is measured of them.
    """

    plan: MeasuredPlan
    program: Program
    rows: Rows
    place: Place
    fingerprint: Fingerprint
    cells: Fingerprint


def conduct_measured(measuring: Measuring, folder: Path, *, resume: bool = False, system: System) -> bytes:
    """Measure in ``folder`` and return what is released; what may be published is on the disk when this returns."""
    plan = measuring.plan

    def stages(started: Started) -> Release:
        adder = KeptHere(plan, started.entropy, started.name, folder, system)
        return released_by(plan, measuring.program, adder.measures(plan.stage, measuring.rows, {}))

    job = Job(
        what=plan.noun,
        plan=plan,
        output=plan.file,
        sited=measuring.place,
        fingerprint=measuring.fingerprint,
        records=measuring.cells,
        stages=stages,
    )
    conduct(lambda: job, folder, resume=resume, system=system)
    return (folder / plan.file).read_bytes()


def released_by(plan: MeasuredPlan, program: Program, by: Measures) -> Release:
    """Carry out the one stage of the plan, and return what is released."""
    content = program(by)
    return Release(output=content, files={plan.file: content})


def measuring_of(study: Study, plan: MeasuredPlan, program: Program, found: Unprepared) -> Measuring:
    """Return what is measured of a study's cells."""
    source = study.source
    if source is None:
        raise BadValue("[data] must name a source to measure.")
    return Measuring(
        plan=plan,
        program=program,
        rows=Rows(found.train.owner, found.train.clients, found.present),
        place=Place(source=source, base=study.base, books=study.books),
        fingerprint=found.fingerprint,
        cells=found.cells_fingerprint,
    )


def check_secret(study: Study) -> None:
    """Refuse a public seed where nothing but what is measured is released."""
    hint = "Its noise must be secret: what is measured is released."
    require(study.seed is None, "study.seed", "be left out for a generator and other sums", study.seed, hint)


# A stage of one's own


def planned_measured(study: Study, stage: str, settings: Settings, columns: Outline, shape: DataShape) -> MeasuredPlan:
    """Return the plan of a stage over columns like these, for records of this shape; no cell decides it."""
    check_secret(study)
    origin = study.data.origin
    more: dict[str, Any] = {"places": origin.places, "training_public": origin.public, "blank_rows": origin.blank_rows}
    return measured_plan(study.name, stage, settings, columns, shape, study.target, study.trust, **more)


def own_program(plan: MeasuredPlan, rows: Table) -> Program:
    """Return the program of a stage's own code over these rows.

    It runs twice, the second time without a row: so what is released is a function of the noisy sums, whatever the
    stage's code does.
    """
    code, nobody = stage_named(plan.stage), empty_table(rows.outline, rows.labels, rows.target, rows.clients)

    def program(by: Measures) -> bytes:
        kept = Kept(by)
        code.result(plan.stated, plan.sums, rows, plan.units, kept)
        return code.result(plan.stated, plan.sums, nobody, plan.units, kept.known())

    return program


def conduct_stage(
    study: Study,
    stage: str,
    settings: Settings,
    found: Unprepared,
    folder: Path,
    *,
    resume: bool = False,
    system: System,
) -> bytes:
    """Carry out a stage over a study's table in ``folder``, and return what is released."""
    rows = table_of(found)
    plan = planned_measured(study, stage, settings, rows.all_columns, found.train.shape)
    measuring = measuring_of(study, plan, own_program(plan, rows), found)
    return conduct_measured(measuring, folder, resume=resume, system=system)


# A generator


def planned_generator(study: Study, request: GeneratorRequest, table: Table, shape: DataShape) -> MeasuredPlan:
    """Return the plan of a generator of columns like these, for records of this shape; ``table``: may have no row."""
    outline = request.stated(table.outline)
    features = (*outline.numbers, *outline.texts)
    targets = () if table.target is None else (table.target,)
    request.check(outline.numbers, dict.fromkeys((*features, *targets)))
    count = len([name for name in (*features, *targets) if name not in request.sums])
    require(count >= 2, "A generator", "have at least two columns to measure", count)
    origin = study.data.origin
    return synthesis_plan(
        study.name,
        request,
        outline,
        replace(shape, features=count, bound=1.0),
        study.target,
        study.trust,
        labels=table.labels,
        places=origin.places,
        training_public=origin.public,
        blank_rows=origin.blank_rows,
    )


def planned_synthesis(study: Study, request: GeneratorRequest, found: Unprepared) -> MeasuredPlan:
    """Return the plan of a generator; no cell is looked at, but to refuse dates that are none."""
    for name in request.dates:
        words = found.columns.texts[name].spelt if name in found.columns.texts else ()
        stray = next((word for word in words if word and math.isnan(day_of(word))), None)
        hint = "Leave the column out (data.ignore), or name what marks a missing date (data.missing)."
        require(stray is None, f"The column {name!r}", "hold dates such as 2024-12-31", stray, hint)
    return planned_generator(study, request, table_of(found), found.train.shape)


def generator_program(plan: MeasuredPlan, request: GeneratorRequest, table: Table) -> Program:
    """Return the program that fits a generator to the noisy counts of a table."""
    return lambda by: learned_generator(plan.name, plan.sums, request, table, plan.units, by).text().encode()


def conduct_synthesis(
    study: Study, request: GeneratorRequest, found: Unprepared, folder: Path, *, resume: bool = False, system: System
) -> Generator:
    """Measure the generator in ``folder`` and return it; what may be published is on the disk when this returns."""
    check_secret(study)
    plan = planned_synthesis(study, request, found)
    measuring = measuring_of(study, plan, generator_program(plan, request, table_of(found)), found)
    return Generator.read(conduct_measured(measuring, folder, resume=resume, system=system))


def measured_generator(
    plan: MeasuredPlan, request: GeneratorRequest, found: Unprepared, entropy: Entropy, there: Indices | None = None
) -> Generator:
    """Return the generator that the plan measures on these records (or some: ``there``) with the noise of this key."""
    rows = Rows(found.train.owner, found.train.clients, found.present if there is None else there)
    by = Here(plan, entropy).measures(plan.stage, rows, {})
    return Generator.read(generator_program(plan, request, table_of(found))(by))
