"""The certificate of a model's evaluation on other records, from plan.toml, ledger.jsonl and evaluation.json alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedveil.certificate.alone import (
    AloneCertificate,
    certified,
    holds,
    owners_rows,
    plan_text,
    randomness_row,
    sees,
    shape_row,
)
from fedveil.certificate.assumptions import Assumption
from fedveil.stages.evaluate.plan import FILE, EvaluationPlan
from fedveil.stages.evaluate.words import assumption_rows

SEES = sees("the evaluation")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCertificate(AloneCertificate):
    """All guarantees of one evaluation."""

    plan: EvaluationPlan

    def named(self) -> dict[str, str]:
        """Return the evaluation's name, and the hash of its model."""
        return {"evaluation": self.plan.name, "model": self.plan.model}

    def released(self) -> list[dict[str, Any]]:
        """Return the evaluation."""
        return [{"what": "the evaluation of a model", "file": FILE, "sha256": self.found, "covered": True}]


def holds_evaluation(folder: Path) -> bool:
    """Return whether a folder holds the records of an evaluation, and not of a run."""
    return holds(folder, EvaluationPlan)


def certify_evaluation(folder: Path, version: str) -> EvaluationCertificate:
    """Return the certificate that the records support; refuse if a record is missing or was altered."""
    plan = EvaluationPlan.read(plan_text(folder))
    found = certified(folder, plan, FILE, "evaluation", lambda _: _assumptions(plan))
    return EvaluationCertificate(version=version, sees=SEES, **found)


def _assumptions(plan: EvaluationPlan) -> tuple[Assumption, ...]:
    how = "declared: the model was released before, and what it owes to these records is charged to its own run"
    rows = [shape_row(plan), Assumption("the model is public", plan.model, how), *owners_rows(plan)]
    counted = [Assumption(*row) for row in assumption_rows(plan.evaluation, plan.target, plan.data.classes)]
    return (*rows, randomness_row(), *counted)
