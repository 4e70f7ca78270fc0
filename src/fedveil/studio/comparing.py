"""Algorithms, or degrees of trust, side by side by planning alone: nothing is trained. Runs in a worker."""

from dataclasses import replace
from typing import Any

from fedveil.data.load import Loaded
from fedveil.design import Planned
from fedveil.errors import FedveilError
from fedveil.guarantee import finite_or_none
from fedveil.jobs.compare.candidates import candidates
from fedveil.jobs.compare.result import Entry, View
from fedveil.prepare.loading import Unprepared
from fedveil.promises import promise
from fedveil.studio.questions import planned, read, sizes_of
from fedveil.study import Study


def compare(text: str, base: str, root: str, view: View) -> list[dict[str, Any]]:
    """Return a row for each candidate of ``fedveil compare``, planned for the study's target or refused."""
    study = replace(read(text, base, root), tune=None, canaries=None)
    return [_row(entry, studies) for entry, studies in candidates(study, view, ())]


def _row(entry: Entry, studies: tuple[Study, ...]) -> dict[str, Any]:
    """Of several studies that could fill a row, the one of least expected risk does."""
    told = {"label": entry.label, "adversary": entry.adversary, "explained": entry.explained}
    found: list[tuple[Planned, Loaded | Unprepared]] = []
    refused = None
    for study in studies:
        try:
            found.append(planned(study))
        except (FedveilError, ValueError) as error:
            refused = refused or " ".join(str(error).split())
    if not found:
        return {**told, "refused": refused}
    best, loaded = min(found, key=lambda one: float("inf") if one[0].draft.risk is None else one[0].draft.risk)
    plan = best.plan
    return {
        **told,
        "refused": None,
        "algorithm": plan.method.kind,
        "rounds": plan.method.total,
        "noise": finite_or_none(plan.method.average_noise(sizes_of(loaded), plan.setup)),
        "risk": finite_or_none(best.draft.risk),
        "epsilon": None if plan.voided else finite_or_none(promise(plan, entry.adversary).epsilon),
    }
