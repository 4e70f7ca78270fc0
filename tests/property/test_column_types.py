"""No single record, and no single client where clients are protected, changes what a plan knows of the columns.

Of two data sets that differ in one unit, either both have the same columns, or one of them is refused.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedveil.core.errors import FedveilError
from fedveil.jobs.entry import Wish, draft_study
from fedveil.jobs.local import open_any_study, plan_study
from fedveil.planning.plan import write_plan

ODD = ["", "x", "Anna", "7", "-1.5", "1e300", "3,5", "1,234", "1.234,5", "2021-03-04", "04.03.2021", "yes", "nan", "?"]
ODD += ['"a\nb"', '"a,b"', '"say ""hi"""', "0", "0.30000000000000004", "TRUE", " 5 ", "12 000"]
KINDS: dict[str, Callable[[random.Random], str]] = {
    "empty": lambda draw: "",
    "whole": lambda draw: str(draw.randrange(100)),
    "decimal": lambda draw: f"{draw.gauss(0, 10):.3f}",
    "comma": lambda draw: f'"{draw.randrange(50)},{draw.randrange(10)}"',
    "thousands": lambda draw: f'"{draw.randrange(1, 50)},{draw.randrange(100, 999)}"',
    "word": lambda draw: draw.choice("ABC"),
    "date": lambda draw: f"2021-03-{draw.randrange(1, 29):02d}",
    "odd": lambda draw: draw.choice(ODD[:10]),
}


def table(draw: random.Random, rows: int) -> list[list[str]]:
    """Columns of a kind each, of which a cell may be missing or strange; the last two: a client and a label."""
    made = [draw.choice(list(KINDS)) for _ in range(3)]
    found = []
    for row in range(rows):
        cells = [KINDS[kind](draw) if draw.random() < 0.9 else "" for kind in made]
        cells = [draw.choice(ODD) if draw.random() < 0.03 else cell for cell in cells]
        found.append([*cells, f"c{row % 3}", draw.choice(["no", "yes"])])
    return found


def other_unit(draw: random.Random, rows: list[list[str]], client: str | None) -> list[list[str]]:
    """The same rows but for one record, or for all records of one client: other cells, or none at all."""
    place, blank = draw.randrange(len(rows)), draw.random() < 0.3
    changed = []
    for row, (*cells, owner, label) in enumerate(rows):
        if (row == place) if client is None else (owner == client):
            cells = ["" if blank else draw.choice([*ODD, cell]) for cell in cells]
        changed.append([*cells, owner, label])
    return changed


def written(path: Path, rows: list[list[str]]) -> Path:
    quoted = [[cell if cell[:1] == '"' or "," not in cell else f'"{cell}"' for cell in row] for row in rows]
    path.write_text("\n".join([",".join(["a", "b", "c", "site", "ill"]), *map(",".join, quoted)]) + "\n")
    return path


def study(path: Path, unit: str, **more: Any) -> dict[str, Any]:
    return {
        "data": {"source": str(path), "target": "ill", "classes": ["no", "yes"], "client_column": "site", **more},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 2.0, "delta": 1e-3, "unit": unit},
        "algorithm": {"kind": "fedavg" if unit == "client" else "dpsgd"},
        "prepare": {"kind": "private"},
    }


def public(path: Path, unit: str) -> Any:
    """All that a plan is made from, or None where the data are refused."""
    try:
        _, found = open_any_study(study(path, unit))
    except FedveilError:
        return None
    return found.outline, found.shape(found.outline)  # type: ignore[union-attr]


@pytest.mark.parametrize("unit", ["record", "client"])
def test_one_unit_changes_no_plan(tmp_path: Path, unit: str) -> None:
    draw, both = random.Random(f"plans {unit}"), 0
    for _ in range(250):
        rows = table(draw, draw.choice([4, 6, 9]))
        near = other_unit(draw, rows, "c1" if unit == "client" else None)
        first = public(written(tmp_path / "a.csv", rows), unit)
        second = public(written(tmp_path / "a.csv", near), unit)
        if first is not None and second is not None:
            both += 1
            assert first == second, (rows, near)
    assert both > 20


@pytest.mark.parametrize("unit", ["record", "client"])
def test_one_unit_changes_no_draft_that_nobody_is_asked_about(tmp_path: Path, unit: str) -> None:
    """A profile publishes its plan, and refuses what a draft asks about."""
    draw, both = random.Random(f"drafts {unit}"), 0
    for _ in range(400):
        rows = table(draw, draw.choice([5, 7, 12]))
        near = other_unit(draw, rows, "c1" if unit == "client" else None)
        found = []
        for given in (rows, near):
            path = written(tmp_path / "a.csv", given)
            wish = Wish(data=str(path), target="ill", classes=("no", "yes"), client_column="site", unit=unit)
            try:
                draft, _ = draft_study(wish)
                found.append(None if draft.doubts else draft.text())
            except FedveilError:
                found.append(None)
        if None not in found:
            both += 1
            assert found[0] == found[1], (rows, near)
    assert both > 20


@pytest.mark.parametrize("cell", ["Anna", "7", "1e300", "", '"a\nb"', "0.30000000000000004", "2021-03-04", '"a,b"'])
@pytest.mark.parametrize("column", [[""] * 8, list("12345678"), list("ABABABAB"), ["1.5"] * 8])
def test_plans_of_files_that_differ_in_one_cell_are_the_same_or_refused(
    tmp_path: Path, cell: str, column: list[str]
) -> None:
    plans = []
    for last in (column[-1], cell):
        rows = [[str(k), c, "1", "north", "no" if k % 2 else "yes"] for k, c in enumerate([*column[:-1], last])]
        try:
            tables = {**study(written(tmp_path / "a.csv", rows), "record"), "study": {"name": "s"}}
            tables["algorithm"] = {"kind": "dpsgd", "rate": 0.5, "rounds": 2, "noise_multiplier": 5.0}
            plans.append(write_plan(plan_study(tables).plan))
        except FedveilError as error:
            plans.append(str(error))
    assert plans[0]
    assert not (tmp_path / ".fedveil").exists()
    assert plans[1] == plans[0] or ("olumn" in plans[1] and "[plan]" not in plans[1])
