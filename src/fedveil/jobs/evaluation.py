"""Measure a released model on other records: privately, charged to their own ledger, or exactly on public ones.

>>> from fedveil.jobs.evaluation import evaluate_model
>>> evaluate_model("results", "new.csv", epsilon=0.5, out="measured").metrics["auc"]  # doctest: +SKIP
0.87
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.certificate.certify import MeasuredCertificate, certify_measured
from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object
from fedveil.core.tables import filled
from fedveil.data.fingerprint import RawRows
from fedveil.data.load import targets_of
from fedveil.data.missing import settle_labels, without_client
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels, RowRule
from fedveil.data.sources import SUFFIXES, read
from fedveil.data.spec import PLACES, Source
from fedveil.data.split import natural_owners
from fedveil.data.typed import cells_of
from fedveil.engine.ending import check_unfinished
from fedveil.engine.files import PUBLIC, sole_use, write_atomically
from fedveil.engine.measure import measured_exactly, to_json_value
from fedveil.engine.measured import Measuring, Place, Program, conduct_measured
from fedveil.engine.run import Rows
from fedveil.engine.system import System
from fedveil.jobs.draft.study import usual_delta
from fedveil.planning.study import Books
from fedveil.privacy.target import Target
from fedveil.release.model import ReleasedModel, load_model
from fedveil.stages.evaluate.budget import FILE, evaluation_plan
from fedveil.stages.evaluate.evaluator import ModelEvaluator
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.measuring import Measures
from fedveil.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelled:
    """Records as rows (blank where a value is missing that nothing stands for), their source and its fingerprint."""

    records: Records
    source: Source
    raw: RawRows
    labels: Labels


def labelled_records(model: ReleasedModel, data: str, client_column: str | None, query: str | None) -> Labelled:
    """Read the records of ``data``; without a client column every record has an owner of its own."""
    known = model.preparation
    if known is None or known.labels.name is None:
        raise BadValue(
            "The model must name the column that it predicts, and it does not, since its records came prepared: "
            "evaluate it in Python, or train it from a source."
        )
    table, source = read(_source(known, data, client_column, query), Path())
    cells = {name: cells_of(table.column(name)) for name in table.choice.features}
    rows, dropped = model.rows(cells, table.place)
    settle_labels(table, source, dropped)
    hint = "Every record lacks a label, or a value that nothing stands for."
    require(not dropped.all(), data, "hold a record that can be evaluated", "none", hint)
    targets, classes = targets_of(table, source, dropped)
    rows[dropped] = 0.0
    there = ~without_client(table, source) if client_column is not None else np.ones(len(table), dtype=np.bool_)
    owner, names = np.arange(int(there.sum()), dtype=np.int64), tuple[str, ...]()
    if client_column is not None:
        owner, names = natural_owners(table.texts(client_column).rows(there))
    return Labelled(
        records=Records(
            features=np.ascontiguousarray(rows[there]),
            targets=targets[there],
            owner=owner,
            clients=len(names) or owner.size,
            bound=known.total_bound,
            classes=classes,
            names=names,
        ),
        source=source,
        raw=table.raw,
        labels=known.labels,
    )


def _source(known: RowRule, data: str, client_column: str | None, query: str | None) -> Source:
    """Return the source that states of new data what the model knows: its columns, its labels and how to read them."""
    labels, reading = known.labels, dict(known.reading)
    told = Path(data.removesuffix(".gz")).suffix in SUFFIXES
    if told:  # new data may come in another format than the training data, if its name tells which
        reading.pop("format", None)
    there = Source.of(source=data, feature_bound=1.0, label_above=0.0, query=query).database or data.startswith(
        "sklearn:"
    )
    require(there or Path(data).exists(), "DATA", "be a file or folder, a database's address, or sklearn:NAME", data)
    asked: dict[str, object] = {"target_scale": labels.span}
    if labels.above is not None:
        asked = {"label_above": labels.above}
    elif labels.ends:
        asked = {"event": labels.event, "intervals": labels.ends}
    elif labels.classes:
        asked = {"classes": len(labels.classes) if labels.numbered else labels.classes}
    return Source.of(
        source=data,
        feature_bound=1.0,
        target=labels.name,
        columns=known.names,
        categories={one.name: one.categories for one in known.columns if one.categories},
        missing=known.missing,
        default_fill="drop-row",  # of labels; what features do without a value, the model knows
        client_column=client_column,
        query=query,
        **asked,
        **reading,
    )


ENDS = ("certificate.json",)  # what follows the release of an evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The metrics; ``certificate`` and ``folder``: of a private evaluation, None where the records are public."""

    metrics: dict[str, Any]
    certificate: MeasuredCertificate | None = None
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
    measuring = Measuring(
        plan=plan,
        program=_counting(loaded, plan, labelled),
        rows=Rows.of(records),
        place=Place(source=labelled.source, base=Path(), books=Books(ledger=ledger)),
        fingerprint=labelled.raw.fingerprint,
        cells=labelled.raw.fingerprint,
    )
    folder = Path(out)
    content = conduct_measured(measuring, folder, resume=resume, system=system or System())
    with sole_use(folder / "private"):
        certificate = certify_measured(folder, __version__)
        write_atomically(folder / "certificate.json", certificate.text().encode(), mode=PUBLIC)
    return Evaluated(metrics=read_object(content, FILE), certificate=certificate, folder=folder)


def _counting(loaded: ReleasedModel, plan: MeasuredPlan, labelled: Labelled) -> Program:
    """Return the program that counts with noise, and returns the metrics as JSON."""
    records = labelled.records
    evaluator = ModelEvaluator(
        loss=loaded.loss,
        model=loaded.parameters_now(records.features.shape[1]),
        planned=plan.evaluation,
        data=plan.data,
        unit=plan.target.unit,
    )

    def program(by: Measures) -> bytes:
        with loaded.allowed.granted():
            told = {"format": 1, **plan.stated, **evaluator.counted(records, by, labelled.labels)}
        return (json.dumps(to_json_value(told), indent=1, allow_nan=False) + "\n").encode()

    return program


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
    result = model if isinstance(model, ReleasedModel) else load_model(model)
    hint = "Its threshold may be its owner's alone: evaluate the shared model."
    require(result.bundle.personal is None, "The model", "be the shared one", "a party's own", hint)
    return result


def _check_private(model: ReleasedModel, unit: str, client_column: str | None) -> None:
    named = unit != "client" or client_column is not None
    require(named, "--client-column", "be given where clients are protected", client_column)
    hint = "Evaluate it on public records, with --public."
    require(not model.survival, "A private evaluation", "be of a model of classes or of a number", "survival", hint)
    stated, hint = model.plan.model.decision_threshold, "Counts tell classes apart where their scores are equal."
    require(stated is None, "The model", "have no decision threshold to be evaluated privately", stated, hint)
