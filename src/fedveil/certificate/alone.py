"""The certificate of a job that trains nothing (a profile, a generator, an evaluation), from its records alone.

Each of them says what was released, and what its numbers rest on; the rest is alike, and is here.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.certificate.assumptions import Assumption
from fedveil.certificate.certify import Guarantee, check_charge, guarantee_row, read_bytes
from fedveil.certificate.data_set import DataSet, data_set_of
from fedveil.core.checks import require
from fedveil.core.files import read_file
from fedveil.ledger import Entry, parse_export, read_export
from fedveil.planning.promises import ADVERSARIES
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.prepare.alone import AlonePlan

Sees = dict[Adversary, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneCertificate:
    """All guarantees of one job; ``ledger``: the hash of its last entry in the books; ``found``: of what it released.

    ``sees``: in words, what each observer sees. ``data_set``: what all runs on the data cost together.
    """

    plan: AlonePlan
    run: str
    version: str
    ledger: str
    guarantees: tuple[Guarantee, ...]
    found: str
    sees: Sees
    data_set: DataSet | None = None

    def named(self) -> dict[str, str]:
        """Return what the certificate is about: the kind of job, and its name."""
        raise NotImplementedError

    def released(self) -> list[dict[str, Any]]:
        """Return what left the job."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        """Return the certificate as plain values."""
        return {
            "format": 1,
            "version": self.version,
            **self.named(),
            "plan": self.plan.hash,
            "run": self.run,
            "ledger": self.ledger,
            "private": True,
            "guarantees": [
                guarantee_row(self.plan.target, one, self.sees[one.adversary], voided=False) for one in self.guarantees
            ],
            **({} if self.data_set is None else self.data_set.written()),
            "released": self.released(),
        }

    def text(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"


def sees(what: str) -> Sees:
    """Return in words what each observer sees of a job that releases ``what``.

    >>> sees("the profile")["every-model"]
    'the profile: there is nothing else to see'
    """
    return {
        "final-model": what,
        "curious-client": f"{what}, and its own part of the noise",
        "every-model": f"{what}: there is nothing else to see",
        "server-with-secure-aggregation": f"the noised sums from which {what} is made",
        "server": "every unit's own part of the sums, with its part of the noise",
    }


def holds(folder: Path, kind: type[AlonePlan]) -> bool:
    """Return whether a folder holds the records of such a job, and not of a run."""
    path = folder / "plan.toml"
    return path.is_file() and kind.describes(read_file(path).decode("utf-8", "replace"))


def certified(
    folder: Path, plan: AlonePlan, file: str, what: str, assumed: Callable[[Adversary], tuple[Assumption, ...]]
) -> dict[str, Any]:
    """Return what the records support, for any of the certificates; refuse if a record is missing or was altered.

    ``file``: what was released; ``what``: the name of what was measured; ``assumed``: what each observer's promise
    rests on.
    """
    charge, release, found = _checked(folder, plan, file, what)
    return {
        "plan": plan,
        "run": charge.run,
        "ledger": release.hash,
        "guarantees": tuple(
            Guarantee(adversary=who, answer=plan.promise(who), assumptions=assumed(who)) for who in ADVERSARIES
        ),
        "found": found,
        "data_set": data_set_of(parse_export(read_bytes(folder / "ledger.jsonl"))),
    }


def plan_text(folder: Path) -> str:
    """Return the text of the plan in a folder."""
    return read_bytes(folder / "plan.toml").decode("utf-8", "replace")


def shape_row(plan: AlonePlan) -> Assumption:
    """Return the row that says which counts are public."""
    data = plan.data
    shape = f"{data.records} records, {data.clients} clients of {data.smallest_client} to {data.largest_client}"
    return Assumption("the data's shape is public", shape, "declared: counts and sizes are in the plan")


def randomness_row() -> Assumption:
    """Return the row that says where the noise comes from."""
    source = "a stream cipher keyed by the operating system's entropy; each sum's noise is drawn once"
    return Assumption("randomness", "256-bit key", source)


def owners_rows(plan: AlonePlan) -> list[Assumption]:
    """Return the row that says who holds which record, where a column decides it."""
    how = "declared: the client column is public, and so is which rows name no client; those take no part"
    row = Assumption("who holds which record is public", "a column of the data", how)
    return [] if plan.places is None else [row]


def _checked(folder: Path, plan: AlonePlan, file: str, what: str) -> tuple[Entry, Entry, str]:
    """Return the charge, the release and the hash of what was released."""
    entries = read_export(folder / "ledger.jsonl")
    require(len(entries) >= 1, "ledger.jsonl", f"hold the {what}'s entries", 0)
    charge, release = entries[0], entries[-1]
    require(charge.kind == "charge", "The ledger", "begin with a charge", charge.kind)
    named = charge.payload.get("plan")
    require(named == plan.hash, "plan.toml", f"be the plan that was charged, {named}", plan.hash)
    check_charge(plan, charge)
    hint = f"The {what} did not finish; go on with --resume."
    require(release.kind == "release", "The ledger", "end with a release", release.kind, hint)
    found, stated = hashlib.sha256(read_bytes(folder / file)).hexdigest(), release.payload.get("model")
    require(found == stated, file, f"be the {what} that was released, {stated}", found)
    return charge, release, found
