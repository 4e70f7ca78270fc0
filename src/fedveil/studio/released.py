"""A finished run: what it is certified for, how well it does, predictions and the card. Runs in a worker."""

from pathlib import Path
from typing import Any

from fedveil.certificate.certify import certify_written
from fedveil.certificate.stage_words import SEES
from fedveil.core.errors import CannotCertify
from fedveil.engine.ending import written_metrics
from fedveil.models.metrics import no_better
from fedveil.privacy.guarantee import finite_or_none
from fedveil.release.model import load_model
from fedveil.release.predicting import predict_file
from fedveil.signing.signature import check_signature
from fedveil.studio.places import Folder
from fedveil.version import __version__


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
    }


def predict(out: str, data: str, file: str, probabilities: bool, root: str) -> dict[str, Any]:
    """Predict the records of an uploaded file, whose path the studio chose, into a new file."""
    folder = Folder(Path(root))
    model = load_model(folder.existing(out, "The run"))
    target = folder.inside(file, "The predictions")
    written = predict_file(model, data, target, with_probabilities=probabilities)
    return {"file": file, "model": repr(model), **written.as_json()}


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
