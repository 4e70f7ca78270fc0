"""Synthetic data from a study: charged and certified once, the same behind masks, rows for free, clear refusals."""

import csv
import json
import math
import random
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify_measured, differences
from fedveil.core.errors import BadValue, FedveilError
from fedveil.engine.measured import measured_generator, planned_synthesis
from fedveil.engine.system import System
from fedveil.jobs.local import run_study
from fedveil.jobs.synthesis import SynthesisResult, open_synthesis, sample, synthesise
from fedveil.ledger.books import Ledger
from fedveil.ledger.costs import cost_of
from fedveil.ledger.entry import read_export
from fedveil.ledger.place import beside
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_any_plan
from fedveil.planning.promises import ADVERSARIES
from fedveil.stages.measuring import Measurer
from fedveil.stages.synthesise.generator import Generator
from fedveil.version import __version__

ROWS = 3000


def write(path: Path) -> None:
    """Age decides who is ill; the ward follows the illness; an eighth of the ages is missing."""
    draw = np.random.default_rng(1)
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["age", "debt", "ward", "clinic", "ill"])
        for index in range(ROWS):
            age, debt = draw.normal(50, 12), max(0.0, draw.normal(0, 1000))
            ill = age + draw.normal(0, 6) > 52
            ward = draw.choice(["A", "B", "C"], p=[0.1, 0.2, 0.7] if ill else [0.6, 0.3, 0.1])
            shown = "" if index % 8 == 0 else f"{age:.0f}"
            lines.writerow([shown, f"{debt:.2f}", ward, f"clinic {index % 20 if ill else index % 7}", "yn"[not ill]])


