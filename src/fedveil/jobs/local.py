"""The main job: a study in, a trained model, its certificate and its report out.

>>> from fedveil import run_study
>>> result = run_study("study.toml", out="results")  # doctest: +SKIP
>>> result.certificate.guarantees[0].answer.epsilon  # doctest: +SKIP
1.0
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.bundle.bundle import FILE as BUNDLE
from fedveil.bundle.bundle import Bundle
from fedveil.bundle.model import ReleasedModel
from fedveil.certificate.certify import Certificate, certify
from fedveil.checks import require
from fedveil.data.load import Loaded, load
from fedveil.data.preparation import Preparation
from fedveil.data.records import Records
from fedveil.design import Planned
from fedveil.errors import BadValue
from fedveil.prepare.learned import LearnedPreparation
from fedveil.prepare.loading import Unprepared, open_columns
from fedveil.prepare.statement import FILE as LEARNED
from fedveil.run.conduct import Progress, System, conduct
from fedveil.run.files import PUBLIC, write_atomically
from fedveil.run.preparing import planned_columns
from fedveil.signature import FILE as SIGNATURE
from fedveil.signature import Signature, check_signature, signature_in
from fedveil.signing_keys import SigningKey, read_key
from fedveil.study import Study, read_study, study_of
from fedveil.version import __version__

Wanted = Study | str | Path | Mapping[str, Any]
Sign = SigningKey | str | Path | None
Given = Records | tuple[Records, Records] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The files of a finished run, read back; ``signature``: of its certificate, or None."""

    folder: Path
    certificate: Certificate
    metrics: dict[str, Any]
    signature: Signature | None = None

    @property
    def model(self) -> ReleasedModel:
        """The released model, ready to predict."""
        return ReleasedModel(Bundle.read(self.folder), self.certificate.plan.model.module)


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
    return found, loaded


def open_any_study(study: Wanted, data: Given = None) -> tuple[Study, Loaded | Unprepared]:
    """The same, with columns in place of records where the preparation is to be learned."""
    if isinstance(study, Study):
        found = study
    elif isinstance(study, str | Path):
        found = read_study(Path(study))
    else:
        found = study_of(study, base=Path(), data_given=data is not None)
    if data is not None:
        train, test = data if isinstance(data, tuple) else (data, None)
        known = train.preparation
        return found, Loaded(
            train=train,
            test=test,
            test_public=False,
            dropped_rows=0,
            feature_names=() if known is None else known.features,
            raw=train.raw,
            preparation=known,
        )
    require(found.source is not None, "data", "be given when the study names no source", None)
    assert found.source is not None  # noqa: S101  for the type checker
    whole = found.target.unit == "client"
    draw = np.random.default_rng
    if found.prepare is not None:
        return found, open_columns(
            found.source,
            found.split,
            found.held_out,
            found.prepare,
            base=found.base,
            generator=draw,
            whole_clients=whole,
        )
    return found, load(found.source, found.split, found.held_out, base=found.base, generator=draw, whole_clients=whole)


def plan_study(study: Wanted, data: Given = None) -> Planned:
    """Return the plan of a study, without training."""
    found, loaded = open_any_study(study, data)
    held = 0 if loaded.test is None else loaded.test.targets.size
    if isinstance(loaded, Unprepared):
        return planned_columns(found, loaded)
    train = loaded.train if found.slots is None else found.slots.blank(loaded.train)
    return found.planned(train.shape, held, loaded.test_public if held else True)


def run_study(
    study: Wanted,
    out: str | Path,
    *,
    data: Given = None,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    system: System | None = None,
    sign: Sign = None,
) -> Result:
    """Train, certify and report into the folder ``out``; ``resume`` continues a run that was interrupted there.

    ``study``: the path of a study file, or its tables as a dictionary. ``data``: records made from arrays, or a pair of
    training and test records (the test records then count as not public). ``sign``: a key, or the path of its file,
    that signs the certificate.
    """
    key = signing_key(sign)  # first: a key that cannot be used is found before anything is charged
    found, loaded = open_any_study(study, data)
    folder = Path(out)
    metrics = conduct(found, loaded, folder, resume=resume, watch=watch, system=system or System())
    rule = _learned_rule(folder, loaded) if isinstance(loaded, Unprepared) else loaded.preparation
    return concluded(folder, metrics, key, rule)


def _learned_rule(folder: Path, found: Unprepared) -> Preparation | None:
    """What the run learned, as it was written beside the model."""
    return found.rule(LearnedPreparation.read((folder / LEARNED).read_bytes()))


def signing_key(sign: Sign) -> SigningKey | None:
    """Return the signing key; read it if a path was given."""
    return read_key(Path(sign)) if isinstance(sign, str | Path) else sign


def concluded(
    folder: Path, metrics: dict[str, Any], key: SigningKey | None = None, preparation: Preparation | None = None
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
