"""Carry out a generator in a folder: charge, measure, record, release, in the order of a run."""

import math
from dataclasses import replace
from pathlib import Path

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.data.records import DataShape
from fedveil.engine import answers
from fedveil.engine.alone import Job, conduct_alone
from fedveil.engine.answers import Answers
from fedveil.engine.sums import summing_of_preparation
from fedveil.engine.system import System
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import Study
from fedveil.stages.adding import nobody_fails
from fedveil.stages.measuring import Measurer
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.budget import synthesis_plan
from fedveil.stages.synthesise.cells import day_of
from fedveil.stages.synthesise.generator import FILE, Generator
from fedveil.stages.synthesise.learn import learned_generator
from fedveil.stages.synthesise.plan import SynthesisPlan
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import Table, table_of


def planned_synthesis(study: Study, request: GeneratorRequest, found: Unprepared) -> SynthesisPlan:
    """Return the plan of a generator; no cell is looked at, but to refuse dates that are none."""
    _check_dates(request, found)
    return planned_for(study, request, table_of(found), found.train.shape)


def planned_for(study: Study, request: GeneratorRequest, table: Table, shape: DataShape) -> SynthesisPlan:
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


def _check_dates(request: GeneratorRequest, found: Unprepared) -> None:
    """Refuse a column of dates that holds something else, before anything is charged."""
    for name in request.dates:
        words = found.columns.texts[name].spelt if name in found.columns.texts else ()
        stray = next((word for word in words if word and math.isnan(day_of(word))), None)
        hint = "Leave the column out (data.ignore), or name what marks a missing date (data.missing)."
        require(stray is None, f"The column {name!r}", "hold dates such as 2024-12-31", stray, hint)


def measured_generator(
    plan: SynthesisPlan, request: GeneratorRequest, found: Unprepared, entropy: Entropy, asked: Answers | None = None
) -> Generator:
    """Measure what the plan says on the records. ``asked``: who answers and what adds up; None: everybody, as planned.

    ``asked`` matters where the clients share the noise.
    """
    by = Measurer(
        owner=found.train.owner,
        clients=found.train.clients,
        present=found.present,
        target=plan.target,
        entropy=entropy,
        trust=plan.trust,
        add_up=summing_of_preparation(plan, entropy) if asked is None else asked.add_up,
        fails=nobody_fails if asked is None else asked.fails,
    )
    return learned_generator(plan.name, plan.preparation, request, table_of(found), plan.units, by)


def check_secret(study: Study) -> None:
    """Refuse a public seed where nothing but what is measured is released."""
    hint = "Its noise must be secret: what is measured is released."
    require(study.seed is None, "study.seed", "be left out for a generator and other sums", study.seed, hint)


def conduct_synthesis(
    study: Study, request: GeneratorRequest, found: Unprepared, folder: Path, *, resume: bool = False, system: System
) -> Generator:
    """Measure the generator in ``folder`` and return it; what may be published is on the disk when this returns."""
    source = study.source
    if source is None:
        raise BadValue("[data] must name a source for a generator.")
    check_secret(study)
    plan = planned_synthesis(study, request, found)
    summing_of_preparation(plan, Entropy.from_system())  # refuses, before the charge, what cannot be added up here

    def measure(entropy: Entropy) -> bytes:
        name = entropy.words("answers of the generator", 0, 2).tobytes().hex()  # of this key, and of no other
        sums = summing_of_preparation(plan, entropy)
        asked = Answers.open(folder / "private" / answers.OF_PREPARATION, name, system.fails, sums)
        return measured_generator(plan, request, found, entropy, asked).text().encode()

    job = Job(
        what="generator",
        file=FILE,
        plan=plan,
        source=source,
        base=study.base,
        books=study.books,
        fingerprint=found.fingerprint,
        cells=found.cells_fingerprint,
    )
    return Generator.read(conduct_alone(job, folder, measure, resume=resume, system=system))
