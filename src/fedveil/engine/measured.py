"""Carry out a stage of noisy sums in a folder, as a job that measures and trains nothing (fedveil.engine.alone)."""

from pathlib import Path
from typing import Any

from fedveil.core.errors import BadValue
from fedveil.data.records import DataShape
from fedveil.engine.alone import Job, conduct_alone
from fedveil.engine.answers import OF_PREPARATION, Answers
from fedveil.engine.sums import summing_of_sums
from fedveil.engine.synthesising import check_secret
from fedveil.engine.system import System
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import Study
from fedveil.stages.measured.plan import MeasuredPlan, Settings
from fedveil.stages.measured.stage import measured_plan, stage_named
from fedveil.stages.measuring import Kept, Measurer
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.asking import empty_table
from fedveil.stages.synthesise.table import table_of


def planned_measured(study: Study, stage: str, settings: Settings, columns: Outline, shape: DataShape) -> MeasuredPlan:
    """Return the plan of a stage over columns like these, for records of this shape; no cell decides it."""
    check_secret(study)
    origin = study.data.origin
    more: dict[str, Any] = {"places": origin.places, "training_public": origin.public, "blank_rows": origin.blank_rows}
    return measured_plan(study.name, stage, settings, columns, shape, study.target, study.trust, **more)


def conduct_measured(
    study: Study,
    stage: str,
    settings: Settings,
    found: Unprepared,
    folder: Path,
    *,
    resume: bool = False,
    system: System,
) -> bytes:
    """Measure in ``folder`` and return what is released; what may be published is on the disk when this returns."""
    source = study.source
    if source is None:
        raise BadValue("[data] must name a source to measure.")
    plan, code = planned_measured(study, stage, settings, found.outline, found.train.shape), stage_named(stage)
    summing_of_sums(plan, Entropy.from_system())  # refuses, before the charge, what cannot be added up here

    def measure(entropy: Entropy) -> bytes:
        name = entropy.words("answers of the sums", 0, 2).tobytes().hex()  # of this key, and of no other
        sums = summing_of_sums(plan, entropy)
        asked = Answers.open(folder / "private" / OF_PREPARATION, name, system.fails, sums)
        by = Measurer(
            owner=found.train.owner,
            clients=found.train.clients,
            present=found.present,
            target=plan.target,
            entropy=entropy,
            trust=plan.trust,
            add_up=asked.add_up,
            fails=asked.fails,
            names=[one.name for one in plan.sums.measurements],
        )
        rows, kept = table_of(found), Kept(by)
        code.result(settings, plan.sums, rows, plan.units, kept)
        # Once more, without a row: what is released is a function of the noisy sums, whatever the stage's code does.
        nobody = empty_table(rows.outline, rows.labels, rows.target)
        return code.result(settings, plan.sums, nobody, plan.units, kept.known())

    job = Job(
        what="result",
        file=code.file,
        plan=plan,
        source=source,
        base=study.base,
        books=study.books,
        fingerprint=found.fingerprint,
        cells=found.cells_fingerprint,
    )
    return conduct_alone(job, folder, measure, resume=resume, system=system)
