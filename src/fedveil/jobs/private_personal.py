"""A party's own model that may be shown: a hidden run on its records that starts from the shared model, charged there.

The shared model is public, so the run's guarantee is that of any hidden run.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import require
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.data.sources import read as read_source
from fedveil.data.spec import Source
from fedveil.engine.ending import check_unfinished
from fedveil.engine.files import sole_use
from fedveil.engine.study import conduct_study
from fedveil.engine.system import System
from fedveil.federation.site.data import read_site_data
from fedveil.jobs.local import ENDS, Result, conclude
from fedveil.jobs.personal import site_rows
from fedveil.planning.study import study_of
from fedveil.release.bundle import Bundle
from fedveil.release.model import ReleasedModel


def personalise_privately(
    path: str | Path,
    client: str,
    data: str | Path,
    out: str | Path,
    *,
    epsilon: float,
    delta: float | None = None,
    client_column: str | None = None,
    ledger: str | Path | None = None,
    resume: bool = False,
    system: System | None = None,
) -> Result:
    """Make a model of ``client`` that may be shown: a hidden run on its own records from the shared model.

    The shared model is public, so the run is charged like any other, in the ledger of the party's data; ``ledger``: its
    path, needed with a site's data file. ``delta``: that of the shared model if left out. The folder ``out`` is that of
    a run: model, certificate, report.
    """
    folder, system = Path(out), system or System()
    if resume:
        check_unfinished(folder, ENDS)
    bundle = Bundle.read(Path(path))
    plan = bundle.plan
    require(bundle.personal is None, "The model", "be the shared one", "a party's own model")
    require(plan.model.linear, "A personal model", "be made from a linear model", "a torch module")
    require(plan.private, "The shared model", "be private, or its start would tell", "no guarantee")
    tables: dict[str, Any] = {
        "study": {"name": f"{plan.name}: own model"},
        "model": {"kind": plan.model.kind, "l2": plan.model.l2},
        "privacy": {
            "epsilon": epsilon,
            "delta": plan.target.delta if delta is None else delta,
            "neighbours": plan.target.neighbours,
        },
        "algorithm": {"kind": "hidden"},
    }
    if ledger is not None:
        tables["books"] = {"ledger": str(Path(ledger).absolute())}
    study = study_of(tables, base=Path(), name="personal", data_given=True)
    source, loaded = _to_train(bundle, str(data), client, client_column, ledger is not None)
    study = replace(study, data=replace(study.data, source=source), baselines=False)
    metrics = conduct_study(study, loaded, folder, resume=resume, system=system, start=bundle.parameters)
    with sole_use(folder / "private"):
        return conclude(folder, metrics, None, bundle.preparation)


def _to_train(
    bundle: Bundle, data: str, client: str, column: str | None, charged_elsewhere: bool
) -> tuple[Source | None, Loaded]:
    """Return where the party's data are, for their ledger, and its records as the shared model's rule makes them."""
    model, known = ReleasedModel(bundle), bundle.preparation
    source: Source | None = None
    features, targets = site_rows(model, data, client, column, blank=True)
    if data.endswith(".toml"):
        hint = "It is the file ledger.sqlite in the folder that the guard has as --records."
        require(charged_elsewhere, "--ledger", "name the site's own ledger with a site's data file", None, hint)
        raw = read_site_data(Path(data)).raw
    else:
        assert known is not None  # noqa: S101  own_records refuses a model without a rule
        source = known.source(data)
        raw = read_source(source.with_keys(target=known.labels.name), Path())[0].raw
    train = Records(
        features=features,
        targets=targets,
        owner=np.zeros(len(targets), dtype=np.int64),
        clients=1,
        bound=bundle.plan.data.bound,
        classes=bundle.plan.data.classes,
        names=(client,),
    )
    return source, Loaded(
        train=train, test=None, test_public=False, dropped_rows=0, feature_names=(), raw=raw, preparation=known
    )