def tables(**more: Any) -> dict[str, Any]:
    data = {
        "source": "visits.csv",
        "target": "ill",
        "classes": ["n", "y"],
        "scale": {"age": [0.0, 100.0], "debt": [0.0, 4000.0]},
        "categories": {"ward": ["A", "B", "C"]},
        "client_column": "clinic",
    }
    privacy = {"epsilon": 2.0, "delta": 1e-5}
    given = {"data": data, "privacy": privacy, "clients": {"kind": "column"}, "generator": {"whole": ["age"]}}
    return {**given, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("synthesis")
    write(found / "visits.csv")
    return found


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def made(folder: Path) -> SynthesisResult:
    given = tables()
    given["data"] = {**given["data"], "source": str(folder / "visits.csv")}
    system = System(random=random.Random(7).randbytes)
    return synthesise(given, folder / "made", rows=2000, seed=3, system=system)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_look_like_the_data(made: SynthesisResult) -> None:
    """Noise moves a share by a few in a thousand here; six deviations of everything are within these margins."""
    real, drawn = read_rows(made.folder.parent / "visits.csv"), read_rows(made.folder / "synthetic.csv")
    assert len(drawn) == 2000
    assert list(drawn[0]) == ["age", "debt", "ward", "ill"]

    def share(rows: list[dict[str, str]], **wanted: str) -> float:
        return sum(all(row[key] == value for key, value in wanted.items()) for row in rows) / len(rows)

    for wanted in ({"ill": "y"}, {"ward": "C"}, {"ward": "C", "ill": "y"}, {"ward": "A", "ill": "y"}, {"age": ""}):
        assert share(drawn, **wanted) == pytest.approx(share(real, **wanted), abs=0.04), wanted
    ages = {
        ill: np.mean([float(row["age"]) for row in drawn if row["ill"] == ill and row["age"]]) for ill in ("y", "n")
    }
    assert ages["y"] - ages["n"] > 10
    assert all(row["age"] == "" or row["age"].isdigit() for row in drawn)


def test_it_is_charged_once_and_certified_for_every_observer(made: SynthesisResult) -> None:
    entries = read_export(made.folder / "ledger.jsonl")
    assert [entry.kind for entry in entries] == ["charge", "release"]
    plan = read_any_plan(entries[0].payload["mechanism"])
    assert plan == made.certificate.plan
    assert {one.adversary for one in made.certificate.guarantees} == set(ADVERSARIES)
    for one in made.certificate.guarantees:
        assert cost_of(plan, one.adversary).epsilon == one.answer.epsilon
    assert made.certificate.guarantees[0].answer.epsilon <= 2.0
    again = certify_measured(made.folder, __version__)
    assert differences(again, (made.folder / "certificate.json").read_bytes()) == []
    assert not (made.folder / "private" / "key").exists()


def test_a_generator_that_was_altered_is_refused(made: SynthesisResult, tmp_path: Path) -> None:
    for name in ("plan.toml", "ledger.jsonl", "generator.json"):
        (tmp_path / name).write_bytes((made.folder / name).read_bytes())
    assert sample(tmp_path, rows=5, out=tmp_path / "rows.csv", seed=1).exists()
    changed = json.loads((tmp_path / "generator.json").read_bytes())
    (tmp_path / "generator.json").write_text(json.dumps({**changed, "records": 1}))
    with pytest.raises(BadValue, match=r"generator\.json must be the generator that was released"):
        sample(tmp_path, rows=5)


def test_more_rows_are_free_and_the_same_seed_draws_the_same(made: SynthesisResult, tmp_path: Path) -> None:
    books = (made.folder / "ledger.jsonl").read_bytes()
    first = sample(made.folder, rows=500, out=tmp_path / "a.csv", seed=5).read_bytes()
    assert sample(made.folder, rows=500, out=tmp_path / "b.csv", seed=5).read_bytes() == first
    assert sample(made.folder, rows=500, out=tmp_path / "c.csv").read_bytes() != first
    assert (made.folder / "ledger.jsonl").read_bytes() == books


def generated(server: str, colluders: int = 2) -> Generator:
    """With the same key, whoever adds up."""
    study, request, found = open_synthesis(tables(trust={"server": server, "colluders": colluders}))
    plan = planned_synthesis(study, request, found)
    return measured_generator(plan, request, found, Entropy.from_seed(11))


def test_behind_masks_the_marginals_are_those_of_a_trusted_server_bit_for_bit(here: Path) -> None:
    """Twenty clinics that hold very different patients; each adds its own share of the noise."""
    open_server = generated("trusted")
    assert generated("secure-aggregation").text() == open_server.text()
    assert open_server.pairs


def test_encrypted_sums_give_the_same_marginals_too(here: Path) -> None:
    pytest.importorskip("tenseal")
    assert generated("homomorphic", colluders=0).text() == generated("trusted", colluders=0).text()


def test_noise_in_shares_is_as_much_as_is_planned(here: Path) -> None:
    """400 sums of nothing but noise scatter as the plan says, within a fifth: a false alarm has a chance of 1e-8."""
    study, request, found = open_synthesis(tables(trust={}))
    plan = planned_synthesis(study, request, found)
    one = plan.sums["pairs"]
    by = Measurer(
        owner=found.train.owner,
        clients=found.train.clients,
        present=found.present,
        target=plan.target,
        entropy=Entropy.from_seed(3),
        trust=plan.trust,
    )
    noise = by.noisy_sum(one, lambda rows: np.zeros(400, dtype=np.int64), 400)
    assert np.std(noise) == pytest.approx(one.noise * one.bound, rel=0.2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"generator": {"kind": "words"}}, r"generator\.kind must be marginals or torch, got 'words'"),
        ({"privacy": {"epsilon": 1e-3, "delta": 1e-5}}, r"\[privacy\] must leave something to measure: noise of less"),
        ({"generator": {"whole": ["ward"]}}, r"generator\.whole must name columns of numbers, got 'ward'"),
        ({"generator": {"sums": {"debt": ["owed"]}}}, r"generator\.sums\.debt must name columns of numbers"),
        ({"generator": {"zeros": [{"sex": "m"}]}}, r"generator\.zeros must name columns of the data, got 'sex'"),
        ({"generator": {"groups": 1}}, r"generator\.groups must lie between 2 and 100, got 1"),
        ({"trust": {"patience": 5}}, r"trust\.patience must be left out for a generator, got 5"),
        ({"study": {"seed": 1}}, r"study\.seed must be left out for a generator and other sums, got 1"),
        ({"model": {"kind": "logistic"}}, r"Key 'model' must be known to a study of a generator"),
    ],
)
def test_bad_input_is_one_sentence(here: Path, tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises((FedveilError, ValueError), match=sentence):
        synthesise(tables(**change), tmp_path / "out", rows=10)
    assert not (tmp_path / "out" / "plan.toml").exists()


def test_a_million_stated_words_and_no_rows_are_refused(here: Path, tmp_path: Path) -> None:
    given = tables()
    words = ["A", "B", "C", *(f"w{k}" for k in range(50_000))]
    given["data"] = {**given["data"], "categories": {"ward": words}}
    with pytest.raises(ValueError, match=r"data\.categories\.ward must list at most 10000 words for a generator"):
        synthesise(given, tmp_path / "out", rows=10)
    with pytest.raises(ValueError, match=r"--rows must lie between 1 and 1000000000, got 0"):
        synthesise(tables(), tmp_path / "out", rows=0)


def test_what_is_not_stated_is_learned_with_noise(here: Path) -> None:
    """Without ranges and word lists; behind masks unknown words cannot be added up, and the sentence says so."""
    given = tables()
    given["data"] = {key: value for key, value in given["data"].items() if key not in ("scale", "categories")}
    study, request, found = open_synthesis(given)
    plan = planned_synthesis(study, request, found)
    assert [one.name for one in plan.sums.measurements] == ["ranges", "categories", "ones", "pairs", "cliques"]
    made = measured_generator(plan, request, found, Entropy.from_seed(2))
    ward = made.columns[made.names.index("ward")].table()
    assert ward["words"] == ["A", "B", "C"]
    age = made.columns[made.names.index("age")].table()
    assert 0 <= age["low"] < 40 < 60 < age["high"] <= 256
    assert math.isfinite(plan.promise("final-model").epsilon)
    study, request, found = open_synthesis({**given, "trust": {"server": "secure-aggregation"}})
    with pytest.raises(ValueError, match=r"\[prepare\] must find every category stated with \[trust\]"):
        planned_synthesis(study, request, found)


def test_training_on_a_generator_charges_nothing_to_the_data(made: SynthesisResult, tmp_path: Path) -> None:
    """The books of the data show one charge, that of the generator, before and after; the model has learned from it."""
    data = made.folder.parent / "visits.csv"
    before = [entry.hash for entry in books_of_data(data)]
    given = {
        "data": {
            "source": f"generator:{made.folder}",
            "target": "ill",
            "classes": ["n", "y"],
            "scale": {"age": [0.0, 100.0], "debt": [0.0, 4000.0]},
            "fill": {"age": 50.0},
            "categories": {"ward": ["A", "B", "C"]},
            "feature_bound": 2.0,
            "held_out": {"source": str(data), "public": True, "ignore": ["clinic"]},
        },
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 10.0, "delta": 1e-5},
        "clients": {"kind": "equal", "count": 2},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 40},
    }
    result = run_study(given, tmp_path / "run")
    assert result.metrics["test"]["accuracy"] > 0.8  # by chance: 0.56
    assert [entry.hash for entry in books_of_data(data)] == before
    assert result.certificate.plan.origin.public
    with pytest.raises(ValueError, match=r"data\.source must name a generator that is there"):
        run_study({**given, "data": {**given["data"], "source": "generator:nowhere"}}, tmp_path / "other")


