"""The certificate of a profile, computed from its records alone: plan.toml, ledger.jsonl and profile.json."""

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
from fedveil.stages.prepare.words import assumption_rows
from fedveil.stages.profile.found import FILE
from fedveil.stages.profile.plan import ProfilePlan

SEES = sees("the profile")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCertificate(AloneCertificate):
    """All guarantees of one profile."""

    plan: ProfilePlan

    def named(self) -> dict[str, str]:
        """Return the profile's name."""
        return {"profile": self.plan.name}

    def released(self) -> list[dict[str, Any]]:
        """Return the profile."""
        return [{"what": "the profile", "file": FILE, "sha256": self.found, "covered": True}]


def holds_profile(folder: Path) -> bool:
    """Return whether a folder holds the records of a profile, and not of a run."""
    return holds(folder, ProfilePlan)


def certify_profile(folder: Path, version: str) -> ProfileCertificate:
    """Return the certificate that the records support; refuse if a record is missing or was altered."""
    plan = ProfilePlan.read(plan_text(folder))
    found = certified(folder, plan, FILE, "profile", lambda _: _assumptions(plan))
    return ProfileCertificate(version=version, sees=SEES, **found)


def _assumptions(plan: ProfilePlan) -> tuple[Assumption, ...]:
    how = (
        "declared: public, like the columns' names; whoever chose the signs or filled a column did not decide it alone"
    )
    what = "the signs between columns and in numbers; which columns are empty or hold dates"
    rows = [shape_row(plan), Assumption("how the data are written is public", what, how), *owners_rows(plan)]
    learned = [Assumption(*row) for row in assumption_rows(plan.preparation, plan.target)]
    return (*rows, randomness_row(), *learned)
