"""Runs with canaries, from study to finding: secret and stable coins, sound and faulty noise, altered folders.

Randomness is the system's interface with fixed bytes, so every outcome here is the same each time.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify
from fedveil.core.errors import FedveilError
from fedveil.data.arrays import records_from_arrays
from fedveil.data.records import Records
from fedveil.engine.study import conduct_study
from fedveil.engine.system import Interrupted, Progress, System
from fedveil.jobs.attack.one_run import one_run
from fedveil.jobs.local import open_study
from fedveil.ledger.books import Ledger
from fedveil.noise.grid import rounded_normal
from fedveil.planning.plan import read_plan
from fedveil.stages.train.hidden import steps as hidden

CANARIES = 150
SCHEDULE = {"kind": "constant", "passes": 6, "rounds": 1, "step_size": 1.0}


def records(clients: int = 3) -> Records:
    X = np.random.default_rng(5).standard_normal((240, 4))
    y = (X[:, 0] + 0.3 * X[:, 1] > 0).astype(int)
    return records_from_arrays(X, y, np.arange(240) % clients, bound=1.0, classes=2)


def tables(epsilon: float = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "study": {"name": "canaries"},
        "model": {"kind": "logistic", "radius": 10.0},
        "privacy": {"epsilon": epsilon, "delta": 1e-4, "neighbours": "zero-out"},
        "schedule": SCHEDULE,
        "audit": {"canaries": CANARIES},
        **more,
    }


def system(seed: int = 0, **more: Any) -> System:
    return System(random=np.random.default_rng(seed).bytes, **more)


def run(wanted: dict[str, Any], folder: Path, data: Any = None, **more: Any) -> Path:
    study, loaded = open_study(wanted, records() if data is None else data)
    conduct_study(study, loaded, folder, system=more.pop("system", system()), **more)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound run with weak privacy, so that its canaries are seen."""
    wanted = tables(epsilon=8.0, data={"public": True})
    return run(wanted, tmp_path_factory.mktemp("sound") / "run", data=(records(), records()))


def coins_in(folder: Path) -> str:
    return str(json.loads((folder / "private" / "canaries").read_text())["coins"])


def test_a_sound_run_is_consistent_and_its_coins_stay_private(finished: Path) -> None:
    folder = finished
    assert (folder / "private" / "canaries").stat().st_mode & 0o777 == 0o600
    public = [path.read_bytes() for path in folder.iterdir() if path.is_file()]
    assert not any(coins_in(folder).encode() in content for content in public)
    finding = one_run(folder)
    assert (finding.kind, finding.verdict, finding.adversary) == ("lower-bound", "consistent", "final-model")
    assert finding.certified is not None
    assert 0.3 < finding.measured < finding.certified <= 8.0
    assert finding.details["canaries"] == CANARIES
    assert finding == one_run(folder)
    assert json.loads((folder / "metrics.json").read_text())["test"]["accuracy"] > 0.85
    with np.load(folder / "model.npz") as model:
        assert model["coefficients"].shape == (5, 1)
        assert model["canaries"].shape == (CANARIES, 1)
    plan = read_plan((folder / "plan.toml").read_text())
    assert (plan.canaries, plan.data.records, plan.real_features) == (CANARIES, 240 + CANARIES, 5)
    assert "canaries" in certify(folder, "0").guarantees[0].assumptions[0].value


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_too_little_noise_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, neighbours: str
) -> None:
    def faulty(stream: Any, deviation: float, size: int) -> Any:
        drawn = rounded_normal(stream, deviation, size)
        return np.rint(drawn * share).astype(np.int64)

    monkeypatch.setattr(hidden, "rounded_normal", faulty)
    wanted = tables(privacy={"epsilon": 1.0, "delta": 1e-4, "neighbours": neighbours}, audit={"canaries": 250})
    finding = one_run(run(wanted, tmp_path / "run"))
    assert finding.verdict == "broken", finding.evidence
    assert finding.details["p_value"] <= 1e-6
    assert finding.measured > (finding.certified or 0)


