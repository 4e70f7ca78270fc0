"""The main job: a study in, a trained model, its certificate and its report out.

>>> from fedveil import run_study
>>> result = run_study("study.toml", out="results")  # doctest: +SKIP
>>> result.certificate.guarantees[0].answer.epsilon  # doctest: +SKIP
1.0
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.certificate.certify import Certificate, certify
from fedveil.core.errors import BadValue, require
from fedveil.core.importing import Allowed, allowed_now, give
from fedveil.core.limits import check_cells
from fedveil.core.tables import table
from fedveil.data.frames import columns_of_frame
from fedveil.data.load import Loaded, given_apart, load
from fedveil.data.records import Records
from fedveil.data.row_rule import RowRule
from fedveil.data.spec import HeldOut
from fedveil.engine.ending import check_unfinished
from fedveil.engine.files import PUBLIC, sole_use, write_atomically
from fedveil.engine.job import PLAN
from fedveil.engine.study import conduct_study, planned_for
from fedveil.engine.system import Progress, System
from fedveil.jobs.generated import with_drawn_rows
from fedveil.jobs.personal import personal_models
from fedveil.planning.design import Planned
from fedveil.planning.plan import read_plan
from fedveil.planning.study import Study, read_study, study_of, tables_of
from fedveil.release.bundle import FILE as BUNDLE
from fedveil.release.bundle import Bundle
from fedveil.release.model import ReleasedModel
from fedveil.release.personal import FILE as PERSONAL
from fedveil.release.tracking import log_to_mlflow
from fedveil.signing import FILE as SIGNATURE
from fedveil.signing import Signature, SigningKey, check_signature, read_key, signature_in
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.prepare.loading import Unprepared, open_columns
from fedveil.stages.sums import FILE as LEARNED
from fedveil.version import __version__

LABEL = "label"  # the column of what is to be predicted


def is_dataset(data: Any) -> bool:
    """Return whether this is a data set of PyTorch."""
    kinds = type(data).__mro__
    return any(kind.__name__ == "Dataset" and kind.__module__.startswith("torch.utils.data") for kind in kinds)


def dataset_columns(dataset: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a data set: "0", "1", ... for the entries of its arrays, flattened, and ``label``."""
    counted = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    hint = "The plan states how many records there are."
    require(counted, "The data set", "have a length and items", type(dataset).__name__, hint)
    count = len(dataset)
    require(count >= 1, "The data set", "have at least one record", count)
    rows, labels = None, []
    for place in range(count):
        entries, label = _pair(dataset[place], place)
        if rows is None:
            check_cells("The data set", count, entries.size)
            rows = np.empty((count, entries.size), dtype=entries.dtype)
        require(entries.size == rows.shape[1], f"Record {place}", f"have {rows.shape[1]} numbers", entries.size)
        rows[place] = entries
        labels.append(label)
    assert rows is not None  # noqa: S101  for the type checker
    columns: dict[str, NDArray[Any]] = {str(place): column for place, column in enumerate(rows.T)}
    return {**columns, LABEL: np.array(labels)}


