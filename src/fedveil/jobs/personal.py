"""Make a party's own model from a released one, at that party: nothing is charged, and nothing leaves its folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.checks import require
from fedveil.core.errors import AlreadyFinished, BadValue, why
from fedveil.core.files import owners_folder
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine.files import clear_parts, private_folder, write_atomically
from fedveil.federation.site.data import read_site_data
from fedveil.jobs.own_model.choose import Own, personal
from fedveil.jobs.own_model.records import Rows, own_records
from fedveil.models.personal_request import PersonalRequest
from fedveil.release.bundle import FILE as BUNDLE
from fedveil.release.bundle import Bundle
from fedveil.release.model import ReleasedModel
from fedveil.release.personal import FILE, Personal, decide


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Personalised:
    """The folder of a party's own model, and what was chosen."""

    folder: Path
    chosen: Personal

    @property
    def model(self) -> ReleasedModel:
        """The party's own model, ready to predict."""
        return ReleasedModel(Bundle.read(self.folder))

    def as_json(self) -> dict[str, Any]:
        """What was chosen, without the parameters."""
        told = {key: value for key, value in self.chosen.as_json().items() if key not in ("parameters", "format")}
        return {"written": str(self.folder / BUNDLE), **told}


def personalise(
    path: str | Path,
    client: str,
    data: str | Path,
    out: str | Path,
    *,
    client_column: str | None = None,
    request: PersonalRequest | None = None,
    resume: bool = False,
) -> Personalised:
    """Make the model of ``client`` from a run's folder or bundle and its own records; write it into ``out``.

    ``data``: labelled records in any format that the model can predict (``client_column``: those that name the client),
    or a site's data file (TOML). Only the owner can read what is written. ``resume``: finish a folder in which this was
    interrupted; the same records give the same model.
    """
    folder = Path(out)
    written, told = folder / BUNDLE, folder / FILE
    if resume and written.exists() and told.exists():
        raise AlreadyFinished(str(folder))
    hint = "Name another folder, or go on with --resume."
    require(resume or not written.exists(), "--out", "name a folder without a model in it", str(folder), hint)
    bundle = Bundle.read(Path(path))
    require(bundle.personal is None, "The model", "be the shared one", "a party's own model")
    model, loss = ReleasedModel(bundle), bundle.plan.model.loss
    linear = bundle.plan.model.linear
    require(linear, "A personal model", "be made from a linear model", "a torch module")
    stated, hint = bundle.plan.model.decision_threshold, "Every party finds its own threshold."
    require(stated is None, "The shared model", "have no decision threshold of its own", stated, hint)
    features, targets = _rows(model, str(data), client, client_column)
    own = Own(loss=loss, shared=bundle.parameters, features=features, targets=targets, bound=bundle.plan.data.bound)
    chosen = personal(own, request or bundle.plan.personal or PersonalRequest(), client)
    try:
        owners_folder(folder)
    except OSError as error:
        raise BadValue(f"--out must name a folder that can be made: {why(error)}.") from error
    clear_parts(folder)
    write_atomically(written, bundle.with_personal(chosen).write())
    write_atomically(told, (json.dumps(chosen.as_json(), indent=1, allow_nan=False) + "\n").encode())
    return Personalised(folder=folder, chosen=chosen)


def _rows(model: ReleasedModel, data: str, client: str, column: str | None) -> Rows:
    if not data.endswith(".toml"):
        return own_records(model, data, client, column)
    require(column is None, "--client-column", "be left out with a site's data file", column)
    records = read_site_data(Path(data)).records
    plan = model.plan
    same = (records.features.shape[1], records.classes) == (plan.real_features, plan.data.classes)
    rule = f"make {plan.real_features} features and {plan.data.classes} classes, as the model has"
    require(same, "--data", rule, (records.features.shape[1], records.classes))
    mine = ~records.blank
    if records.clients > 1:
        names = [records.name(index) for index in range(records.clients)]
        require(client in names, "--client", f"be one of {', '.join(names[:12])}", client)
        mine &= records.owner == names.index(client)
    require(bool(mine.any()), "--data", f"hold records of {client!r}", "none")
    return np.ascontiguousarray(records.features[mine]), records.targets[mine]


def personal_models(folder: Path, loaded: Loaded) -> None:
    """Make the own model of every client of a run in this process; all of it stays in the private folder.

    ``private/personal.json`` says what was chosen and, where held-out records name the same clients, how often the
    shared model and each client's own are right on them. It is computed without noise.
    """
    bundle, homes = Bundle.read(folder), private_folder(folder / "private" / "personal")
    asked, records, rows = bundle.plan.personal or PersonalRequest(), loaded.train, {}
    for client in range(records.clients):
        mine, name = (records.owner == client) & ~records.blank, records.name(client)
        own = Own(
            loss=bundle.plan.model.loss,
            shared=bundle.parameters,
            features=np.ascontiguousarray(records.features[mine]),
            targets=records.targets[mine],
            bound=records.bound,
        )
        chosen = personal(own, asked, name)
        home = private_folder(homes / f"{client + 1}")
        clear_parts(home)  # of a run that was killed here
        write_atomically(home / BUNDLE, bundle.with_personal(chosen).write())
        told = {key: value for key, value in chosen.as_json().items() if key not in ("parameters", "format")}
        rows[name] = {"folder": home.name, **told, **_compared(own, chosen, loaded.test, name)}
    text = json.dumps({"format": 1, "clients": rows}, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "private" / FILE, text.encode())


def _compared(own: Own, chosen: Personal, test: Records | None, name: str) -> dict[str, float]:
    """How often both models are right on the client's held-out records; nothing without any, or of a number."""
    if test is None or name not in test.names or not test.classes:
        return {}
    mine = (test.owner == test.names.index(name)) & ~test.blank
    if not mine.any():
        return {}
    rows, truth = test.features[mine], test.targets[mine]
    shares = [
        float(np.mean(decide(own.loss.scores(w, rows), threshold) == truth))
        for w, threshold in ((own.shared, 0.0), (chosen.parameters, chosen.threshold))
    ]
    return {"held_out_records": int(mine.sum()), "shared_accuracy": shares[0], "own_accuracy": shares[1]}