def books_of_data(data: Path) -> list[Any]:
    with Ledger.look(beside(data)) as ledger:
        return ledger.entries()


class PowerCutError(Exception):
    """The machine stops."""


def test_what_was_interrupted_is_finished_with_the_same_charge(here: Path, tmp_path: Path) -> None:
    """Stopped in the middle of a sum, and once more after the release; other settings are refused."""

    def stops(turn: int, client: int) -> bool:
        raise PowerCutError

    given, out = tables(trust={"dropouts": 1}), tmp_path / "out"
    with pytest.raises(PowerCutError):
        synthesise(given, out, rows=10, system=System(fails=stops))
    other = {**given, "generator": {"coarse": 4}}
    with pytest.raises(ValueError, match=r"The generator must be as it was when it began"):
        synthesise(other, out, rows=10, resume=True)
    first = synthesise(given, out, rows=10, resume=True)
    assert [entry.kind for entry in read_export(out / "ledger.jsonl")] == ["charge", "release"]
    (out / "synthetic.csv").unlink()
    again = synthesise(given, out, rows=10, resume=True)
    assert again.generator.text() == first.generator.text()
    assert len(read_rows(out / "synthetic.csv")) == 10
    with pytest.raises(ValueError, match=r"--out must name a folder without results in it"):
        synthesise(given, out, rows=10)


BARE = """
[data]
source = "stays.csv"
[data.scale]
days = [0, 3000]
cost = [0, 10]
[data.categories]
ward = ["A", "B"]
[privacy]
epsilon = 8.0
delta = 1e-5
[generator]
whole = ["days"]
dates = {admitted = ["2020-01-01", "2022-12-31"]}
sums = {both = ["days"]}
"""


