"""What an officer reads and signs: the certificate as it will be, and the finished one. Runs in a worker."""

import os
from pathlib import Path
from typing import Any

from fedveil.certificate.assumptions import Assumption, assumptions
from fedveil.certificate.certify import certify_written
from fedveil.certificate.stage_words import SEES
from fedveil.core.errors import CannotCertify, require
from fedveil.core.files import PUBLIC, read_file, write_atomically
from fedveil.planning.plan import Plan, write_plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.privacy.guarantee import finite_or_none
from fedveil.signing.keys import SigningKey, read_key, write_key
from fedveil.signing.signature import FILE, Signature
from fedveil.studio.approval import approval_file, read_approval
from fedveil.studio.places import Folder
from fedveil.studio.questions import planned_study, read
from fedveil.version import __version__


def certificate(study: str, root: str) -> dict[str, Any]:
    """Return the certificate that a run of the study will have, and the approval that its plan has."""
    path, plan = _plan(study, root)
    rows: dict[Assumption, list[str]] = {}
    for who in ADVERSARIES:
        for row in assumptions(plan, who):
            rows.setdefault(row, []).append(who)
    target, given = plan.target, read_approval(path)
    return {
        "name": plan.name,
        "plan": plan.hash,
        "private": plan.private,
        "exposed": plan.exposed_by,
        "warnings": list(plan.warnings),
        "target": {key: getattr(target, key) for key in ("epsilon", "delta", "adversary", "unit", "neighbours")},
        "data": {"records": plan.data.records, "clients": plan.data.clients},
        "algorithm": plan.method.kind,
        "observers": [
            {
                "adversary": who,
                "sees": SEES[who],
                "epsilon": None if plan.voided else finite_or_none(promise(plan, who).epsilon),
                "by": promise(plan, who).certified_by,
            }
            for who in ADVERSARIES
        ],
        "assumptions": [
            {"name": row.name, "value": row.value, "by": row.enforced_by, "needed": who} for row, who in rows.items()
        ],
        "approved": None
        if given is None
        else {"signer": given.signer.fingerprint, "fits": given.fits(write_plan(plan).encode())},
    }


def approve(study: str, key: str, plan: str, root: str) -> str:
    """Sign the plan of a study, if it is still the one that was read (by its hash); return the signer."""
    secret = read_key(Path(key))
    path, now = _plan(study, root)
    hint = "The study or its data were changed since this page was opened: read it again."
    require(now.hash == plan, "The plan", f"be the one that was read, {plan}", now.hash, hint)
    signed = Signature.of(write_plan(now).encode(), secret)
    write_atomically(approval_file(path), signed.text(), mode=PUBLIC)
    return signed.signer.fingerprint


def sign(out: str, key: str, root: str) -> str:
    """Sign the certificate of a finished run, if it matches the run's records; return the signer."""
    secret, folder = read_key(Path(key)), Folder(Path(root)).existing(out, "The run")
    certificate, changes = certify_written(folder, __version__)
    if changes:
        raise CannotCertify(f"The certificate in {out} does not match the run's records: {'; '.join(changes)}.")
    signed = Signature.of(certificate.text().encode(), secret)
    write_atomically(folder / FILE, signed.text(), mode=PUBLIC)
    from fedveil.report.page import write_report  # drawing is slow to import

    write_report(folder)
    return signed.signer.fingerprint


def new_key(name: str, root: str) -> str:
    """Make a signing key in the working folder, readable by its owner only; return the signer."""
    path = Folder(Path(root)).inside(name, "The key's file")
    require(path.suffix == ".key", "The key's file", "end in .key", name)
    return write_key(path, SigningKey(os.urandom(32))).fingerprint


def _plan(study: str, root: str) -> tuple[Path, Plan]:
    path = Folder(Path(root)).existing(study, "The study file")
    text = read_file(path).decode("utf-8-sig")
    return path, planned_study(read(text, str(path.parent), root))[0].plan
