"""As a stranger: from an unknown file with texts and gaps to predictions on new rows, in three commands."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from wards import Command

ROWS = 1500


def write(path: Path, rows: int, *, labelled: bool = True, euro: bool = False, seed: int = 5) -> None:
    draw = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, delimiter=";" if euro else ",")
        lines.writerow(["customer_id", "since", "age", "town", "income", "member", *(["bought"] if labelled else [])])
        for index in range(rows):
            age, town = draw.normal(45, 15), draw.choice(["Ulm", "Bonn", "Kiel", ""], p=[0.5, 0.3, 0.1, 0.1])
            income, member = float(np.exp(draw.normal(8, 1.5))), draw.choice(["yes", "no"])
            label = "yes" if (age - 45) / 15 + (town == "Ulm") - 0.5 + 0.3 * draw.normal() > 0 else "no"
            shown = f"{income:,.2f}"
            shown = shown.translate(str.maketrans(",.", ".,")) if euro else shown
            cells = [f"C{index}", f"{draw.integers(1, 28):02d}.03.2021", f"{age:.0f}" if index % 20 else "?"]
            lines.writerow([*cells, town, shown, member, *([label] if labelled else [])])


def test_profile_run_predict(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With semicolons and decimal commas; the usual signs are those of docs/tutorials/csv-to-predictions.md."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "shop.csv", ROWS, euro=True)
    write(tmp_path / "new.csv", 100, labelled=True, euro=True, seed=6)
    said = command("profile", "shop.csv", "--epsilon", 3, "--target", "bought", "--json")
    assert said.code == 0, said.err
    result = json.loads(said.out)
    assert result["complete"]
    assert result["left_out"].keys() == {"customer_id", "since"}
    assert result["guarantees"][0]["epsilon"] <= 3.0
    said = command("run", "profile/study.toml", "--out", "results", "--quiet")
    assert said.code == 0, said.err
    plan = (tmp_path / "results" / "plan.toml").read_text()
    assert '"ranges"' not in plan
    assert '"categories"' not in plan
    said = command("predict", "results", "new.csv", "--out", "p.csv")
    assert said.code == 0, said.err
    with (tmp_path / "p.csv").open() as file:
        found = [row["prediction"] for row in csv.DictReader(file)]
    with (tmp_path / "new.csv").open() as file:
        truth = [row["bought"] for row in csv.DictReader(file, delimiter=";")]
    right = np.mean([a == b for a, b in zip(found, truth, strict=True)])
    assert right >= 0.75  # the rule behind the labels is nearly linear; by chance it would be a half
    books = json.loads(command("ledger", "shop.csv", "--json").out)
    assert [run["study"] for run in books["runs"]] == ["profile of shop", "shop"]
    assert command("certify", "profile").code == 0


def test_init_gives_a_study_that_plans(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "shop.csv", 200)
    said = command("init", "shop.csv", "--out", "open.toml")
    assert said.code == 0
    assert "The study needs answers before it runs:" in said.out
    assert "  3. " in said.out
    assert "--classes" in said.out
    said = command("init", "shop.csv", "--target", "bought", "--classes", "no,yes", "--ignore", "customer_id")
    assert said.code == 0, said.err
    assert "open" not in said.out
    planned = json.loads(command("plan", "study.toml", "--json").out)
    assert planned["guarantees"][0]["epsilon"] <= 1.0


def test_init_charges_nothing(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "shop.csv", 20)
    assert command("init", "shop.csv").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"shop.csv", "study.toml"}


@pytest.mark.parametrize("repeated", [False, True])
def test_several_rows_of_one_person_are_told_to_the_data_holder_alone(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, repeated: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["mrn,paid,ill", *(f"M{k // 2 if repeated else k},{k},{k % 2}" for k in range(20))]
    (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n")
    said = command("init", "visits.csv", "--target", "ill", "--classes", "0,1")
    assert said.code == 0
    assert ("occur in several rows" in said.err) == repeated
    assert "'mrn' is named like an identifier (--keep mrn uses it)" in said.out
    assert "several rows" not in said.out
    assert "several rows" not in (tmp_path / "study.toml").read_text()


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["1,,no", "2,word,yes", "3,,no", "4,,yes"], "must have a type that no single record decides, got ('b',)"),
        (["1,,no", "2,7,yes", "3,,no", "4,,yes"], "--numbers b"),
        (["1,A,no", "2,B,yes", "3,7,no", "4,8,yes"], "--ignore b"),
    ],
)
def test_a_profile_refuses_columns_that_one_record_decides(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, rows: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.csv").write_text("\n".join(["a,b,ill", *rows]) + "\n")
    said = command("profile", "v.csv", "--epsilon", 1, "--target", "ill")
    assert said.code == 2
    assert told in said.err
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / ".fedveil").exists()
    assert not (tmp_path / "profile" / "plan.toml").exists()


def test_a_file_without_a_header_is_profiled_where_that_is_stated(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line is then a record, and no record may decide how a file is read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.csv").write_text("\n".join(f"{k};{k * k};{k % 2}" for k in range(300)) + "\n")
    said = command("profile", "v.csv", "--epsilon", 5)
    assert said.code == 2
    assert "--delimiter ';' --no-header" in said.err
    said = command("profile", "v.csv", "--epsilon", 5, "--no-header", "--delimiter", ";")
    assert said.code == 0, said.err
    assert 'delimiter = ";"' in (tmp_path / "profile" / "study.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["profile", "shop.csv", "--epsilon", "0"], "epsilon"),
        (["profile", "shop.csv", "--epsilon", "nan"], "epsilon"),
        (["profile", "none.csv", "--epsilon", "1"], "none.csv must be a file, but there is none"),
        (["profile", "shop.csv", "--epsilon", "1", "--unit", "client"], "--client-column must be given"),
        (["profile", "shop.csv", "--epsilon", "1", "--range", "3"], "--range must be LOW,HIGH"),
        (["init", "none.csv"], "none.csv must be a file, but there is none"),
        (["init", "sklearn:wine"], "DATA must be a file, a folder or a table"),
    ],
)
def test_a_mistake_is_one_sentence_and_charges_nothing(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "shop.csv", 20)
    said = command(*arguments)
    assert said.code == 2
    assert told in said.err
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / ".fedveil").exists()
