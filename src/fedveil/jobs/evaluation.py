"""Measure a released model on other records: privately, charged to their own ledger, or exactly on public ones.

>>> from fedveil.jobs.evaluation import evaluate_model
>>> evaluate_model("results", "new.csv", epsilon=0.5, out="measured").metrics["auc"]  # doctest: +SKIP
0.87
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.certificate.evaluation import EvaluationCertificate, certify_evaluation
from fedveil.core.checks import require
from fedveil.core.strict_json import read_object
from fedveil.core.tables import filled
from fedveil.data.spec import PLACES
from fedveil.engine.alone import Job, conduct_alone
from fedveil.engine.ending import check_unfinished
from fedveil.engine.evaluating import ModelEvaluator
from fedveil.engine.files import PUBLIC, sole_use, write_atomically
from fedveil.engine.measure import measured_exactly, plain
from fedveil.engine.system import System
from fedveil.jobs.draft.study import usual_delta
from fedveil.jobs.own_model.labelled import Labelled, labelled_records
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import Books
from fedveil.privacy.target import Target
from fedveil.release.model import ReleasedModel, load_model
from fedveil.stages.evaluate.budget import evaluation_plan
from fedveil.stages.evaluate.plan import FILE, EvaluationPlan
from fedveil.stages.measuring import Measurer
from fedveil.version import __version__

ENDS = ("certificate.json",)  # what follows the release of an evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The metrics; ``certificate`` and ``folder``: of a private evaluation, None where the records are public."""

    metrics: dict[str, Any]
    certificate: EvaluationCertificate | None = None
    folder: Path | None = None


def evaluate_model(
    model: str | Path | ReleasedModel,
    data: str | Path,
    *,
    epsilon: float,
    out: str | Path,
    delta: float | None = None,
    unit: str = "record",
    neighbours: str = "replace-one",
    client_column: str | None = None,
    query: str | None = None,
    ledger: Path | None = None,
    resume: bool = False,
    system: System | None = None,
) -> Evaluated:
    """Count with noise how good the model is on the records of ``data``, into the folder ``out``, and certify it.

    The whole epsilon is spent on the counts, and charged in the books beside the data, or in ``ledger``. ``delta``:
    if left out, a power of ten below one over the records. ``unit``: with "client", ``client_column`` names them.
    """
    if resume:
        check_unfinished(Path(out), ENDS)
    loaded = _loaded(model)
    _check_private(loaded, unit, client_column)
    labelled = labelled_records(loaded, str(data), client_column, query)
    records = labelled.records
    given = {"epsilon": epsilon, "unit": unit, "neighbours": neighbours}
    given["delta"] = usual_delta(len(records)) if delta is None else delta
    target: Target = filled(Target, given, "privacy")
    digest = hashlib.sha256(loaded.bundle.files["model.npz"]).hexdigest()
    places = None if client_column is None else PLACES["column"]
    plan = evaluation_plan(f"evaluation of {loaded.plan.name}", digest, records.shape, target, places)
    job = Job(
        what="evaluation",
        file=FILE,
        plan=plan,
        source=labelled.source,
        base=Path(),
        books=Books(ledger=ledger),
        fingerprint=labelled.raw.fingerprint,
    )
    folder = Path(out)
    content = conduct_alone(job, folder, _counting(loaded, plan, labelled), resume=resume, system=system or System())
    with sole_use(folder / "private"):
        certificate = certify_evaluation(folder, __version__)
        write_atomically(folder / "certificate.json", certificate.text().encode(), mode=PUBLIC)
    return Evaluated(metrics=read_object(content, FILE), certificate=certificate, folder=folder)


def _counting(loaded: ReleasedModel, plan: EvaluationPlan, labelled: Labelled) -> Callable[[Entropy], bytes]:
    """Return the function that counts with noise, and returns the metrics as JSON."""
    records = labelled.records
    by = ModelEvaluator(
        loss=loaded.loss,
        model=loaded.parameters_now(records.features.shape[1]),
        planned=plan.evaluation,
        data=plan.data,
        unit=plan.target.unit,
    )

    def measure(entropy: Entropy) -> bytes:
        adder = Measurer(
            owner=records.owner,
            clients=records.clients,
            present=np.flatnonzero(~records.blank).astype(np.int64),
            target=plan.target,
            entropy=entropy,
        )
        with loaded.allowed.granted():
            told = {"format": 1, "model": plan.model, **by.counted(records, adder, labelled.labels)}
        return (json.dumps(plain(told), indent=1, allow_nan=False) + "\n").encode()

    return measure


def evaluate_publicly(
    model: str | Path | ReleasedModel, data: str | Path, *, client_column: str | None = None, query: str | None = None
) -> Evaluated:
    """Measure the model exactly on records that are public: nothing is charged, and no noise is added."""
    loaded = _loaded(model)
    labelled = labelled_records(loaded, str(data), client_column, query)
    return Evaluated(metrics=_exact(loaded, labelled, by_client=client_column is not None))


def _exact(model: ReleasedModel, labelled: Labelled, *, by_client: bool) -> dict[str, Any]:
    _ = model.loss  # a torch model's code is run only where it is allowed
    held = labelled.records.present()
    if not by_client:  # no metrics of single records
        held = replace(held, owner=np.zeros(len(held), dtype=np.int64), clients=1, names=())
    parameters = model.parameters_now(held.features.shape[1])
    with model.allowed.granted():
        told = measured_exactly(model.plan, parameters, held, labelled.labels)
    return {"public": True, "records": len(labelled.records), **told}


def _loaded(model: str | Path | ReleasedModel) -> ReleasedModel:
    found = model if isinstance(model, ReleasedModel) else load_model(model)
    hint = "Its threshold may be its owner's alone: evaluate the shared model."
    require(found.bundle.personal is None, "The model", "be the shared one", "a party's own", hint)
    return found


def _check_private(model: ReleasedModel, unit: str, client_column: str | None) -> None:
    named = unit != "client" or client_column is not None
    require(named, "--client-column", "be given where clients are protected", client_column)
    hint = "Evaluate it on public records, with --public."
    require(not model.survival, "A private evaluation", "be of a model of classes or of a number", "survival", hint)
    stated, hint = model.plan.model.decision_threshold, "Counts tell classes apart where their scores are equal."
    require(stated is None, "The model", "have no decision threshold to be evaluated privately", stated, hint)
