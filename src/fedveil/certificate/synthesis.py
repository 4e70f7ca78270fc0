"""The certificate of a generator, computed from its records alone: plan.toml, ledger.jsonl and generator.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from fedveil.certificate.alone import (
    AloneCertificate,
    Sees,
    certified,
    holds,
    plan_text,
    randomness_row,
    shape_row,
)
from fedveil.certificate.assumptions import Assumption
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.prepare.words import assumption_rows
from fedveil.stages.synthesise.generator import FILE
from fedveil.stages.synthesise.plan import SynthesisPlan
from fedveil.stages.train.share_words import ADDED, SUMS_ALONE, Row, words_of

SEES: Sees = {
    "final-model": "the generator, and as many rows drawn from it as it likes",
    "curious-client": "the generator, and its own part of the noise",
    "every-model": "the generator: there is nothing else to see",
    "server-with-secure-aggregation": "the noised sums from which the generator is made",
    "server": "every client's own part of the sums, with its part of the noise",
}
ROWS: Final = "synthetic.csv"
_CENTRAL: dict[Adversary, tuple[Row, ...]] = {
    "server": (ADDED,),
    "server-with-secure-aggregation": (ADDED, SUMS_ALONE),
}
_SENT: Final[Row] = ("it is sent what was chosen", "the noised sums", "they are counted as seen by everybody")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisCertificate(AloneCertificate):
    """All guarantees of one generator."""

    plan: SynthesisPlan

    def named(self) -> dict[str, str]:
        """Return the generator's name."""
        return {"generator": self.plan.name}

    def released(self) -> list[dict[str, Any]]:
        """Return the generator, and the rows drawn from it."""
        return [
            {"what": "the generator", "file": FILE, "sha256": self.found, "covered": True},
            {"what": "rows drawn from it, as many as wanted", "file": ROWS, "covered": True},
        ]


def holds_generator(folder: Path) -> bool:
    """Return whether a folder holds the records of a generator."""
    return holds(folder, SynthesisPlan)


def certify_synthesis(folder: Path, version: str) -> SynthesisCertificate:
    """Return the certificate that the records support; refuse if a record is missing or was altered."""
    plan = SynthesisPlan.read(plan_text(folder))
    found = certified(folder, plan, FILE, "generator", lambda who: _assumptions(plan, who))
    return SynthesisCertificate(version=version, sees=SEES, **found)


def _assumptions(plan: SynthesisPlan, adversary: Adversary) -> tuple[Assumption, ...]:
    rows: list[Row] = []
    if plan.places is not None:
        how = "declared: public; it is in the plan, and nobody's noise covers it"
        rows.append(("who holds which record is public", f"decided by {plan.places}", how))
    if plan.blank_rows:
        how = "declared: such a row stays as a record that adds nothing"
        rows.append(("rows with a missing value that were dropped", "blank records", how))
    first, rows = [shape_row(plan), *(Assumption(*row) for row in rows), randomness_row()], []
    rows += assumption_rows(plan.preparation, plan.target)
    if plan.target.neighbours == "replace-one":
        how = "counts are not negative, so two contributions differ by at most the root of 2 times their norm"
        rows.append(("replacing one unit moves a sum", "the root of 2 times the norm", how))
    how = "computed from the noised sums and public numbers alone, without a record: so it costs nothing more"
    rows.append(("which pairs are measured, the model and every row drawn", "post-processing", how))
    words = words_of(plan.trust)
    rows += words.closing(adversary, [plan.data.clients], _SENT) + words.if_central(*_CENTRAL.get(adversary, ()))
    return (*first, *(Assumption(*row) for row in rows))
