"""``fedveil audit`` on real folders: consistent runs, altered ones, too few runs, wrong targets, private records."""

import json
import subprocess
from pathlib import Path

import pytest
from commands import called

STUDY = """
[data]
source = "sklearn:breast_cancer"
feature_bound = 2.0

[clients]
kind = "equal"
count = 4

[model]
kind = "logistic"
radius = 10.0

[privacy]
epsilon = 2.0
delta = 1e-3
neighbours = "zero-out"

[algorithm]
order = "public"

[schedule]
kind = "constant"
rounds = 2
passes = 1
"""


def fedveil(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return called(*words, cwd=cwd, settings={"COLUMNS": "160"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "study.toml").write_text(STUDY)
    done = fedveil("run", "study.toml", "--out", "results", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_sound_run_is_consistent_and_its_report_says_so(run: Path) -> None:
    done = fedveil("audit", "results", "--study", "study.toml", "--runs", "600", "--shadows", "8", "--json", cwd=run)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "consistent"
    assert [row["adversary"] for row in found["findings"]][:2] == ["final-model", "curious-client"]
    assert found["hidden_state"]["rows"][0]["sees"] == "the final model"
    page = (run / "results" / "report.html").read_text()
    assert 'id="attacked"' in page
    # The records were not declared public: what was computed from them stays private, and no picture is made.
    assert {row["attack"] for row in found["findings"]} == {"distinguishing-game"}
    assert len(found["private_findings"]) == 3
    kept = run / "results" / "private" / "audit.json"
    assert oct(kept.stat().st_mode)[-3:] == "600"
    assert "leakage" not in json.loads((run / "results" / "audit.json").read_text())


def test_the_table_is_for_people(run: Path) -> None:
    done = fedveil("audit", "results", "--runs", "600", cwd=run)
    assert done.returncode == 0, done.stderr
    assert "Nothing contradicts the certificate." in done.stdout
    assert "give --study" in done.stdout


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("fedveil: ")
    for word in words:
        assert word in done.stderr


def test_too_few_runs_are_refused_with_the_number(run: Path) -> None:
    refused(fedveil("audit", "results", "--runs", "50", cwd=run), "runs must be at least", "got 50")


@pytest.mark.parametrize("name", ["plan.toml", "ledger.jsonl", "model.npz", "certificate.json"])
def test_a_run_that_was_changed_or_is_incomplete_is_refused(run: Path, name: str) -> None:
    path = run / "results" / name
    kept = path.read_bytes()
    try:
        changed = kept.replace(b'"private": true', b'"private": false').replace(b"charge", b"charged")
        path.write_bytes(
            changed.replace(b"records = ", b"records = 1") if changed != kept or name == "plan.toml" else kept + b"x"
        )
        refused(fedveil("audit", "results", "--runs", "600", cwd=run))
        path.unlink()
        refused(fedveil("audit", "results", "--runs", "600", cwd=run), name)
    finally:
        path.write_bytes(kept)


def test_a_study_of_other_records_is_refused(run: Path) -> None:
    (run / "other.toml").write_text(STUDY.replace("count = 4", "count = 5"))
    refused(
        fedveil("audit", "results", "--study", "other.toml", "--runs", "600", cwd=run), "The study's records must be"
    )


def test_a_study_that_is_not_as_public_as_the_run_is_refused(run: Path) -> None:
    """Or what is computed from one study's records would be published on the word of another's."""
    (run / "public.toml").write_text(STUDY.replace("[data]", "[data]\npublic = true"))
    refused(fedveil("audit", "results", "--study", "public.toml", "--runs", "600", cwd=run), "data.public must")


def test_what_cannot_be_judged_is_not_called_consistent(run: Path) -> None:
    (run / "random.toml").write_text(STUDY.replace('order = "public"', 'stopping = "random"'))
    assert fedveil("run", "random.toml", "--out", "random", "--quiet", cwd=run).returncode == 0
    done = fedveil("audit", "random", "--json", cwd=run)
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (0, "not-judged")
    assert "the distinguishing game: it is not known for random stopping" in found["skipped"]


def test_a_folder_without_a_run_and_a_file_that_is_none_are_refused(run: Path) -> None:
    refused(fedveil("audit", ".", cwd=run), "plan.toml")
    refused(fedveil("audit", "nowhere", cwd=run), "run's folder or a mechanism file")
    refused(fedveil("audit", "study.toml", cwd=run))


MECHANISM = """
[mechanism]
kind = "last-iterate"
rounds = 3
place = 2
step_size = 0.5
lipschitz = 1.0
smoothness = 0.5
diameter = 2.0
noise_std = 2.0
"""


def test_a_mechanism_is_held_against_the_exact_law(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(MECHANISM)
    done = fedveil("audit", "run.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "consistent"
    shown = fedveil("audit", "run.toml", cwd=tmp_path)
    assert "consistent" in shown.stdout
    (tmp_path / "gaussian.toml").write_text('[mechanism]\nkind = "gaussian"\nnoise_multiplier = 1.0\n')
    refused(fedveil("audit", "gaussian.toml", cwd=tmp_path), "last-iterate")


ASYNCHRONOUS = """
[algorithm]
kind = "dpsgd"
rate = 0.2
rounds = 6
weights = [0.1, 0.2, 0.3, 0.4]

[algorithm.network]
speeds = [1.0, 2.0, 0.5, 1.0]
jitter = 0.2
delay = 0.5
loss = 0.1
max_deviation = 0.5
participants = 2
window_steps = [1.0, 0.5]

[trust]
noise = "local"
"""


def test_clients_with_speeds_of_their_own_are_attacked_too(tmp_path: Path) -> None:
    """What a client sends at a model does not depend on when it sends it: the game needs no clock."""
    head, _, _ = STUDY.partition("[algorithm]")
    (tmp_path / "study.toml").write_text(head.replace("epsilon = 2.0", "epsilon = 4.0") + ASYNCHRONOUS)
    done = fedveil("run", "study.toml", "--out", "results", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = fedveil(
        "audit", "results", "--study", "study.toml", "--runs", "2000", "--shadows", "8", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "consistent"
    game = found["findings"][0]
    assert (game["attack"], game["adversary"]) == ("distinguishing-game", "server")
    region = game["details"]["region"]
    assert max(t - f for t, f in zip(region["true_positives"], region["false_positives"], strict=True)) > 0.1
    assert len(found["private_findings"]) == 3
