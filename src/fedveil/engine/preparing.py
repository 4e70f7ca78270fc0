"""The preparation of a run in this process: planned on public numbers, and measured after the charge."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedveil.engine.files import write_atomically
from fedveil.engine.held_out import planned_with
from fedveil.engine.sums import summing_of_preparation
from fedveil.noise.entropy import Entropy
from fedveil.planning.design import Planned
from fedveil.planning.plan import Plan
from fedveil.planning.study import Study
from fedveil.planning.tune_request import Candidate
from fedveil.privacy.target import Target
from fedveil.stages.adding import Fails, nobody_fails
from fedveil.stages.measuring import Measurer
from fedveil.stages.prepare.budget import fitting, settled
from fedveil.stages.prepare.learn import learn
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.prepare.notes import notes_for_holder
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.sums import NoisySums
from fedveil.sums.seam import Summing

NOTES = "preparation_notes.json"  # in the private folder


def planned_columns(study: Study, found: Unprepared, *, at_sites: bool = False) -> Planned:
    """The plan of a study whose preparation is to be learned; it depends on no cell."""
    told = planned_with(study, found, at_sites=at_sites)
    if study.tune:
        apart = {key: value for key, value in told.items() if key not in ("held", "joint")}

        def design(candidate: Candidate, target: Target) -> Planned:
            return _planned(study.candidate(candidate, target), found, apart)

        return study.tuned(design, told.get("test_records", 0), told.get("test_public", True))
    return _planned(study, found, told)


def _planned(study: Study, found: Unprepared, told: Mapping[str, Any]) -> Planned:
    request = study.prepare or PrepareRequest()
    preparation, outline = settled(request, found.outline, found.train.shape, study.target, study.trust)
    return study.planned(found.shape(outline), preparation=preparation, **told)


def learned_from(
    plan: Plan, found: Unprepared, entropy: Entropy, add_up: Summing | None = None, fails: Fails = nobody_fails
) -> LearnedRule:
    """Measure what the plan says on the records to train on.

    ``add_up`` and ``fails`` matter where clients share the noise: what adds up (None: as the plan's trust says), and
    who fails to answer.
    """
    planned = preparation_in(plan)
    by = Measurer(
        owner=found.train.owner,
        clients=found.train.clients,
        present=found.present,
        target=plan.target,
        entropy=entropy,
        trust=plan.trust,
        add_up=summing_of_preparation(plan, entropy) if add_up is None else add_up,
        fails=fails,
        served=plan.method.served,
    )
    outline = fitting(found.outline, planned, plan.data, plan.target)
    train = found.train
    return learn(planned, outline, found.training_columns, train.targets, train.classes, units_of(plan), by)


def units_of(plan: Plan) -> int:
    """How many contribute to a measurement: records, or whole clients."""
    return plan.data.clients if plan.target.unit == "client" else plan.data.records


def preparation_in(plan: Plan) -> NoisySums:
    """The preparation of a plan that has one."""
    if not plan.preparation:
        raise TypeError("a plan with a preparation was expected")
    return plan.preparation


def notes_of(found: Unprepared, learned: LearnedRule) -> list[str]:
    """What the data holder should know, and nobody else: it is computed from the records without noise."""
    train = found.train
    columns, targets = found.training_columns.rows(found.present), train.targets[found.present]
    return [*found.notes, *notes_for_holder(columns, targets, train, learned)]


def write_notes(notes: list[str], private: Path) -> list[str]:
    """Keep notes where only the data holder reads, and return them."""
    text = json.dumps({"format": 1, "notes": notes}, indent=1) + "\n"
    write_atomically(private / NOTES, text.encode())
    return notes
