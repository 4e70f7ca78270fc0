"""Attempts to get a certificate that says less than what was released, or a release that nothing was charged for."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
import pytest

from fedveil.certificate.certify import certify, differences
from fedveil.cli.studies import _fresh, report
from fedveil.core.errors import AlreadyFinished, FedveilError
from fedveil.data.records import Records
from fedveil.engine.study import conduct_study
from fedveil.engine.system import Interrupted, Progress, System
from fedveil.jobs.local import Result, open_study, run_study
from fedveil.ledger.entry import GENESIS, Entry, parse_export, write_export
from fedveil.planning.promises import promise
from unit.plans import some_plan, some_records

TABLES: dict[str, Any] = {
    "model": {"kind": "logistic", "radius": 3.0},
    "privacy": {"epsilon": 3.0, "delta": 1e-4},
    "schedule": {"kind": "constant", "rounds": 3, "passes": 1},
}


def stopped(_: Progress) -> None:
    raise KeyboardInterrupt


def trained(tables: dict[str, Any], folder: Path, data: Any, **options: Any) -> dict[str, Any]:
    """The run without its certificate and its page, which take longer than the training."""
    study, loaded = open_study(tables, data)
    return conduct_study(study, loaded, folder, system=System(), **options)


def with_row(records: Records, row: int, factor: float) -> Records:
    """The same shape, one record changed."""
    features = records.features.copy()
    features[row] *= factor
    return replaced(records, features=features)


def replaced(records: Records, **changes: Any) -> Records:
    names = ("features", "targets", "owner", "clients", "bound", "classes", "names")
    return Records(**({name: getattr(records, name) for name in names} | changes))


def relabelled(folder: Path, change: Any) -> None:
    """ledger.jsonl with other payloads and a chain that fits them."""
    found = parse_export((folder / "ledger.jsonl").read_bytes())
    previous, entries = GENESIS, []
    for entry in found.entries:
        payload = change(entry.kind, dict(entry.payload))
        entries.append(
            Entry(
                sequence=entry.sequence,
                previous=previous,
                run=entry.run,
                round=entry.round,
                kind=entry.kind,
                payload=payload,
                at=entry.at,
            )
        )
        previous = entries[-1].hash
    (folder / "ledger.jsonl").write_bytes(write_export(found.run, entries))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_study(TABLES, tmp_path_factory.mktemp("attack") / "run", data=some_records(seed=1))


# Plans that are accounted for otherwise than they run.


def test_a_plan_speaks_for_every_unit() -> None:
    plan = some_plan(some_records(), order="public")
    with pytest.raises(FedveilError):
        replace(plan, method=replace(plan.hidden, run=replace(plan.run, place=1)))


def test_naming_a_place_would_lower_epsilon() -> None:
    """Why the test above matters: the last unit has 2.7 times the epsilon that is certified for the first."""
    plan = some_plan(some_records(), order="public")
    try:
        named = replace(plan, method=replace(plan.hidden, run=replace(plan.run, place=1)))
    except FedveilError:
        return
    assert promise(named, "final-model").epsilon < 0.5 * promise(plan, "final-model").epsilon


def test_batches_of_whole_clients_hold_whole_clients() -> None:
    records = some_records(count=60, clients=30)
    with pytest.raises(FedveilError):
        some_plan(records, deal="clients", batch=1, rounds=60)


def test_participation_is_the_plans() -> None:
    """Units of a client and whether it may be in any round: for each way to deal, as the trainer deals."""
    single, even = some_records(), some_records(clients=12)
    assert not some_plan(single).participation.every_round
    by_records = some_plan(even).participation
    assert (by_records.every_round, by_records.largest_client) == (True, 5)
    whole = some_plan(even, deal="clients").participation
    assert (whole.whole_clients, whole.largest_client) == (True, 5)
    unit = some_plan(even, deal="clients", unit="client", batch=3, rounds=4).participation
    assert (unit.whole_clients, unit.largest_client, unit.clients) == (False, 1, 12)


def test_position_coupling_is_withdrawn_for_whole_clients() -> None:
    plan = some_plan(some_records(clients=12), deal="clients")
    for adversary in ("final-model", "curious-client"):
        bounds = {bound.name: bound.status for bound in promise(plan, adversary).bounds}
        assert bounds["position"] == "does-not-apply"


# Releases that the certificate does not list, or the ledger does not charge.


def test_a_resumed_run_measures_on_no_other_records(tmp_path: Path) -> None:
    train, private = some_records(seed=1), some_records(seed=2)
    with pytest.raises(Interrupted):
        trained(TABLES, tmp_path / "run", train, watch=stopped)
    try:
        metrics = trained(TABLES, tmp_path / "run", (train, private), resume=True)
    except FedveilError:
        return
    listed = any(row["file"] == "metrics.json" for row in certify(tmp_path / "run", "0").released)
    assert metrics["test"] is None or listed


def test_baselines_are_not_within_a_cap(tmp_path: Path) -> None:
    books = {"ledger": str(tmp_path / "books.sqlite"), "cap": {"final-model": [3.0, 1e-4]}}
    tables = {**TABLES, "report": {"baselines": True}, "books": books}
    with pytest.raises(FedveilError):
        trained(tables, tmp_path / "run", (some_records(seed=1), some_records(seed=2)))


def test_a_cap_binds_two_runs(tmp_path: Path) -> None:
    tables = {**TABLES, "books": {"cap": {"final-model": [3.0, 1e-4]}}}
    done = 0
    with suppress(FedveilError):
        for name in ("first", "second"):
            trained(tables, tmp_path / name, some_records(seed=1))
            done += 1
    assert done < 2


def test_the_demo_removes_only_what_a_demo_left(tmp_path: Path) -> None:
    trained(TABLES, tmp_path / "run", some_records(seed=1))
    books = tmp_path / "run" / "private" / "ledger.sqlite"
    assert books.exists()
    with suppress(FedveilError):
        _fresh(tmp_path / "run")
    assert books.exists()


def test_the_same_noise_never_meets_other_data(tmp_path: Path) -> None:
    """One record moves by a part in 1e9: equal noise, equal models; by fresh noise with chance below 1e-15."""
    records, folder = some_records(seed=1), tmp_path / "run"
    models = []
    for turn, data in enumerate((records, with_row(records, 0, 1 - 1e-9))):
        tables = {**TABLES, "books": {"ledger": str(tmp_path / f"{turn}.sqlite")}}
        if turn == 0:
            with pytest.raises(Interrupted):
                trained(tables, folder, data, watch=stopped)
            key = (folder / "private" / "key").read_bytes()
        else:  # as a copy of the folder was before the release, without its checkpoint
            (folder / "private" / "key").write_bytes(key)
            for name in ("model.npz", "ledger.jsonl", "private/checkpoint"):
                (folder / name).unlink(missing_ok=True)
        try:
            trained(tables, folder, data, resume=True)
        except FedveilError:
            return
        models.append(np.load(folder / "model.npz")["parameters"])
    assert float(np.linalg.norm(models[0] - models[1])) > 1e-6


# Certificates, ledgers and reports that were altered.


def test_one_altered_file_is_noticed(finished: Result, tmp_path: Path) -> None:
    for name, old, new in (
        ("plan.toml", "lipschitz = 0.5", "lipschitz = 0.51"),
        ("ledger.jsonl", '"rounds":3', '"rounds":4'),
    ):
        copied = copy_of(finished.folder, tmp_path / name)
        text = (copied / name).read_text()
        assert old in text
        (copied / name).write_text(text.replace(old, new))
        with pytest.raises(FedveilError):
            certify(copied, finished.certificate.version)
    copied = copy_of(finished.folder, tmp_path / "model")
    with (copied / "model.npz").open("ab") as file:
        file.write(b"x")
    with pytest.raises(FedveilError):
        certify(copied, finished.certificate.version)


def with_costs(folder: Path, **changes: Any) -> None:
    """The ledger of a run whose charge for every-model states something else."""

    def changed(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        stated = {"charge": payload, "release": payload.get("total")}.get(kind)
        if stated is not None:  # the only run: its charge is the total of all
            stated["costs"] = [
                {**cost, **changes} if cost["adversary"] == "every-model" else cost for cost in stated["costs"]
            ]
        return payload

    relabelled(folder, changed)


@pytest.mark.parametrize(
    "change", [{"epsilon": 0.01}, {"delta": 1e-5}, {"neighbours": "zero-out"}, {"adversary": "server"}, {"delta": "x"}]
)
def test_a_charge_below_what_the_plan_costs_is_refused(
    finished: Result, tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = copy_of(finished.folder, tmp_path / "run")
    with_costs(folder, **change)
    with pytest.raises(FedveilError, match="The charge"):
        certify(folder, finished.certificate.version)


@pytest.mark.parametrize("change", [{"epsilon": None}, {"epsilon": 400.0}, {"delta": 1e-3}, {"unit": "client"}])
def test_a_charge_above_what_the_plan_costs_holds_and_is_told(
    finished: Result, tmp_path: Path, change: dict[str, Any]
) -> None:
    """As in books of a version that could prove less: an infinite charge that is finite now."""
    folder = copy_of(finished.folder, tmp_path / "run")
    with_costs(folder, **change)
    found = certify(folder, finished.certificate.version)
    assert found.guarantees == finished.certificate.guarantees
    told = [text for text in found.charged_more if "more than the plan costs against every-model" in text]
    assert len(told) == (change != {"unit": "client"})  # the same numbers, for more than the plan is about
    assert finished.certificate.charged_more == ()
    assert "charged_more" not in found.text()


def test_a_certificate_that_promises_less_than_is_proved_is_told_from_one_that_promises_more(finished: Result) -> None:
    for epsilon, weaker in ((None, True), (400.0, True), (0.01, False)):
        stated = json.loads(finished.certificate.text())
        row = next(row for row in stated["guarantees"] if row["adversary"] == "every-model")
        row["epsilon"] = epsilon
        (told,) = differences(finished.certificate, json.dumps(stated, indent=1) + "\n")
        assert told.startswith("guarantees differs (epsilon for every-model: ")
        assert ("promises less than what is proved" in told) == weaker


def test_no_page_is_drawn_from_an_altered_certificate(finished: Result, tmp_path: Path) -> None:
    folder = copy_of(finished.folder, tmp_path / "run")
    stated = json.loads((folder / "certificate.json").read_text())
    for guarantee in stated["guarantees"]:
        guarantee["epsilon"] = 0.0123
    (folder / "certificate.json").write_text(json.dumps(stated))
    with pytest.raises(FedveilError, match="does not match"):
        report(folder)


def test_the_certificate_says_that_the_shape_is_public(finished: Result) -> None:
    rows = finished.certificate.guarantees[0].assumptions
    assert any("public" in f"{row.name} {row.value} {row.enforced_by}" for row in rows)


def test_publishable_files_name_no_client_and_no_secret(finished: Result) -> None:
    for path in finished.folder.iterdir():
        if path.is_file():
            text = written(path)
            assert not [word for word in (b"client 17", b"fingerprint", b"dropped") if word in text], path.name


def written(path: Path) -> bytes:
    """What a file holds; of an archive, what its members hold."""
    if not is_zipfile(path):
        return path.read_bytes()
    with ZipFile(path) as archive:
        return b"".join(archive.read(name) for name in archive.namelist())


def test_nothing_secret_is_left_after_the_release(finished: Result) -> None:
    left = {path.name for path in (finished.folder / "private").iterdir()}
    assert not left & {"key", "checkpoint"}


def test_a_finished_run_draws_no_second_model(finished: Result) -> None:
    before = (finished.folder / "model.npz").read_bytes()
    with pytest.raises(AlreadyFinished):
        run_study(TABLES, finished.folder, data=some_records(seed=1), resume=True)
    assert (finished.folder / "model.npz").read_bytes() == before


def copy_of(folder: Path, to: Path) -> Path:
    """The publishable part."""
    to.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (to / path.name).write_bytes(path.read_bytes())
    return to
