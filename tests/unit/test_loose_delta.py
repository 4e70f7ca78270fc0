"""Delta: above 1 over the number of units a warning, from 0.1 on a refusal; plans made before are read as they are."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedveil import cli
from fedveil.core.errors import BadValue
from fedveil.jobs.estimators import PrivateLogisticRegression
from fedveil.planning.plan import read_plan, write_plan
from fedveil.privacy.target import Target
from unit.plans import some_plan, some_records

STUDY = """
[data]
source = "sklearn:breast_cancer"
feature_bound = 1.0
[data.held_out]
fraction = 0.25
[clients]
kind = "equal"
count = 7
[model]
kind = "logistic"
[privacy]
epsilon = 1.0
delta = DELTA
unit = "UNIT"
neighbours = "zero-out"
[algorithm]
kind = "fedavg"
[schedule]
rounds = 2
"""


def said(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["fedveil", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    found = capsys.readouterr()
    return int(str(stop.value.code)), " ".join(found.out.split()), found.err


def written(folder: Path, delta: str, unit: str = "client") -> str:
    (folder / "study.toml").write_text(STUDY.replace("DELTA", delta).replace("UNIT", unit))
    return str(folder / "study.toml")


def test_more_than_one_over_the_units_is_said_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = written(tmp_path, "0.09"), str(tmp_path / "out")
    assert said(["plan", path, "--json"], monkeypatch, capsys)[1].count("above 1/7") == 0  # 0.09 is below a seventh
    Path(path).write_text(Path(path).read_text().replace("count = 7", "count = 40"))
    sentence = "privacy.delta = 0.09 is above 1/40: publishing one of the 40 clients"
    assert f"WARNING: {sentence}" in said(["plan", path], monkeypatch, capsys)[1]
    assert f"WARNING: {sentence}" in said(["run", path, "--out", out], monkeypatch, capsys)[1]
    assert sentence in (tmp_path / "out" / "report.html").read_text()
    stated = json.loads(said(["plan", path, "--json"], monkeypatch, capsys)[1])
    assert stated["warnings"][0].startswith(sentence)
    ran = json.loads(said(["run", path, "--out", out + "2", "--json", "--quiet"], monkeypatch, capsys)[1])
    assert ran["warnings"] == stated["warnings"]


def test_a_usual_delta_is_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = json.loads(said(["plan", written(tmp_path, "1e-5"), "--json"], monkeypatch, capsys)[1])
    assert stated["warnings"] == []


@pytest.mark.parametrize("delta", ["0.1", "0.5"])
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_tenth_is_refused_in_one_sentence(
    tmp_path: Path, delta: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--out", str(tmp_path / "out")] if command == "run" else []
    code, out, err = said([command, written(tmp_path, delta), *more], monkeypatch, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"privacy.delta must be below 0.1, got {delta}" in err


def test_estimators_warn_and_refuse() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 2))
    labels = (rows[:, 0] > 0).astype(int)
    with pytest.warns(UserWarning, match=r"privacy\.delta = 0\.02 is above 1/100"):
        PrivateLogisticRegression(delta=0.02, algorithm={"kind": "dpsgd"}).fit(rows, labels)
    with pytest.raises(BadValue, match=r"privacy\.delta must be below 0\.1"):
        PrivateLogisticRegression(delta=0.3, algorithm={"kind": "dpsgd"}).fit(rows, labels)


def test_a_plan_reads_back_whatever_its_delta() -> None:
    plan = some_plan(some_records())
    text = write_plan(plan)
    assert read_plan(text) == plan
    assert Target(epsilon=1.0, delta=0.5).loose_delta(3) is not None
    assert Target(epsilon=1.0, delta=0.25).loose_delta(4) is None
