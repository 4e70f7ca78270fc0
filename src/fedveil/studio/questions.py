"""What the design page asks about a study: whether it is right, and what its plan is. Runs in a worker.

All numbers are those of ``fedveil plan``: the same functions, in the same order.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.accounting.sampling_alone import bought
from fedveil.certificate.stage_words import SEES
from fedveil.core.errors import FedveilError
from fedveil.core.tables import read_tables
from fedveil.data.load import Loaded
from fedveil.engine.study import planned_for
from fedveil.jobs.ask import plan_questions
from fedveil.jobs.local import ReadTables, open_any_study
from fedveil.planning.design import Planned
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, every_model_seen, promise
from fedveil.planning.study import Study, study_of
from fedveil.privacy.guarantee import finite_or_none
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.train.registry import facts_of, title_of
from fedveil.stages.train.request import Task
from fedveil.stages.train.yardstick import yardstick_of
from fedveil.studio.places import Folder, Stamps, check_paths, stamps

# the data that were read last: sliders ask about them again and again
_opened: list[tuple[object, Loaded | Unprepared]] = []


def ready() -> bool:
    """Return at once; what takes long is to be loaded."""
    return True


def read(text: str, base: str, root: str) -> Study:
    """Return the study that a text describes; its paths start from ``base`` and stay in ``root``."""
    folder, here = Folder(Path(root)), Path(base)
    tables = read_tables(text, "The study file")
    check_paths(tables, here, folder)
    return study_of(tables, base=here)


def check(text: str, base: str, root: str) -> dict[str, Any]:
    """Return what the study says; refuse with the command line's own sentence what it would refuse."""
    study = read(text, base, root)
    return {"name": study.name, "algorithm": study.algorithm.kind, "tuned": bool(study.tune)}


def plan(
    text: str,
    base: str,
    root: str,
    epsilon: float | None = None,
    delta: float | None = None,
) -> dict[str, Any]:
    """Return the plan of a study as JSON values; ``epsilon`` and ``delta`` take the place of its own."""
    study = read(text, base, root)
    target = study.target
    target = replace(
        target,
        epsilon=target.epsilon if epsilon is None else epsilon,
        delta=target.delta if delta is None else delta,
    )
    return plan_values(*planned_study(replace(study, target=target)), study)


def questions(text: str, base: str, root: str) -> dict[str, Any]:
    """Return how precise the answers to a question file will be, and what they cost; nothing is charged."""
    tables, here = read_tables(text, "The question file"), Path(base)
    check_paths(tables, here, Folder(Path(root)))
    plan, expected, spent = plan_questions(ReadTables(tables, here, "questions"))
    return {
        "rows": [
            {
                "question": one.question,
                "what": one.what,
                "unit": one.unit,
                "width": finite_or_none(one.half_widths[plan.target.epsilon]),
            }
            for one in expected
        ],
        "epsilon": finite_or_none(plan.promise(plan.target.adversary).epsilon),
        "noise": plan.sums.law,
        "ledger": spent.sentence(),
    }


def planned_study(study: Study) -> tuple[Planned, Loaded | Unprepared]:
    """Return the plan of a study, and its data; they are read anew only if they have changed."""
    loaded = _data_of(study)
    made = planned_for(study, loaded)
    return made, loaded


def _data_of(study: Study) -> Loaded | Unprepared:
    key = (study.data, study.prepare, study.target.unit, _changed(study))
    if not _opened or _opened[0][0] != key:
        _opened[:] = [(key, open_any_study(study)[1])]
    return _opened[0][1]


def _changed(study: Study) -> Stamps:
    held = None if study.data.held_out is None else study.data.held_out.source
    return stamps(study.base, [source.source for source in (study.source, held) if source is not None])


def plan_values(planned: Planned, loaded: Loaded | Unprepared, study: Study) -> dict[str, Any]:
    """Return a plan as JSON values."""
    plan, draft = planned.plan, planned.draft
    target, epsilons = plan.target, {who: promise(plan, who) for who in ADVERSARIES}
    observers = [
        {
            "adversary": who,
            "sees": SEES[who],
            "epsilon": None if plan.voided else finite_or_none(answer.epsilon),
            "by": answer.certified_by,
        }
        for who, answer in epsilons.items()
    ]
    facts = facts_of(plan.method, plan.setup)
    return {
        "hash": plan.hash,
        "name": plan.name,
        "target": {name: getattr(target, name) for name in ("epsilon", "delta", "adversary", "unit", "neighbours")},
        "data": {"records": plan.data.records, "clients": plan.data.clients, "features": plan.data.features},
        "algorithm": plan.method.kind,
        "title": title_of(plan.method.kind),
        "facts": [[name, str(value)] for name, value in facts],
        "rounds": plan.method.total,
        "noise": finite_or_none(plan.method.average_noise(sizes_of(loaded), plan.setup)),
        "reason": draft.reason,
        "risk": finite_or_none(draft.risk),
        "learnable": _learnable(plan, study),
        "observers": observers,
        "alone": _alone(plan, epsilons["final-model"].epsilon),
        "warnings": list(plan.warnings),
        "exposed": plan.exposed_by,
        "private": plan.private,
    }


def sizes_of(loaded: Loaded | Unprepared) -> Any:
    """Return how many records each client has."""
    return np.asarray(loaded.train.sizes)


def _learnable(plan: Plan, study: Study) -> float | None:
    """Return the risk of a model that has learned nothing, by the yardstick of the design; None where it has none."""
    task = Task(data=plan.data, model=plan.model, target=plan.target, schedule=study.schedule, trust=plan.trust)
    try:
        return finite_or_none(yardstick_of(task).learnable)
    except (FedveilError, ValueError, TypeError):
        return None


def _alone(plan: Plan, epsilon: float) -> Mapping[str, float | None] | None:
    """Return what epsilon would be if every model were seen, by how records are sampled, and what hiding buys."""
    seen = every_model_seen(plan)
    if seen is None:
        return None
    return {
        "known": seen.known,
        "poisson": seen.poisson,
        "independent": seen.independent,
        "bought": finite_or_none(bought(seen, epsilon)),
    }
