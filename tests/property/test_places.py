"""Changing one record moves no other record and changes nothing that is published but the model.

For every split, every held-out rule and every algorithm: who holds what, who is held out, in which position a record
stands (which decides its rounds and batches, given the run's key), every size, and the plan's whole text.
"""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.data.records import Records
from fedveil.jobs.local import open_study, run_study
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import write_plan
from fedveil.planning.study import Study, parse_study
from fedveil.stages.evaluate.request import EvaluationRequest
from fedveil.stages.train.hidden.deal import rounds_of_units

ROWS, SITES = 60, 6
Row = list[str]
Table = list[Row]
Place = tuple[str, str, int]  # "train" or "test", the owner's name, the position

SPLITS = {
    "record": "kind = 'record'",
    "equal": "kind = 'equal'\ncount = 6",
    "uneven": "kind = 'uneven'\ncount = 6\nalpha = 1.0",
    "column": "kind = 'column'",
    "file": "kind = 'file'",
}
HELD_OUT = {
    "none": "",
    "fraction": "[data.held_out]\nfraction = 0.3\nseed = 4",
    "public fraction": "[data.held_out]\nfraction = 0.3\nseed = 4\npublic = true",
    "source": "[data.held_out]\nsource = 'other'\npublic = true",
}
SCHEDULE = "[schedule]\nrounds = 2\npasses = 1\nstep_size = 0.5\nbatch = BATCH\nnoise_std = 9.0"
ALGORITHMS = {
    "hidden, secret order": "[algorithm]\nkind = 'hidden'\n" + SCHEDULE,
    "hidden": "[algorithm]\nkind = 'hidden'\norder = 'public'\n" + SCHEDULE,
    "dpsgd": "[algorithm]\nkind = 'dpsgd'\nsampling = 'shuffled'\nrate = 1.0\nrounds = 1",
    "fedavg": "[algorithm]\nkind = 'fedavg'\n[schedule]\nrounds = 2",
    "simfl": "[algorithm]\nkind = 'simfl'\n[schedule]\nrounds = 2",
}


def table(seed: int = 0) -> Table:
    """Rows of: number over 1000, another feature, site, label."""
    coins = np.random.default_rng(seed)
    label, site = coins.integers(0, 2, ROWS), np.arange(ROWS) * SITES // ROWS
    return [[f"{i / 1000:.3f}", f"{coins.uniform(0.1, 1):.3f}", f"s{site[i]}", str(label[i])] for i in range(ROWS)]


