"""Answers about what is on the disk: ledgers, certificates and released models."""

import os
from pathlib import Path
from typing import Any

from fedveil.certificate.assumptions import Assumption, assumptions
from fedveil.certificate.certify import certify_written
from fedveil.certificate.stage_words import SEES
from fedveil.core.errors import CannotCertify, require
from fedveil.core.files import PUBLIC, read_file, write_atomically
from fedveil.core.importing import allowed_now
from fedveil.engine.ending import written_metrics
from fedveil.jobs.forget import plan_forgetting, row_numbers, study_of
from fedveil.ledger.books import Ledger
from fedveil.ledger.costs import charged
from fedveil.ledger.odometer import ObserverRow, observers, runs_of
from fedveil.ledger.place import default_place
from fedveil.models.metrics import no_better
from fedveil.planning.forget_design import begins_with, notes_of
from fedveil.planning.plan import Plan, why_not_forgotten, write_plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.privacy.guarantee import finite_or_none
from fedveil.release.model import load_model
from fedveil.release.predicting import predict_file
from fedveil.signing import FILE, Signature, SigningKey, check_signature, read_key, write_key
from fedveil.studio.approval import approval_file, read_approval
from fedveil.studio.edit import tables_in
from fedveil.studio.places import Folder, check_paths
from fedveil.studio.questions import planned_study, read
from fedveil.version import __version__

# The ledger of a study's data: what was spent, by which runs, and what is left. Runs in a worker.


def books(study: str, root: str) -> dict[str, Any]:
    """Return the ledger of the data that a study names; ``where`` is None if each run keeps one of its own."""
    path = Folder(Path(root)).existing(study, "The study file")
    wanted = read(read_file(path).decode("utf-8-sig"), str(path.parent), root)
    place = wanted.books.ledger or default_place(wanted)
    stated = [{"adversary": who, "epsilon": epsilon, "delta": delta} for who, epsilon, delta in wanted.books.caps]
    if place is None or not place.exists():
        return {"where": None if place is None else str(place), "runs": [], "observers": [], "caps": stated}
    with Ledger.look(place) as ledger:
        entries, caps = ledger.entries(), ledger.caps()
    rows = observers(charged(entries), caps)
    return {
        "where": str(place),
        "runs": [
            {"study": run.study or "–", "at": (run.at or "–")[:16], "ended": run.ended, "cost": _cost(run.costs)}
            for run in runs_of(entries)
        ],
        "observers": [_row(row) for row in rows],
        "caps": stated,
    }


def _cost(costs: Any) -> float | None:
    epsilon = next((cost.epsilon for cost in costs if cost.adversary == "final-model"), None)
    return finite_or_none(epsilon)


def _row(row: ObserverRow) -> dict[str, Any]:
    left = row.left
    return {
        "adversary": row.question[0],
        "unit": row.question[1],
        "neighbours": row.question[2],
        "spent": finite_or_none(row.added.epsilon),
        "delta": row.added.delta,
        "cap": None if left is None else left.cap.epsilon,
        "share": None if left is None else left.share,
        "more": None if left is None else left.more,
    }


# What an officer reads and signs: the certificate as it will be, and the finished one. Runs in a worker.


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


# A finished run: what it is certified for, how well it does, predictions and the card. Runs in a worker.


def finished_run(out: str, root: str) -> dict[str, Any]:
    """Return a finished run, with its certificate recomputed from its records."""
    folder = Folder(Path(root)).existing(out, "The run")
    certificate, changes = certify_written(folder, __version__)
    signature = None if changes else check_signature(folder, certificate.text().encode())
    metrics, plan = written_metrics(folder), certificate.plan
    test = metrics.get("test") or {}
    return {
        "name": plan.name,
        "plan": plan.hash,
        "private": certificate.private,
        "exposed": plan.exposed_by,
        "warnings": list(plan.warnings),
        "changes": changes,
        "signer": None if signature is None else signature.signer.fingerprint,
        "target": {"epsilon": plan.target.epsilon, "delta": plan.target.delta, "adversary": plan.target.adversary},
        "observers": [
            {
                "adversary": one.adversary,
                "sees": SEES[one.adversary],
                "epsilon": None if plan.voided else finite_or_none(one.answer.epsilon),
                "by": one.answer.certified_by,
            }
            for one in certificate.guarantees
        ],
        "quality": [[key, test[key]] for key in ("accuracy", "auc", "r2", "mae", "rmse") if test.get(key) is not None],
        "records": test.get("records"),
        "useless": no_better(test) if test else None,
        "unforgettable": why_not_forgotten(plan),
    }


def predict(out: str, data: str, file: str, probabilities: bool, root: str) -> dict[str, Any]:
    """Predict the records of an uploaded file, whose path the studio chose, into a new file."""
    folder = Folder(Path(root))
    model = load_model(folder.existing(out, "The run"))
    target = folder.inside(file, "The predictions")
    written = predict_file(model, data, target, with_probabilities=probabilities)
    return {"file": file, "model": repr(model), **written.as_json()}


def to_forget(out: str, rows: str, client: str, epsilon: float, root: str) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a run, and who leaves it, as :func:`fedveil.forget` takes them.

    Its study must lie in the working folder too, with all that it names.
    """
    folder = Folder(Path(root), tuple(sorted(allowed_now().names)))
    run = folder.existing(out, "The run")
    study = study_of(run)
    require(folder.holds(study) and study.is_file(), "The run's study", "be in the working folder", study.name)
    check_paths(tables_in(read_file(study).decode("utf-8-sig")), study.parent, folder)
    who = {"rows": row_numbers(rows)} if rows else {"client": client}
    return run, {**who, "epsilon": epsilon, "study": study}


def forgetting(out: str, rows: str, client: str, epsilon: float, root: str) -> dict[str, Any]:
    """Return what forgetting takes and costs, and how epsilon falls; nothing is charged."""
    from fedveil.report.receipt import curve_of, curve_points  # drawing is slow to import

    run, who = to_forget(out, rows, client, epsilon, root)
    design = plan_forgetting(run, **who)
    options = [
        {
            "chosen": one is design.chosen,
            "rounds": one.rounds,
            "begins": begins_with(one),
            "epsilon": finite_or_none(one.epsilon),
            "others": finite_or_none(one.others),
            "quality": one.quality,
        }
        for one in design.options
    ]
    again = {
        "rounds": design.retraining_rounds,
        "others": finite_or_none(design.retraining_epsilon),
        "quality": design.retraining_quality,
    }
    curve = curve_of(curve_points(design.chosen.plan))
    return {"options": options, "again": again, "curve": curve or "", "notes": notes_of(design)}


def card(out: str, root: str) -> list[str]:
    """Write the model card of a run whose certificate matches its records; return its files."""
    from fedveil.report.regulator.about import About  # drawing is slow to import
    from fedveil.report.regulator.document import write_card
    from fedveil.report.view import view_of

    folder = Folder(Path(root)).existing(out, "The run")
    _, changes = certify_written(folder, __version__)
    if changes:
        raise CannotCertify(f"The certificate in {out} does not match the run's records: {'; '.join(changes)}.")
    return [path.name for path in write_card(view_of(folder), About(), folder)]
