"""Mistakes with deployments: one sentence and exit code 2 before a process is started, and nothing is left behind."""

from pathlib import Path

import pytest
from test_misuse import run_cli

STUDY = """
[study]
seed = 5
[data]
source = "sklearn:breast_cancer"
feature_bound = 2.0
[clients]
kind = "equal"
count = 3
[model]
kind = "logistic"
radius = 10.0
[privacy]
epsilon = 5.0
delta = 1e-4
[schedule]
rounds = 2
passes = 1
"""
TRUST = "[trust]\ntimeout = 60\n"
LOCAL: dict[str, tuple[str, list[str], str]] = {
    "nobody is trusted": (STUDY, [], "must say whom the sites trust"),
    "no such method": (STUDY + TRUST + '[algorithm]\nkind = "foo"\n', [], "algorithm.kind must be one of"),
    "no sites": (STUDY + TRUST, ["--sites", "0"], "--sites must lie between 1 and 100, got 0"),
    "more sites than clients": (STUDY + TRUST, ["--sites", "4"], "--sites must not exceed the study's 3 clients"),
}


@pytest.mark.parametrize("name", sorted(LOCAL))
def test_a_trial_that_cannot_be_is_refused_before_it_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words, sentence = LOCAL[name]
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(text)
    code, said, err = run_cli(monkeypatch, capsys, "deploy", "local", str(study), "--out", str(out), *words)
    assert (code, said) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not out.exists()


def test_a_run_is_not_begun_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(STUDY + TRUST)
    out.mkdir()
    (out / "plan.toml").write_text("of a run")
    code, _, err = run_cli(monkeypatch, capsys, "deploy", "local", str(study), "--out", str(out))
    assert code == 2
    assert "--out must be new" in err
    assert [path.name for path in out.iterdir()] == ["plan.toml"]