def written(folder: Path, rows: Table, by_file: bool) -> None:
    """One file; or a folder with one file for each site."""
    other = [[f"{1 + i / 1000:.3f}", "0.5", f"t{i % 2}", str(i % 2)] for i in range(10)]
    for name, part in (("data", rows), ("other", other)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for old in (folder / name).iterdir():
            old.unlink()
        groups = {row[2]: [r for r in part if r[2] == row[2]] for row in part} if by_file else {"all": part}
        for site, mine in groups.items():
            lines = ["a,b,site,y", *(",".join(row) for row in mine)]
            (folder / name / f"{site}.csv").write_text("\n".join(lines) + "\n")


def study(folder: Path, split: str, held_out: str, unit: str = "record", algorithm: str = "hidden") -> Study:
    client = "client_column = 'site'" if split == "column" else "ignore = ['site']"
    batch = "3" if unit == "client" else "20"
    return parse_study(
        f"""
[data]
source = 'data'
target = 'y'
classes = 2
feature_bound = 2.0
intercept = 0
default_fill = 'drop-row'
{client}
{HELD_OUT[held_out]}
[clients]
{SPLITS[split]}
[model]
kind = 'logistic'
radius = 5.0
[privacy]
epsilon = 4.0
delta = 1e-3
unit = '{unit}'
neighbours = 'zero-out'
{ALGORITHMS[algorithm].replace("BATCH", batch)}
""",
        base=folder,
    )


def places(wanted: Study) -> tuple[dict[int, Place], tuple[Any, ...]]:
    """Where every record with values stands, by its number; and every size."""
    _, loaded = open_study(wanted)
    found: dict[int, Place] = {}
    for name, records in (("train", loaded.train), ("test", loaded.test)):
        for position, row in enumerate([] if records is None else records.features.tolist()):
            if any(row):
                assert records is not None
                found[round(1000 * row[0])] = (name, records.name(int(records.owner[position])), position)
    sizes: list[tuple[int, ...]] = [] if loaded.test is None else [tuple(loaded.test.sizes.tolist())]
    return found, (loaded.train.shape, loaded.train.names, *sizes)


def changed(rows: Table, victim: int, column: int, value: str) -> Table:
    return [[*row[:column], value, *row[column + 1 :]] if i == victim else row for i, row in enumerate(rows)]


CHANGES: dict[str, Callable[[Table, int], Table]] = {
    "a feature": lambda rows, victim: changed(rows, victim, 1, "-0.9"),
    "the label": lambda rows, victim: changed(rows, victim, 3, "1" if rows[victim][3] == "0" else "0"),
    "a missing feature": lambda rows, victim: changed(rows, victim, 1, "?"),
    "a missing label": lambda rows, victim: changed(rows, victim, 3, ""),
}
VICTIMS = (1, 17, 30, 59)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("held_out", HELD_OUT)
@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_changed_record_moves_no_other_and_no_size(tmp_path: Path, split: str, held_out: str, unit: str) -> None:
    rows, wanted = table(), study(tmp_path, split, held_out, unit)
    written(tmp_path, rows, split == "file")
    before, sizes = places(wanted)
    assert len(before) == ROWS + 10 * (held_out == "source")
    for change, victim in itertools.product(CHANGES.values(), VICTIMS):
        written(tmp_path, change(rows, victim), split == "file")
        after, now = places(wanted)
        assert now == sizes
        assert after.get(victim, before[victim]) == before[victim]
        assert {k: v for k, v in after.items() if k != victim} == {k: v for k, v in before.items() if k != victim}


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("held_out", HELD_OUT)
@pytest.mark.parametrize("name", ["s5", "new", ""])
def test_a_record_that_names_another_client_moves_itself_alone(
    tmp_path: Path, unit: str, held_out: str, name: str
) -> None:
    rows, wanted = table(), study(tmp_path, "column", held_out, unit)
    written(tmp_path, rows, False)
    before, _ = places(wanted)
    for victim in VICTIMS:
        written(tmp_path, changed(rows, victim, 2, name), False)
        after, _ = places(wanted)
        for number, (side, owner, _) in before.items():
            assert number == victim or after[number][:2] == (side, owner)


@pytest.mark.parametrize(
    ("algorithm", "split"),
    [*(("hidden", split) for split in SPLITS), *((name, "equal") for name in ALGORITHMS if name != "hidden")],
)
def test_the_plan_and_the_deal_stay(tmp_path: Path, algorithm: str, split: str) -> None:
    unit = "client" if algorithm == "fedavg" else "record"
    rows, wanted = table(), study(tmp_path, split, "fraction", unit, algorithm)
    texts, deals = set(), set()
    for given in (rows, CHANGES["the label"](rows, 30), CHANGES["a missing feature"](rows, 30)):
        written(tmp_path, given, split == "file")
        _, loaded = open_study(wanted)
        assert loaded.test is not None
        plan = wanted.planned(loaded.train.shape, len(loaded.test), loaded.test_public).plan
        texts.add(write_plan(plan))
        if plan.method.kind == "hidden":
            deals.add(tuple(rounds_of_units(plan, loaded.train, Entropy.from_seed(1)).tolist()))
    assert len(texts) == 1
    assert len(deals) == algorithm.startswith("hidden")


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if "secret" not in name])
@pytest.mark.parametrize("change", ["the label", "a missing feature"])
def test_nothing_published_differs_but_the_model(tmp_path: Path, algorithm: str, change: str) -> None:
    unit = "client" if algorithm == "fedavg" else "record"
    rows, wanted = table(), study(tmp_path, "column", "fraction", unit, algorithm)
    changes = {"seed": 3, "evaluation": EvaluationRequest(private=False)}  # the same noise both times; exact metrics
    wanted = Study(**{**{k: getattr(wanted, k) for k in wanted.__slots__}, **changes})
    written(tmp_path, rows, False)
    trained = [number for number, place in places(wanted)[0].items() if place[0] == "train"]
    seen = []
    for name, given in (("one", rows), ("two", CHANGES[change](rows, trained[-1]))):
        written(tmp_path, given, False)
        shutil.rmtree(tmp_path / ".fedveil", ignore_errors=True)  # books are for one data set: these are two
        folder = run_study(wanted, tmp_path / name).folder
        certificate = json.loads((folder / "certificate.json").read_text())
        certificate["released"][0].pop("sha256")
        certificate.pop("ledger")  # names the model too
        metrics = json.loads((folder / "metrics.json").read_text())
        assert "per_client" not in metrics["test"]
        assert "per_client" in json.loads((folder / "private" / "per_client.json").read_text())
        facts = {"test": sorted(metrics["test"]), "records": metrics["test"]["records"]}
        seen.append(((folder / "plan.toml").read_bytes(), certificate, facts))
    assert seen[0] == seen[1]


def summed(records: Records) -> list[Any]:
    """What every client of a full round adds up at the zero model: half of the signed rows (logistic loss)."""
    signed = np.where(np.isnan(records.targets), 0.0, 1 - 2 * records.targets)[:, None] * records.features / 2
    return [signed[records.owner == client].sum(axis=0) for client in range(records.clients)]


@pytest.mark.parametrize("split", SPLITS)
def test_one_clients_sum_moves_and_by_no_more_than_one_record(tmp_path: Path, split: str) -> None:
    rows, wanted = table(), study(tmp_path, split, "none")
    written(tmp_path, rows, split == "file")
    before = open_study(wanted)[1].train
    written(tmp_path, CHANGES["the label"](rows, 17), split == "file")
    after = open_study(wanted)[1].train
    moved = [float(np.linalg.norm(a - b)) for a, b in zip(summed(before), summed(after), strict=True)]
    assert sorted(moved)[:-1] == [0.0] * (before.clients - 1)
    assert max(moved) == pytest.approx(float(np.hypot(0.017, float(rows[17][1]))))