def test_coins_survive_a_stop_and_a_resume(tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        if now.round == 3:
            raise KeyboardInterrupt

    whole = run(tables(), tmp_path / "whole")
    parts = tmp_path / "parts"
    with pytest.raises(Interrupted):
        run(tables(), parts, watch=stop)
    begun = coins_in(parts)
    assert begun == coins_in(whole)
    with pytest.raises(FedveilError):
        one_run(parts)  # nothing is released yet
    run(tables(), parts, resume=True, system=system(seed=9))  # other bytes from the system now
    assert coins_in(parts) == begun
    assert (parts / "model.npz").read_bytes() == (whole / "model.npz").read_bytes()
    assert one_run(parts) == one_run(whole)


def test_a_resumed_run_must_have_its_own_coins(tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(tables(), folder, watch=stop)
    (folder / "private" / "canaries").unlink()
    with pytest.raises(FedveilError, match="changed after the run began"):
        run(tables(), folder, resume=True, system=system(seed=1))
    with pytest.raises(FedveilError, match=r"plan\.canaries was 150 and is 50 now"):
        run(tables(audit={"canaries": 50}), folder, resume=True)


def altered(folder: Path) -> None:
    path = folder / "private" / "canaries"
    content = json.loads(path.read_text())
    content["coins"] = content["coins"][1:] + content["coins"][0]
    path.write_text(json.dumps(content, sort_keys=True) + "\n")


def emptied(folder: Path) -> None:
    (folder / "private" / "canaries").unlink()


def other_model(folder: Path) -> None:
    np.savez(folder / "model.npz", parameters=np.zeros(5 + CANARIES))


def no_ledger(folder: Path) -> None:
    (folder / "ledger.jsonl").unlink()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (altered, "changed after the run began"),
        (emptied, "cannot be audited"),
        (other_model, "be the model that was released"),
        (no_ledger, "readable|ledger"),
    ],
)
def test_altered_folders_are_refused(
    finished: Path, tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    change(folder)
    with pytest.raises(FedveilError, match=words):
        one_run(folder)


def test_a_run_without_canaries_says_how_to_get_them(tmp_path: Path) -> None:
    plain = {key: value for key, value in tables().items() if key != "audit"}
    folder = run(plain, tmp_path / "run")
    assert not (folder / "private" / "canaries").exists()
    with pytest.raises(FedveilError, match=r"Add \[audit\] with canaries"):
        one_run(folder)


def test_runs_with_and_without_canaries_share_the_books_of_their_data(tmp_path: Path) -> None:
    books = {"books": {"ledger": str(tmp_path / "books.sqlite")}}
    for seed, wanted in enumerate((tables(**books), tables(**books, audit={"canaries": 40}))):
        run(wanted, tmp_path / str(seed), system=system(seed))
    plain = {key: value for key, value in tables(**books).items() if key != "audit"}
    run(plain, tmp_path / "plain", system=system(7))
    with Ledger.look(tmp_path / "books.sqlite") as ledger:
        assert sum(entry.kind == "release" for entry in ledger.entries()) == 3


def test_a_seed_fixes_the_coins_and_promises_nothing(tmp_path: Path) -> None:
    wanted = tables(study={"name": "canaries", "seed": 4})
    folders = [run(wanted, tmp_path / name) for name in "ab"]
    assert coins_in(folders[0]) == coins_in(folders[1])
    finding = one_run(folders[0])
    assert (finding.certified, finding.verdict) == (None, "not-judged")


@pytest.mark.parametrize(
    ("algorithm", "unit"), [("dpsgd", "record"), ("simfl", "record"), ("fedavg", "client"), ("hidden", "client")]
)
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_every_method_can_be_audited(tmp_path: Path, algorithm: str, unit: str, neighbours: str) -> None:
    wanted = tables(
        algorithm={"kind": algorithm},
        privacy={"epsilon": 8.0, "delta": 1e-4, "neighbours": neighbours, "unit": unit},
        schedule=SCHEDULE if algorithm == "hidden" else {"rounds": 10},
        audit={"canaries": 100},
    )
    data = records(60 if unit == "client" else 3)
    finding = one_run(run(wanted, tmp_path / "run", data, system=system(3)))
    assert finding.certified is not None
    assert finding.measured <= finding.certified
    assert finding.verdict == "consistent"
    inside, outside = finding.details["scores_in"], finding.details["scores_out"]
    assert inside > outside


def test_more_classes_and_numbers_can_be_audited(tmp_path: Path) -> None:
    X = np.random.default_rng(5).standard_normal((240, 4))
    three = records_from_arrays(X, np.arange(240) % 3, np.arange(240) % 3, bound=1.0, classes=3)
    number = records_from_arrays(X, X[:, 0] / 10, np.arange(240) % 3, bound=1.0, target_scale=(-1.0, 1.0))
    for kind, data in (("softmax", three), ("huber", number)):
        wanted = tables(epsilon=8.0, model={"kind": kind, "radius": 10.0})
        finding = one_run(run(wanted, tmp_path / kind, data))
        assert finding.verdict == "consistent"
        assert finding.measured > 0


def test_baselines_do_not_meet_canaries(tmp_path: Path) -> None:
    wanted = tables(report={"baselines": True}, data={"public": True})
    folder = run(wanted, tmp_path / "run", (records(), records()))
    found = json.loads((folder / "metrics.json").read_text())["baselines"]
    assert min(row["accuracy"] for row in found.values()) > 0.95
