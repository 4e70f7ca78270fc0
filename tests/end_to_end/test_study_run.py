"""A whole study through the command line: what it leaves, that it repeats, that it survives, and what it refuses."""

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kills
import numpy as np
import pytest

from fedveil import cli, run_study

STUDY = """
[data]
source = "data.npz"
feature_bound = 1.0
classes = 2
target = "y"
{data}
[data.held_out]
fraction = 0.2
public = true
{clients}
[model]
kind = "logistic"
radius = 5.0
{model}
[privacy]
epsilon = 2.0
delta = 1e-4
{privacy}
[schedule]
{schedule}
{more}
"""
FILES = ["bundle.zip", "certificate.json", "ledger.jsonl", "metrics.json", "model.npz", "plan.toml", "report.html"]


def write_study(folder: Path, name: str = "study.toml", rows: int = 400, features: int = 4, **parts: str) -> Path:
    generator = np.random.default_rng(0)
    block = generator.normal(size=(rows, features)) / 3
    labels = (block[:, :3] @ [2.0, -1.0, 0.5] + generator.normal(size=rows) / 4 > 0).astype(np.int64)
    np.savez(folder / "data.npz", X=block, y=labels)
    settings = {"data": "", "clients": "", "model": "", "privacy": "", "schedule": "passes = 2\nrounds = 8", "more": ""}
    path = folder / name
    path.write_text(STUDY.format(**(settings | parts)), encoding="utf-8")
    return path