def write_stays(folder: Path) -> Path:
    """A table that has nothing to predict: a date, whole numbers, a word, a number, and a sum, in this order."""
    draw = np.random.default_rng(4)
    days, wards = draw.integers(0, 3000, 400), draw.choice(["A", "B"], 400)
    dates = [
        date.fromordinal(date(2020, 1, 1).toordinal() + int(day)).isoformat() for day in draw.integers(0, 900, 400)
    ]
    lines = [
        f"{when},{long},{ward},{price:.2f},{long}"
        for when, long, ward, price in zip(dates, days, wards, draw.uniform(0, 10, 400), strict=True)
    ]
    (folder / "stays.csv").write_text("\n".join(["admitted,days,ward,cost,both", *lines]) + "\n")
    (folder / "study.toml").write_text(BARE)
    return folder / "study.toml"


def test_a_table_without_a_target_keeps_its_columns_their_order_and_their_types(tmp_path: Path) -> None:
    found = synthesise(write_stays(tmp_path), tmp_path / "out", rows=300)
    assert isinstance(found.generator, Generator)
    assert found.generator.target is None
    rows = read_rows(tmp_path / "out" / "synthetic.csv")
    assert list(rows[0]) == ["admitted", "days", "ward", "cost", "both"]
    for row in rows:
        assert date(2020, 1, 1) <= date.fromisoformat(row["admitted"]) <= date(2022, 12, 31)
        assert row["days"].isdecimal()
        assert row["both"] == row["days"]
    assert found.generator.fractions == ("cost",)
    middle = sorted(row["admitted"] for row in rows)[150]
    assert "2020-12" < middle < "2021-07"  # drawn from 2020-01-01 to 2022-06-18
    again = Generator.read((tmp_path / "out" / "generator.json").read_bytes())
    assert again.text() == found.generator.text()


def test_a_column_of_dates_that_holds_something_else_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    study = write_stays(tmp_path)
    path = tmp_path / "stays.csv"
    path.write_text(path.read_text().replace("\n2020", "\n1 Jan 2020", 1))
    with pytest.raises(BadValue, match=r"The column 'admitted' must hold dates such as 2024-12-31, got '1 Jan 2020"):
        synthesise(study, tmp_path / "out", rows=10)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("dates", "told"),
    [
        ('{admitted = ["2020-01-01"]}', "be two dates"),
        ('{admitted = ["2022-01-01", "2020-01-01"]}', "begin before they end"),
        ('{admitted = ["1.1.2020", "2022-01-01"]}', "be written as 2024-12-31"),
        ('{nobody = ["2020-01-01", "2022-01-01"]}', "name columns of dates"),
        ('{days = ["2020-01-01", "2022-01-01"]}', "name columns of dates"),
    ],
)
def test_bad_dates_are_refused(tmp_path: Path, dates: str, told: str) -> None:
    study = write_stays(tmp_path)
    study.write_text(BARE.replace('{admitted = ["2020-01-01", "2022-12-31"]}', dates))
    with pytest.raises(BadValue, match=told):
        synthesise(study, tmp_path / "out", rows=10)


@pytest.mark.parametrize(("stated", "fractions"), [("", ("cost",)), ("whole = true", ()), ("whole = false", None)])
def test_the_schema_of_a_parquet_file_says_which_numbers_are_whole(
    tmp_path: Path, stated: str, fractions: tuple[str, ...] | None
) -> None:
    """A gap in a column of integers changes nothing: the schema counts, and no cell."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    draw = np.random.default_rng(4)
    days = [None, *draw.integers(0, 30, 399).tolist()]
    columns = {"ward": draw.choice(["A", "B"], 400).tolist(), "days": days, "cost": draw.uniform(0, 10, 400).round()}
    parquet.write_table(arrow.table(columns), tmp_path / "stays.parquet")
    text = BARE.replace("stays.csv", "stays.parquet").replace("[0, 3000]", "[0, 30]").partition("[generator]")[0]
    (tmp_path / "study.toml").write_text(f"{text}[generator]\n{stated}\n")
    found = synthesise(tmp_path / "study.toml", tmp_path / "out", rows=50)
    assert isinstance(found.generator, Generator)
    assert found.generator.fractions == (("days", "cost") if fractions is None else fractions)
    assert found.generator.order == ("ward", "days", "cost")


def test_labels_that_a_format_keeps_apart_are_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "rows.libsvm").write_text("1 1:0.5 2:1\n-1 1:0.25\n")
    data = {"source": str(tmp_path / "rows.libsvm"), "features": 2}
    with pytest.raises(BadValue, match="keeps apart"):
        synthesise({"data": data, "privacy": {"epsilon": 1.0, "delta": 1e-5}, "generator": {}}, tmp_path, rows=10)
