"""What the design page asks about a study: whether it is right, and what its plan is. Runs in a worker.

All numbers are those of ``fedveil plan``: the same functions, in the same order.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.account.sampling_alone import bought
from fedveil.algorithms.registry import title_of
from fedveil.algorithms.request import Task
from fedveil.algorithms.yardstick import yardstick_of
from fedveil.certificate.certify import SEES
from fedveil.data.load import Loaded
from fedveil.design import Planned
from fedveil.errors import FedveilError
from fedveil.guarantee import finite_or_none
from fedveil.jobs.local import open_any_study
from fedveil.plan import Plan
from fedveil.prepare.loading import Unprepared
from fedveil.promises import ADVERSARIES, every_model_seen, promise
from fedveil.run.conduct import planned_rows
from fedveil.run.preparing import planned_columns
from fedveil.studio.places import Folder, Stamps, check_paths, stamps
from fedveil.study import Study, study_of
from fedveil.tables import read_tables

_opened: dict[object, Loaded | Unprepared] = {}  # the data that were read last: sliders ask about them again and again


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
    found = read(text, base, root)
    return {"name": found.name, "algorithm": found.algorithm.kind, "tuned": found.tune is not None}


def plan(
    text: str,
    base: str,
    root: str,
    epsilon: float | None = None,
    delta: float | None = None,
) -> dict[str, Any]:
    """Return the plan of a study as plain values; ``epsilon`` and ``delta`` take the place of its own."""
    study = read(text, base, root)
    target = study.target
    target = replace(
        target,
        epsilon=target.epsilon if epsilon is None else epsilon,
        delta=target.delta if delta is None else delta,
    )
    return described(*planned(replace(study, target=target)), study)


def planned(study: Study) -> tuple[Planned, Loaded | Unprepared]:
    """Return the plan of a study, and its data; they are read anew only if they have changed."""
    loaded = _data_of(study)
    made = planned_columns(study, loaded) if isinstance(loaded, Unprepared) else planned_rows(study, loaded)
    return made, loaded


def _data_of(study: Study) -> Loaded | Unprepared:
    source = study.source
    stated = (repr(source), None if source is None else repr(source.later), repr(study.split), repr(study.held_out))
    key = (stated, repr(study.prepare), study.target.unit, str(study.base), _changed(study))
    if key not in _opened:
        _opened.clear()
        _opened[key] = open_any_study(study)[1]
    return _opened[key]


def _changed(study: Study) -> Stamps:
    held = None if study.held_out is None else study.held_out.source
    return stamps(study.base, [source.source for source in (study.source, held) if source is not None])


def described(planned: Planned, loaded: Loaded | Unprepared, study: Study) -> dict[str, Any]:
    """Return a plan as plain values."""
    found, draft = planned.plan, planned.draft
    target, epsilons = found.target, {who: promise(found, who) for who in ADVERSARIES}
    observers = [
        {
            "adversary": who,
            "sees": SEES[who],
            "epsilon": None if found.voided else finite_or_none(answer.epsilon),
            "by": answer.certified_by,
        }
        for who, answer in epsilons.items()
    ]
    facts = found.method.facts(found.setup)
    return {
        "hash": found.hash,
        "name": found.name,
        "target": {name: getattr(target, name) for name in ("epsilon", "delta", "adversary", "unit", "neighbours")},
        "data": {"records": found.data.records, "clients": found.data.clients, "features": found.data.features},
        "algorithm": found.method.kind,
        "title": title_of(found.method.kind),
        "facts": [[name, str(value)] for name, value in facts],
        "rounds": found.method.total,
        "noise": finite_or_none(found.method.average_noise(sizes_of(loaded), found.setup)),
        "reason": draft.reason,
        "risk": finite_or_none(draft.risk),
        "learnable": _learnable(found, study),
        "observers": observers,
        "alone": _alone(found, epsilons["final-model"].epsilon),
        "warnings": list(found.warnings),
        "exposed": found.exposed_by,
        "private": found.private,
    }


def sizes_of(loaded: Loaded | Unprepared) -> Any:
    """Return how many records each client has."""
    return np.asarray(loaded.train.sizes)


def _learnable(found: Plan, study: Study) -> float | None:
    """Return the risk of a model that has learned nothing, by the yardstick of the design; None where it has none."""
    task = Task(data=found.data, model=found.model, target=found.target, schedule=study.schedule, trust=found.trust)
    try:
        return finite_or_none(yardstick_of(task).learnable)
    except (FedveilError, ValueError, TypeError):
        return None


def _alone(found: Plan, epsilon: float) -> Mapping[str, float | None] | None:
    """Return what epsilon would be if every model were seen, by how records are sampled, and what hiding buys."""
    seen = every_model_seen(found)
    if seen is None:
        return None
    return {
        "known": seen.known,
        "poisson": seen.poisson,
        "independent": seen.independent,
        "bought": finite_or_none(bought(seen, epsilon)),
    }
