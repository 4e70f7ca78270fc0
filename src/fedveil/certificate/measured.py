"""The certificate of a stage of noisy sums, computed from its records alone, without the stage's code."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedveil.certificate.alone import (
    AloneCertificate,
    certified,
    owners_rows,
    plan_text,
    randomness_row,
    sees,
    shape_row,
)
from fedveil.certificate.assumptions import Assumption
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.prepare.words import assumption_rows
from fedveil.stages.train.share_words import ADDED, SUMS_ALONE, Row, words_of

_SENT: Row = ("it is sent what was asked", "the noised sums", "they are counted as seen by everybody")
_CENTRAL: dict[Adversary, tuple[Row, ...]] = {
    "server": (ADDED,),
    "server-with-secure-aggregation": (ADDED, SUMS_ALONE),
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCertificate(AloneCertificate):
    """All guarantees of one stage."""

    plan: MeasuredPlan

    def named(self) -> dict[str, str]:
        """Return the stage, and the name of the job."""
        return {"stage": self.plan.stage, "name": self.plan.name}

    def released(self) -> list[dict[str, Any]]:
        """Return the result."""
        return [{"what": "the result", "file": self.plan.file, "sha256": self.found, "covered": True}]


def certify_measured(folder: Path, version: str) -> MeasuredCertificate:
    """Return the certificate that the records support; refuse if a record is missing or was altered."""
    plan = MeasuredPlan.read(plan_text(folder))
    found = certified(folder, plan, plan.file, "result", lambda who: _assumptions(plan, who))
    return MeasuredCertificate(version=version, sees=sees("the result"), **found)


def _assumptions(plan: MeasuredPlan, adversary: Adversary) -> tuple[Assumption, ...]:
    first = [shape_row(plan), *owners_rows(plan), randomness_row()]
    rows: list[Row] = [*assumption_rows(plan.preparation, plan.target)]
    if plan.counts and plan.target.neighbours == "replace-one":
        how = "counts are not negative, so two contributions differ by at most the root of 2 times their norm"
        rows.append(("replacing one unit moves a sum", "the root of 2 times the norm", how))
    how = "computed from the noised sums and public numbers alone, without a record: so it costs nothing more"
    rows.append(("the result", "post-processing", how))
    words = words_of(plan.trust)
    rows += words.closing(adversary, [plan.data.clients], _SENT) + words.if_central(*_CENTRAL.get(adversary, ()))
    return (*first, *(Assumption(*row) for row in rows))