def fedveil(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "fedveil", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused: exit code 2 and one sentence, which is returned."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["fedveil", *map(str, arguments)])
        monkeypatch.setattr("fedveil.cli.progress._FIRST", 3600.0)  # a slow machine would say how far it is
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        seen = capsys.readouterr()
        assert stop.value.code == 2, seen.err
        assert seen.out == ""
        assert seen.err.startswith("fedveil: ")
        assert seen.err.count("\n") == 1
        return seen.err

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; its study lies beside it."""
    folder = tmp_path_factory.mktemp("finished")
    run_study(write_study(folder), folder / "out")
    return folder / "out"


def test_a_run_leaves_what_the_contract_names(tmp_path: Path) -> None:
    done = fedveil("run", write_study(tmp_path), "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted([*FILES, "private"])
    names = [row["adversary"] for row in result["guarantees"]]
    assert names == ["final-model", "curious-client", "every-model", "server-with-secure-aggregation", "server"]
    final = result["guarantees"][0]
    assert 1.9 < final["epsilon"] <= 2.0
    assert final["delta"] == 1e-4
    assert {"name", "value", "enforced_by"} == set(final["assumptions"][0])
    with np.load(tmp_path / "out" / "model.npz", allow_pickle=False) as model:
        assert model["parameters"].dtype == np.float64
    assert result["metrics"]["test"]["accuracy"] > 0.6
    assert result["private"] is True


def test_nothing_private_stays_readable_and_the_hidden_parts_are_gone(finished: Path) -> None:
    private = finished / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private.iterdir())
    assert not (private / "key").exists()
    assert not (private / "checkpoint").exists()


def test_the_same_study_and_seed_give_the_same_bytes_and_no_promise(tmp_path: Path) -> None:
    study = write_study(tmp_path, more="[study]\nseed = 7")
    for name in ("a", "b"):
        run_study(study, tmp_path / name)
    for file in FILES:
        first, second = ((tmp_path / name / file).read_bytes() for name in ("a", "b"))
        assert first == second, file
    certificate = json.loads((tmp_path / "a" / "certificate.json").read_text())
    assert certificate["private"] is False
    assert all(row["epsilon"] is None for row in certificate["guarantees"])
    assert "not private" in (tmp_path / "a" / "report.html").read_text().lower()


def test_without_a_seed_no_two_runs_agree(finished: Path) -> None:
    other = run_study(finished.parent / "study.toml", finished.parent / "other")
    first, second = (np.load(folder / "model.npz")["parameters"] for folder in (finished, other.folder))
    assert not np.allclose(first, second)


def records_of(finished: Path, folder: Path) -> Path:
    for name in ("plan.toml", "ledger.jsonl", "model.npz", "certificate.json"):
        (folder / name).write_bytes((finished / name).read_bytes())
    return folder


def test_certify_recomputes_from_the_records_alone(finished: Path, tmp_path: Path) -> None:
    done = fedveil("certify", records_of(finished, tmp_path), "--json")
    assert json.loads(done.stdout)["matches"] is True


SWAPS = {
    "plan.toml": (b"delta = 0.0001", b"delta = 0.0002"),
    "ledger.jsonl": (b'"delta":0.0001', b'"delta":0.0002'),
    "certificate.json": (b'"epsilon": 1.', b'"epsilon": 0.'),
    "model.npz": (b"parameters", b"parametres"),
}


@pytest.mark.parametrize("victim", SWAPS)
def test_certify_notices_what_was_altered(
    finished: Path, tmp_path: Path, victim: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = records_of(finished, tmp_path) / victim
    content = path.read_bytes()
    changed = content.replace(*SWAPS[victim], 1)
    assert changed != content
    path.write_bytes(changed)
    monkeypatch.setattr("sys.argv", ["fedveil", "certify", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("fedveil: ")


STEADY = "kind = 'constant'\npasses = 5\nrounds = 1\nstep_size = 0.05\nnoise_std = 900.0"


def test_ctrl_c_leaves_a_run_that_ends_in_the_same_bytes(tmp_path: Path) -> None:
    study = write_study(tmp_path, schedule=STEADY, more="[study]\nseed = 3")
    stopped = kills.started("run", study, "--out", tmp_path / "a", "--quiet", at="round 3", stop="INT")
    assert stopped.returncode == 1
    assert "Stopped after round 3 of 5; go on with the same command and --resume." in stopped.stderr
    assert (tmp_path / "a" / "private" / "checkpoint").exists()
    run_study(study, tmp_path / "a", resume=True)
    run_study(study, tmp_path / "b")
    assert (tmp_path / "a" / "model.npz").read_bytes() == (tmp_path / "b" / "model.npz").read_bytes()


def test_a_truncated_checkpoint_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    study = write_study(tmp_path, schedule=STEADY)
    kills.started("run", study, "--out", tmp_path / "out", "--quiet", at="round 3", stop="INT")
    checkpoint = tmp_path / "out" / "private" / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-5])
    assert "checkpoint" in refused("run", study, "--out", tmp_path / "out", "--resume")


def test_one_run_to_a_folder(finished: Path, refused: Callable[..., str]) -> None:
    study = finished.parent / "study.toml"
    assert "--resume" in refused("run", study, "--out", finished)


QUICK = "passes = 2\nrounds = 1"  # designed in a twentieth of a second; eight rounds take a second and a half
BOOKS = '[books]\nledger = "books.sqlite"\ncap = {final-model = [2.2, 1e-3]}'


def test_a_cap_is_kept_over_runs_of_one_data_set(tmp_path: Path, refused: Callable[..., str]) -> None:
    study = write_study(tmp_path, schedule=QUICK, more=BOOKS)
    run_study(study, tmp_path / "one")
    sentence = refused("run", study, "--out", tmp_path / "two")
    assert "cap" in sentence
    assert "spent" in sentence
    assert not (tmp_path / "two" / "model.npz").exists()


def test_two_runs_racing_for_the_last_of_a_budget(tmp_path: Path) -> None:
    study = write_study(tmp_path, schedule=QUICK, more=BOOKS)
    commands = [
        [sys.executable, "-m", "fedveil", "run", str(study), "--out", str(tmp_path / name), "--quiet"]
        for name in ("one", "two")
    ]
    runs = [subprocess.Popen(c, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for c in commands]
    assert sorted(run.wait() for run in runs) == [0, 2]
    assert [(tmp_path / name / "model.npz").exists() for name in ("one", "two")].count(True) == 1


def test_a_ledger_of_another_data_set_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    books = '[books]\nledger = "books.sqlite"'
    run_study(write_study(tmp_path, schedule=QUICK, more=books), tmp_path / "one")
    other = write_study(tmp_path, rows=500, schedule=QUICK, more=books)
    assert "ledger" in refused("run", other, "--out", tmp_path / "two")


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a target no noise can reach": (
        {
            "privacy": "adversary = 'server'\nunit = 'client'",
            "clients": "[clients]\nkind = 'equal'\ncount = 4",
            "schedule": "rounds = 8",
            "more": "[algorithm]\nkind = 'fedavg'",
        },
        "let clients share it",
    ),
    "noise below the target": ({"schedule": "rounds = 8\nnoise_std = 1.0"}, "noise_std"),
    "an unknown table": ({"more": "[privaci]\nx = 1"}, "privaci"),
    "an unknown key": ({"model": "radios = 3"}, "radius"),
    "a wrong model": ({"model": "clip = -1"}, "clip"),
    "more clients than rows": ({"clients": "[clients]\nkind = 'equal'\ncount = 4000"}, "client"),
    "no such column": ({"data": "columns = ['nothing']"}, "nothing"),
    "whole clients of different sizes": (
        {"clients": "[clients]\nkind='uneven'\ncount=9\nalpha=1.0", "more": "[algorithm]\ndeal = 'clients'"},
        "size",
    ),
    "Laplace noise in many dimensions": ({"more": "[algorithm]\nnoise = 'laplace'"}, "gaussian"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_no_charge(
    tmp_path: Path, mistake: str, refused: Callable[..., str]
) -> None:
    parts, word = MISTAKES[mistake]
    study = write_study(tmp_path, **parts)
    assert word in refused("run", study, "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "model.npz").exists()
    assert not (tmp_path / "out" / "private" / "ledger.sqlite").exists()


def test_the_plan_trains_nothing_and_says_what_it_costs(tmp_path: Path) -> None:
    result = json.loads(fedveil("plan", write_study(tmp_path, schedule=QUICK), "--json").stdout)
    assert result["guarantees"][0]["epsilon"] <= 2.0
    assert result["method"]["passes"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "study.toml"]


@pytest.mark.parametrize(
    ("unit", "clients", "algorithm"),
    [
        ("record", "[clients]\nkind = 'record'", ""),
        ("record", "[clients]\nkind = 'equal'\ncount = 40", "deal = 'clients'"),
        ("client", "[clients]\nkind = 'uneven'\ncount = 80\nalpha = 0.5", ""),
        ("record", "[clients]\nkind = 'uneven'\ncount = 5\nalpha = 2.0", "order = 'public'"),
        ("record", "[clients]\nkind = 'record'", "stopping = 'random'"),
    ],
)
def test_every_kind_of_unit_split_and_order_runs(tmp_path: Path, unit: str, clients: str, algorithm: str) -> None:
    more = f"[algorithm]\n{algorithm}" if algorithm else ""
    study = write_study(
        tmp_path, clients=clients, privacy=f"unit = '{unit}'", more=more, schedule="passes = 1\nkind = 'constant'"
    )
    certificate = run_study(study, tmp_path / "out").certificate
    assert certificate.guarantees[0].answer.epsilon <= 2.0
    assert certificate.plan.target.unit == unit
