"""fedveil compare: a table, one JSON object, two files, and refusals of one sentence."""

import json
import sys
from pathlib import Path

import pytest

from fedveil.cli import main

STUDY = """
[study]
seed = 1

[data]
source = "sklearn:wine"
feature_bound = 2.0

[data.held_out]
fraction = 0.25
public = true

[clients]
kind = "equal"
count = 3

[model]
kind = "softmax"

[privacy]
epsilon = 4.0
delta = 1e-4

[schedule]
kind = "constant"
rounds = 1
passes = 4
"""


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, str, str]:
    monkeypatch.setattr(sys, "argv", ["fedveil", "compare", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return (ended.value.code, *capsys.readouterr())


@pytest.fixture
def study(tmp_path: Path) -> str:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return str(path)


def test_json_is_one_object_and_the_files_hold_the_same(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "hidden,hidden:order=public"
    wanted = [study, "--algorithms", names, "--runs", "2", "--out", str(tmp_path / "out"), "--json"]
    code, out, _ = run(monkeypatch, capsys, *wanted)
    assert code == 0
    result = json.loads(out)
    assert [entry["label"] for entry in result["entries"]] == names.split(",")
    assert result["models_trained"] == 4
    assert "NOT PRIVATE" in result["warning"]
    assert result.pop("written") == [str(tmp_path / "out" / name) for name in ("compare.json", "compare.html")]
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == result
    assert "Algorithms side by side" in (tmp_path / "out" / "compare.html").read_text()


def test_the_table_names_every_row_and_ends_with_the_warning(
    study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(monkeypatch, capsys, study, "--view", "trust", "--runs", "1")
    assert code == 0
    assert "local noise" in out
    assert "central noise, last model" in out
    assert "NOT PRIVATE: the noise came from the study's seed." in out
    code, out, _ = run(monkeypatch, capsys, study, "--algorithms", "hidden:noise=laplace", "--runs", "1")
    assert code == 0
    assert "does not take this study: algorithm.noise" in out


@pytest.mark.parametrize("wrong", [["--algorithms", "magic"], ["--runs", "0"], ["--view", "side"]])
def test_mistakes_end_with_2_and_one_sentence(
    wrong: list[str], study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, complaint = run(monkeypatch, capsys, study, *wrong)
    assert (code, out) == (2, "")
    assert complaint.count("\n") == 1