def _pair(item: Any, place: int) -> tuple[NDArray[Any], Any]:
    """Return the numbers and the label of one item."""
    pair = isinstance(item, list | tuple) and len(item) == 2
    require(pair, f"Record {place}", "be a pair of an array and a label", type(item).__name__)
    try:
        entries, label = np.asarray(item[0]).reshape(-1), np.asarray(item[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadValue(f"Record {place} must hold numbers: {error}.") from error
    require(entries.dtype.kind in "biuf", f"Record {place}", "hold numbers", str(entries.dtype))
    one = label.size == 1 and label.dtype.kind in "biufU"
    require(one, f"Record {place}", "have one label", (label.shape, str(label.dtype)))
    return entries, label.reshape(()).item()


@dataclass(frozen=True, slots=True)
class ReadTables:
    """The tables of a study, the folder that its relative paths start from, and its name."""

    tables: Mapping[str, Any]
    base: Path
    name: str


Wanted = Study | str | Path | Mapping[str, Any] | ReadTables
Sign = SigningKey | str | Path | None
ENDS = ("certificate.json", BUNDLE, "report.html")  # what follows the release of a model, in this order
STUDY = "study"  # in the private folder: the path of the study file
AS_OF = "as_of"  # likewise: the day by which its expired records were left out
FRAME = "frame"  # what the rows of a frame are called in messages
Function = Callable[..., Any] | None
Given = Records | tuple[Records, Records] | Any  # Any: a frame of pandas or polars, a table of Arrow, named columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The files of a finished run, read back; ``signature``: of its certificate, or None.

    ``allowed``: the code that the run was allowed to import, and its model is.

    Example::

        result = fedveil.run_study("study.toml", out="results")
        labels = result.model.predict(frame)
        result.log_to_mlflow("churn")
    """

    folder: Path
    certificate: Certificate
    metrics: dict[str, Any]
    signature: Signature | None = None
    allowed: Allowed = field(default_factory=allowed_now)

    @property
    def model(self) -> ReleasedModel:
        """The released model, ready to predict."""
        return ReleasedModel(Bundle.read(self.folder), self.allowed)

    def log_to_mlflow(self, experiment: str, tracking: str | None = None) -> str:
        """Log what the run released to an experiment of MLflow, and return the identifier of the MLflow run."""
        return log_to_mlflow(self.folder, experiment, tracking)

    def forget(self, out: str | Path, **request: Any) -> "Result":
        """Go on without some records or a client, as :func:`fedveil.forget` with this run's folder."""
        from fedveil.jobs.forget import forget  # it is built on this module

        return forget(self.folder, out=out, **request)

    def _repr_html_(self) -> str:
        """Return certificate, quality and model for a notebook."""
        test = self.metrics.get("test") or self.metrics.get("evaluation") or {}
        keys = ("accuracy", "auc", "r2", "mae", "concordance")
        scores = ", ".join(f"{key} {test[key]:.3g}" for key in keys if isinstance(test.get(key), int | float))
        measured = f"<p>Quality: {scores}</p>" if scores else "<p>Quality: no records were held out</p>"
        return f"{self.certificate._repr_html_()}{measured}{self.model._repr_html_()}"


def open_study(study: Wanted, data: Given = None) -> tuple[Study, Loaded]:
    """The study and its records: from a file, from tables (as in a file), with records of its own or given ones.

    A study that leaves its preparation to be learned has no records before it is charged, and is refused here.
    """
    found, loaded = open_any_study(study, data)
    if isinstance(loaded, Unprepared):
        raise BadValue(
            "The study must state here how its columns become rows (data.feature_bound, and ranges and categories), "
            "since this cannot learn it: its preparation is private."
        )
    refuse_evaluation(found)
    return found, loaded


def refuse_evaluation(study: Study) -> None:
    """Refuse a private evaluation, in jobs that have no place for it."""
    hint = "It trains models that are measured without noise, or not at all."
    require(not study.evaluation.private, "[evaluation]", "be left out here", "a private evaluation", hint)


def open_any_study(study: Wanted, data: Given = None) -> tuple[Study, Loaded | Unprepared]:
    """The same, with columns in place of records where the preparation is to be learned."""
    if data is not None and not isinstance(data, Records) and not _records_pair(data):
        study, data = _framed(study, data), None
    if isinstance(study, Study):
        found = study
    elif isinstance(study, str | Path):
        found = read_study(Path(study))
    else:
        read = read_given(study)
        found = study_of(read.tables, base=read.base, name=read.name, data_given=data is not None)
    if data is not None:
        hint = 'Programs that bring records of their own state their rule: prepare.kind = "stated".'
        free = found.prepare is None or found.prepare.kind == "stated"
        require(free, "[prepare]", "be left out where the study names no data", found.prepare, hint)
        hint = "Give a frame, whose person_column [data] names."
        require(
            found.target.unit != "person", "privacy.unit", "not be person for records without names", "person", hint
        )
        train, test = data if isinstance(data, tuple) else (data, None)
        known = train.preparation
        if known is not None:
            found = replace(found, data=replace(found.data, feature_map=known.feature_map))
        return found, Loaded(
            train=train,
            test=test,
            test_public=test is not None and found.data.public,
            dropped_rows=0,
            feature_names=() if known is None else known.features,
            raw=train.raw,
            preparation=known,
            apart=None if test is None else given_apart(train, test),
        )
    found = with_drawn_rows(found)
    require(found.source is not None, "data", "be given when the study names no source", None)
    assert found.source is not None  # noqa: S101  for the type checker
    whole = found.target.unit == "client"
    draw = np.random.default_rng
    if found.prepare is not None:
        return found, open_columns(
            found.source,
            found.data.split,
            found.data.held_out,
            found.prepare,
            base=found.base,
            generator=draw,
            whole_clients=whole,
        )
    return found, load(
        found.source, found.data.split, found.data.held_out, base=found.base, generator=draw, whole_clients=whole
    )


def _records_pair(data: Any) -> bool:
    """Whether these are records to train on and records to measure on."""
    return isinstance(data, tuple) and not all(is_dataset(part) for part in data)


def _framed(study: Wanted, data: Any) -> Study:
    """A study whose rows are those of a frame, which its [data] table describes as it would describe a file.

    A data set of PyTorch is such a frame; of a pair of them, the second is held out, and as public as the first.
    """
    data, test = data if isinstance(data, tuple) else (data, None)
    hint = "Give the study as tables or as a file; its [data] names no source."
    if isinstance(study, Study):
        raise BadValue(f"A frame must come with a study that is still to be read. {hint}")
    read = read_given(study)
    tables = dict(read.tables)
    stated = dict(table(tables.get("data", {}), "data"))
    require("source" not in stated, "data.source", "be left out when a frame is given", stated.get("source"))
    if is_dataset(data):
        columns = columns_of_frame(dataset_columns(data))
        stated.setdefault("target", LABEL)
    else:
        columns = columns_of_frame(data)
    require(len(columns) >= 2, "The frame", "have at least two columns, one of them to predict", list(columns))
    found = study_of({**tables, "data": {**stated, "source": FRAME}}, base=read.base, name=read.name)
    assert found.source is not None  # noqa: S101  for the type checker
    source = replace(found.source, frame=columns)
    if test is None:
        return replace(found, data=replace(found.data, source=source))
    free = found.data.held_out is None
    require(free, "[data.held_out]", "be left out when a second data set is given", "both", "It is held out.")
    held_out = HeldOut(source=replace(source, frame=columns_of_frame(dataset_columns(test))), public=source.public)
    return replace(found, data=replace(found.data, source=source, held_out=held_out))


def with_functions(study: Wanted, module: Function = None, feature_map: Function = None) -> Wanted:
    """A study with what a program gives as functions: the maker of its torch module, and its feature map."""
    given = {("model", "module"): module, ("data", "feature_map"): feature_map}
    if all(function is None for function in given.values()):
        return study
    if isinstance(study, Study):
        raise BadValue("A function must come with a study that is still to be read: give its tables or its file.")
    read = read_given(study)
    tables = dict(read.tables)
    for (name, key), function in given.items():
        if function is not None:
            tables[name] = with_function(table(tables.get(name, {}), name), name, key, function)
    return replace(read, tables=tables)


def with_function(own: Mapping[str, Any], name: str, key: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The table ``name`` of a study with a function under ``key``, which must not name another one."""
    require(key not in own, f"{name}.{key}", "be left out when the function itself is given", own.get(key))
    return {**own, key: give(function)}


def read_given(study: "str | Path | Mapping[str, Any] | ReadTables") -> "ReadTables":
    """The tables of a study that is not checked yet, with where they come from."""
    if isinstance(study, ReadTables):
        return study
    if isinstance(study, str | Path):
        return ReadTables(tables_of(Path(study)), Path(study).parent, Path(study).stem)
    return ReadTables(study, Path(), "study")


def plan_study(study: Wanted, data: Given = None, *, module: Function = None, feature_map: Function = None) -> Planned:
    """Return the plan of a study, without training; functions are given as to :func:`run_study`.

    Example::

        planned = fedveil.plan_study("study.toml")  # trains nothing, charges nothing
        print(planned.draft.reason)
    """
    found, loaded = open_any_study(with_functions(study, module, feature_map), data)
    return planned_for(found, loaded)


def run_study(
    study: Wanted,
    out: str | Path,
    *,
    data: Given = None,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    system: System | None = None,
    sign: Sign = None,
    module: Function = None,
    feature_map: Function = None,
) -> Result:
    """Train, certify and report into the folder ``out``; ``resume`` continues a run that was interrupted there.

    Resuming begins a run that never began, and raises ``AlreadyFinished`` if nothing is left to do.

    ``study``: the path of a study file, or its tables as a dictionary. ``data``: a frame of pandas or polars (the
    study's [data] then names no source), records made from arrays, or a pair of training and test records (both of them
    public if [data] says so, otherwise none), or data sets of PyTorch likewise. ``sign``: a key, or the path of its
    file, that signs the certificate. ``module`` and ``feature_map``: functions in place of the names that [model] and
    [data] would state for them (:func:`fedveil.give` makes names of them).

    Example::

        result = fedveil.run_study("study.toml", out="results")
        print(result.certificate.guarantees[0].answer.epsilon)
        labels = result.model.predict(frame)  # a frame with the study's columns, with or without labels
    """
    study = with_functions(study, module, feature_map)
    return _carried_out(study, Path(out), data, resume, watch, system or System(), sign, _check_run)


def tune_study(
    study: Wanted,
    out: str | Path,
    *,
    data: Given = None,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    system: System | None = None,
    sign: Sign = None,
) -> Result:
    """Search over the study's [tune] table and release the best model only, into the folder ``out``.

    As :func:`run_study`; ``watch`` is told of trials in place of rounds. The whole search is one plan, charged once
    before the first trial, and has one certificate.

    Example::

        result = fedveil.tune_study("study.toml", out="results")  # the study has a [tune] table
        print(result.certificate.guarantees[0].answer.epsilon)  # of the whole search
    """
    return _carried_out(study, Path(out), data, resume, watch, system or System(), sign, _check_tuned)


def _check_run(study: Study) -> None:
    hint = "Tune it with: fedveil tune, or tune_study."
    require(not study.tune, "The study", "have no [tune] table to be run", study.name, hint)


def _check_tuned(study: Study) -> None:
    hint = 'For example [tune.space] with "model.l2" = [0.0, 0.01]; see docs/tuning.md.'
    require(study.tune, "The study", "have a [tune] table to be tuned", study.name, hint)


def _carried_out(
    study: Wanted,
    folder: Path,
    data: Given,
    resume: bool,
    watch: Callable[[Progress], None] | None,
    system: System,
    sign: Sign,
    check: Callable[[Study], None],
) -> Result:
    """Do the whole job for a study that ``check`` accepts: read, train, certify and report."""
    key = signing_key(sign)  # first: a key that cannot be used is found before anything is charged
    if resume:
        check_unfinished(folder, ends_of(folder))
    system.tell("reading the data")
    found, loaded = open_any_study(study, data)
    check(found)
    if found.canaries:
        from fedveil.audit.one_run import forecast  # loaded only where there are canaries

        system.tell(forecast(found.canaries, len(loaded.train), found.target.epsilon, found.target.delta))
    metrics = conduct_study(found, loaded, folder, resume=resume, watch=watch, system=system)
    system.tell("certifying, and writing the report")
    rule = _learned_rule(folder, loaded) if isinstance(loaded, Unprepared) else loaded.preparation
    with sole_use(folder / "private"):
        remember_study(study, folder, found)
        result = conclude(folder, metrics, key, rule)
        if found.personal:
            personal_models(folder, records_of(folder, loaded))
    return result


def remember_study(study: Wanted, folder: Path, read: Study | None = None) -> None:
    """Note the path of the study file, by which later requests about this run find its data, and the day it states.

    ``read``: what the file states of data, where this process has them.
    """
    if isinstance(study, str | Path):
        write_atomically(folder / "private" / STUDY, f"{Path(study).absolute()}\n".encode())
    if read is not None and read.source is not None and read.source.as_of is not None:
        write_atomically(folder / "private" / AS_OF, f"{read.source.as_of}\n".encode())


def ends_of(folder: Path) -> tuple[str, ...]:
    """Return the files that a run writes after its release, its parties' own models among them."""
    path = folder / PLAN
    personal = path.exists() and bool(read_plan(path.read_text(encoding="utf-8")).personal)
    return (*ENDS, f"private/{PERSONAL}") if personal else ENDS


def records_of(folder: Path, loaded: Loaded | Unprepared) -> Loaded:
    """The records as rows, also where the rule for them was learned by the run."""
    if isinstance(loaded, Loaded):
        return loaded
    return loaded.loaded(LearnedRule.read((folder / LEARNED).read_bytes()))


def _learned_rule(folder: Path, found: Unprepared) -> RowRule | None:
    """What the run learned, as it was written beside the model."""
    return found.rule(LearnedRule.read((folder / LEARNED).read_bytes()))


def signing_key(sign: Sign) -> SigningKey | None:
    """Return the signing key; read it if a path was given."""
    return read_key(Path(sign)) if isinstance(sign, str | Path) else sign


def conclude(
    folder: Path, metrics: dict[str, Any], key: SigningKey | None = None, preparation: RowRule | None = None
) -> Result:
    """Write certificate, signature (if there is a key), bundle and report of a run that has released its model."""
    certificate = certify(folder, __version__)
    data = certificate.text().encode()
    if key is None:
        check_signature(folder, data)  # a signature made before an interruption is kept, and must still fit
    write_atomically(folder / "certificate.json", data, mode=PUBLIC)
    if key is not None:
        write_atomically(folder / SIGNATURE, Signature.of(data, key).text(), mode=PUBLIC)
    write_atomically(folder / BUNDLE, Bundle.of_run(folder, preparation).write(), mode=PUBLIC)
    from fedveil.report.page import write_report  # imported here because drawing is slow to import

    write_report(folder)
    return Result(folder=folder, certificate=certificate, metrics=metrics, signature=signature_in(folder))
