"""Whatever states what a run costs states what all runs on the data set cost, and certify finds it in the records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wards import Command

from fedveil import run_study, tune_study
from fedveil.certificate.certify import certify_written
from fedveil.certificate.data_set import data_set_of
from fedveil.core.errors import FedveilError
from fedveil.ledger.books import Ledger
from fedveil.ledger.entry import parse_export
from fedveil.ledger.place import beside
from fedveil.version import __version__

STUDY = """
[data]
source = "data.csv"
target = "y"
classes = 2
feature_bound = 2.0
[model]
kind = "logistic"
radius = 5.0
[privacy]
epsilon = 1.0
delta = 1e-5
[algorithm]
kind = "dpsgd"
rate = 0.5
rounds = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(5).normal(size=(400, 2))
    lines = [f"{a:.4f},{b:.4f},{int(a > 0)}" for a, b in draw]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,y", *lines]) + "\n", encoding="utf-8")
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    return tmp_path


def totals(told: dict[str, Any]) -> dict[str, float]:
    return {row["adversary"]: row["epsilon"] for row in told["data_set"]["guarantees"]}


def spent(adversary: str = "final-model") -> float:
    with Ledger.look(beside(Path("data.csv"))) as ledger:
        return ledger.spent(adversary).epsilon  # type: ignore[arg-type]


def test_a_run_after_a_profile_states_both(folder: Path, command: Command) -> None:
    assert command("profile", "data.csv", "--epsilon", 1, "--target", "y", "--out", "p").code == 0
    said = command("run", "study.toml", "--out", "r")
    assert said.code == 0, said.err
    told = json.loads((folder / "r" / "certificate.json").read_text())
    assert told["data_set"]["runs"] == 2
    assert totals(told)["final-model"] == spent() == pytest.approx(2.0, abs=0.01)
    assert "Both runs on this data set: epsilon " in " ".join(said.out.split())
    shown = command("certify", "r", "--json")
    assert totals(json.loads(shown.out)) == totals(told)
    assert json.loads(shown.out)["matches"] is True
    assert "Both runs" in command("certify", "r").out
    assert command("card", "r").code == 0
    for page in ("report.html", "card.html", "card.md"):
        text = (folder / "r" / page).read_text()
        assert "Both runs on this data set" in text, page


def test_the_only_run_says_so(folder: Path, command: Command) -> None:
    said = command("run", "study.toml", "--out", "r", "--json")
    told = json.loads(said.out)
    assert told["data_set"]["runs"] == 1
    assert totals(told)["final-model"] == told["guarantees"][0]["epsilon"] == spent()
    assert "The only run on this data set" in (folder / "r" / "report.html").read_text()
    assert "The only run on this data set" in command("certify", "r").out


def test_what_comes_later_does_not_change_what_was_certified(folder: Path) -> None:
    first = run_study("study.toml", folder / "one")
    second = run_study("study.toml", folder / "two")
    third = run_study("study.toml", folder / "three")
    found = [one.certificate.data_set for one in (first, second, third)]
    assert [one.runs for one in found if one is not None] == [1, 2, 3]
    assert [round(one.cost("final-model").epsilon) for one in found if one is not None] == [1, 2, 3]
    for name in ("one", "two", "three"):
        assert certify_written(folder / name, __version__)[1] == []


def test_others_are_told_by_their_total_alone(folder: Path) -> None:
    run_study("study.toml", folder / "one")
    run_study("study.toml", folder / "two")
    export = parse_export((folder / "two" / "ledger.jsonl").read_bytes())
    assert set(export.entries[-1].payload["total"]) == {"runs", "costs"}
    lines = [json.loads(line) for line in (folder / "two" / "ledger.jsonl").read_text().splitlines()[1:]]
    hidden = [line for line in lines if "digest" in line]
    assert len(hidden) == 2  # the charge and the release of the first run


def test_a_total_below_the_own_cost_is_refused(folder: Path) -> None:
    run_study("study.toml", folder / "one")
    run_study("study.toml", folder / "two")
    export = parse_export((folder / "two" / "ledger.jsonl").read_bytes())
    charge, release = export.entries[0], export.entries[-1]
    low = [{**row, "epsilon": 0.5} for row in release.payload["total"]["costs"]]
    forged = replace(release, payload={**release.payload, "total": {"runs": 2, "costs": low}})
    with pytest.raises(FedveilError, match="at least what the run itself costs"):
        data_set_of(replace(export, entries=(charge, forged)))


def test_evaluating_profiling_and_tuning_state_it_too(folder: Path, command: Command) -> None:
    run_study("study.toml", folder / "r")
    said = command("evaluate", "r", "data.csv", "--epsilon", 0.5, "--out", "e")
    assert said.code == 0, said.err
    assert "Both runs on this data set" in " ".join(said.out.split())
    said = command("profile", "data.csv", "--epsilon", 1, "--target", "y", "--out", "p")
    assert "All 3 runs on this data set" in " ".join(said.out.split())
    assert "All 3 runs on this data set" in (folder / "p" / "profile.html").read_text()
    told = json.loads((folder / "p" / "certificate.json").read_text())
    assert totals(told)["final-model"] == spent()
    more = '[tune]\ntrials = 2\n[tune.space]\n"algorithm.rounds" = [2, 3]\n'
    more += "[data.held_out]\nfraction = 0.2\npublic = true\n"
    (folder / "tune.toml").write_text(f"{STUDY}\n{more}")
    found = tune_study("tune.toml", folder / "t").certificate.data_set
    assert found is not None
    assert found.runs == 4
    assert found.cost("final-model").epsilon == spent()


def test_synthesis_states_it(folder: Path, command: Command) -> None:
    run_study("study.toml", folder / "r")
    text = STUDY.replace('[model]\nkind = "logistic"\nradius = 5.0\n', "").partition("[algorithm]")[0]
    (folder / "g.toml").write_text(text.replace("feature_bound = 2.0\n", "scale = { a = [-4, 4], b = [-4, 4] }\n"))
    said = command("synthesise", "g.toml", "--rows", 50, "--out", "g")
    assert said.code == 0, said.err
    assert "Both runs on this data set" in " ".join(said.out.split())
    pages = " ".join(page.read_text() for page in (folder / "g").glob("*.html"))
    assert "Both runs on this data set" in pages
    said = command("synthesise", "g.toml", "--rows", 50, "--out", "g2", "--json")
    assert json.loads(said.out)["data_set"]["runs"] == 3
