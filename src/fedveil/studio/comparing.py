"""Algorithms, or degrees of trust, side by side by planning alone: nothing is trained. Runs in a worker."""

from dataclasses import replace
from typing import Any

from fedveil.core.errors import FedveilError
from fedveil.data.load import Loaded
from fedveil.jobs.compare import Entry, View, candidates
from fedveil.planning.design import Planned
from fedveil.planning.promises import promise
from fedveil.planning.study import Study
from fedveil.planning.tuning import NOT_TUNED
from fedveil.privacy.guarantee import finite_or_none
from fedveil.stages.prepare.loading import Unprepared
from fedveil.studio.questions import planned_study, read, sizes_of


def compare(text: str, base: str, root: str, view: View) -> list[dict[str, Any]]:
    """Return a row for each candidate of ``fedveil compare``, planned for the study's target or refused."""
    study = replace(read(text, base, root), tune=NOT_TUNED, canaries=0)
    return [_row(entry, studies) for entry, studies in candidates(study, view, ())]


def _row(entry: Entry, studies: tuple[Study, ...]) -> dict[str, Any]:
    """Of several studies that could fill a row, the one of least expected risk does."""
    row = {"label": entry.label, "adversary": entry.adversary, "explained": entry.explained}
    designs: list[tuple[Planned, Loaded | Unprepared]] = []
    refused = None
    for study in studies:
        try:
            designs.append(planned_study(study))
        except (FedveilError, ValueError) as error:
            refused = refused or " ".join(str(error).split())
    if not designs:
        return {**row, "refused": refused}
    best, loaded = min(designs, key=lambda one: float("inf") if one[0].draft.risk is None else one[0].draft.risk)
    plan = best.plan
    return {
        **row,
        "refused": None,
        "algorithm": plan.method.kind,
        "rounds": plan.method.total,
        "noise": finite_or_none(plan.method.average_noise(sizes_of(loaded), plan.setup)),
        "risk": finite_or_none(best.draft.risk),
        "epsilon": None if plan.voided else finite_or_none(promise(plan, entry.adversary).epsilon),
    }
