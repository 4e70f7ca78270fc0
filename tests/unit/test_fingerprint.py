"""Books are about the rows of a source: what a study makes of them does not matter, any change of the rows does."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.data.arrays import records_from_arrays
from fedveil.data.cells import Texts
from fedveil.data.fingerprint import rows_of
from fedveil.data.load import load
from fedveil.data.spec import Source, Split

KEY = bytes(range(32))
NAMES = ("age", "dose", "town", "note", "ill")
ROWS = [
    ("61", "0.5", "Bern", "a", "1"),
    ("47", "", "Basel", "b, c", "0"),
    ("47", "", "Basel", "b, c", "0"),
    ("-3.0", "1e3", "Bern", "", "1"),
    ("12", "7", "Genf", "Über", "0"),
]


def written(path: Path, rows: Any = ROWS, names: tuple[str, ...] | None = NAMES) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if names is not None:
            writer.writerow(names)
        writer.writerows(rows)
    return path


def source(name: str, **changes: Any) -> Source:
    given: dict[str, Any] = {
        "source": name,
        "target": "ill",
        "classes": 2,
        "feature_bound": 1.0,
        "missing": [""],
        "fill": {"dose": 0.0},
        "ignore": ["note"],
        "categories": {"town": ["Bern", "Basel", "Genf"]},
        "scale": {"age": [0, 100], "dose": [0, 1000]},
    }
    return Source.parse({key: value for key, value in (given | changes).items() if value is not None})


def fingerprint(path: Path, split: Split | None = None, **changes: Any) -> str:
    loaded = load(
        source(path.name, **changes),
        split or Split.parse({"kind": "record"}),
        base=path.parent,
        generator=np.random.default_rng,
    )
    return loaded.fingerprint(KEY)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "data.csv")


@pytest.mark.parametrize(
    "changes",
    [
        {"feature_bound": 3.0},
        {"scale": {"age": [0, 50], "dose": [0, 10]}},
        {"ignore": ["town", "note"], "categories": None},
        {"ignore": ["note", "dose"], "fill": None, "scale": {"age": [0, 100]}},
        {"fill": {"dose": "drop-row"}},
        {"intercept": 0.0},
        {"categories": {"town": ["Genf", "Bern", "Basel"]}},
        {"client_column": "town", "categories": None},
    ],
)
def test_what_a_study_makes_of_the_rows_does_not_matter(file: Path, changes: dict[str, Any]) -> None:
    assert fingerprint(file, **changes) == fingerprint(file)


def test_neither_order_of_rows_nor_of_columns_nor_spelling_of_numbers_matters(file: Path, tmp_path: Path) -> None:
    turned = written(tmp_path / "turned.csv", ROWS[::-1])
    moved = written(tmp_path / "moved.csv", [row[::-1] for row in ROWS], NAMES[::-1])
    spelt = [("6.1e1", *ROWS[0][1:]), *ROWS[1:3], ("-3", "1000.0", *ROWS[3][2:]), ROWS[4]]
    again = written(tmp_path / "again.csv", spelt)
    assert {fingerprint(path) for path in (file, turned, moved, again)} == {fingerprint(file)}


def changed(row: int, column: int, cell: str) -> list[tuple[str, ...]]:
    rows = [list(one) for one in ROWS]
    rows[row][column] = cell
    return [tuple(one) for one in rows]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:-1],
        [*ROWS, ROWS[0]],
        [ROWS[0], *ROWS[2:]],  # one of two equal rows less
        [*ROWS[:2], *ROWS[3:], ROWS[4]],  # one pair of equal rows for another
        changed(0, 0, "62"),
        changed(3, 3, "x"),  # in a column that the study ignores
        changed(1, 1, "0"),  # a missing number is not zero
        changed(0, 4, "0"),
    ],
)
def test_other_rows_have_other_books(file: Path, tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
    other = written(tmp_path / "other.csv", rows)
    assert fingerprint(other) != fingerprint(file)


def digested(**columns: list[str]) -> str:
    return rows_of({name: Texts.of(cells) for name, cells in columns.items()}).fingerprint(KEY)


def test_two_cells_that_change_places_are_another_row(tmp_path: Path) -> None:
    first = digested(a=["1", "2"], b=["x", "y"])
    assert digested(a=["1", "2"], b=["y", "x"]) != first
    assert digested(a=["1x", "2"], b=["", "y"]) != first
    assert digested(a=["xy"], b=["z"]) != digested(a=["x"], b=["yz"])
    assert digested(a=["1"]) != digested(b=["1"])
    assert digested(a=["1"]) != digested(a=["1"], b=["0"])  # a zero adds nothing to its row, but its column counts


def test_another_key_gives_another_fingerprint(file: Path) -> None:
    rows = rows_of({"a": np.arange(5.0)})
    assert rows.fingerprint(KEY) != rows.fingerprint(KEY[::-1])
    assert rows.fingerprint(KEY) == digested(a=["4", "3", "2.0", "1", "0"])
    with pytest.raises(ValueError, match="16 to 64 secret bytes"):
        rows.fingerprint(b"short")


def test_names_that_a_study_gives_to_columns_without_a_header_do_not_matter(tmp_path: Path) -> None:
    path = written(tmp_path / "bare.csv", [(row[0], row[4]) for row in ROWS], None)
    base: dict[str, Any] = {"header": False, "fill": None, "ignore": None, "categories": None}
    named = fingerprint(path, **base, names=["age", "ill"], scale={"age": [0, 100]})
    assert named == fingerprint(path, **base, names=["years", "ill"], scale={"years": [0, 99]})


def test_many_chunks_are_like_one(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=20_000)
    texts = [f"{value!r}" for value in values.tolist()]
    order = np.random.default_rng(2).permutation(values.size)
    assert rows_of({"a": values}).fingerprint(KEY) == digested(a=[texts[i] for i in order])


def test_a_wider_statement_about_sparse_rows_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "rows.libsvm"
    path.write_text("1 1:0.5 3:1\n0 2:0.25\n")
    base = {"target": None, "fill": None, "ignore": None, "categories": None, "scale": None}
    assert fingerprint(path, **base, features=3) == fingerprint(path, **base, features=9)


def test_arrays_keep_their_books_under_another_bound_and_other_clients() -> None:
    rows = np.random.default_rng(3).normal(size=(30, 2))
    labels = (rows[:, 0] > 0).astype(int)
    made = [
        records_from_arrays(rows, labels, bound=1.0, classes=2),
        records_from_arrays(rows[::-1], labels[::-1], [1, 2, 3] * 10, bound=7.0, classes=2, intercept=0.0),
    ]
    found = {records.raw.fingerprint(KEY) for records in made if records.raw is not None}
    assert len(found) == 1
    other = records_from_arrays(rows[1:], labels[1:], bound=1.0, classes=2)
    assert other.raw is not None
    assert other.raw.fingerprint(KEY) not in found


def test_ignored_columns_of_a_parquet_file_count(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    found = []
    for number, note in enumerate(("a", "b")):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(
            arrow.table({"age": [1.0, 2.0, 3.0], "note": ["x", "y", note], "ill": [0, 1, 0]}), str(path)
        )
        base: dict[str, Any] = {"fill": None, "categories": None, "scale": {"age": [0, 9]}}
        found.append(fingerprint(path, **base))
        kept = fingerprint(path, **(base | {"ignore": None}), columns=["age"])
        assert kept == found[-1]
    assert found[0] != found[1]
    same = written(tmp_path / "same.csv", [("1", "x", "0"), ("2", "y", "1"), ("3", "a", "0")], ("age", "note", "ill"))
    assert fingerprint(same, fill=None, categories=None, scale={"age": [0, 9]}) == found[0]
