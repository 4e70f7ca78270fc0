"""Tables with the same values have the same fingerprint, however they are written; tables with others do not."""

import csv
import math
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather
from pyarrow import parquet as pq

from fedveil.data import fingerprint as module
from fedveil.data.cells import Texts
from fedveil.data.fingerprint import PRIME, RawRows, rows_of
from fedveil.data.sources import open_source, read
from fedveil.data.spec import Source

KEY = b"key of fingerprints"
COLUMNS: dict[str, Callable[[random.Random], Any]] = {
    "whole": lambda draw: draw.randrange(-50, 10**6),
    "real": lambda draw: draw.gauss(0, 1) * 10 ** draw.randrange(-30, 30),
    "flag": lambda draw: draw.random() < 0.5,
    "word": lambda draw: draw.choice(["A", "b c", "d,e", 'say "hi"', "two\nlines", "Über", "x;y"]),
    "mixed": lambda draw: draw.choice(["A", "7", "1.50", "x"]),
    "day": lambda draw: f"20{draw.randrange(10, 25)}-0{draw.randrange(1, 10)}-1{draw.randrange(10)}",
}


def made(draw: random.Random, rows: int) -> dict[str, list[Any]]:
    """A random table: some of the columns, with gaps; the last is a number in every row."""
    names = draw.sample(list(COLUMNS), draw.randrange(1, len(COLUMNS) + 1))
    table = {name: [None if draw.random() < 0.2 else COLUMNS[name](draw) for _ in range(rows)] for name in names}
    return {**table, "y": [draw.randrange(2) for _ in range(rows)]}


def fingerprint(base: Path, name: str, **stated: Any) -> str:
    """Of a source that leaves all types open; every other time some columns are left out, and read again."""
    source = Source.of(source=name, target="y", classes=2, feature_bound=1.0, learned="all", **stated)
    whole = read(source, base)[0].raw.fingerprint(KEY)
    parts = [one.rows().fingerprint(KEY) for one in open_source(source, base)]
    assert [whole] == parts
    return whole


def spelt(draw: random.Random, cell: Any) -> str:
    """A cell of text: numbers in one of their spellings."""
    if cell is None:
        return draw.choice(["", "?", "NA", "nan"])
    if isinstance(cell, bool):
        return draw.choice([str(cell), str(cell).lower(), str(int(cell))])
    if isinstance(cell, int):
        return draw.choice([f"{cell}", f"{cell}.0", f" {cell} ", f"{cell}e0", f"{cell:+d}"])
    return draw.choice([repr(cell), f"{cell:.17e}"]) if isinstance(cell, float) else cell


def write_text(draw: random.Random, path: Path, table: dict[str, list[Any]], sign: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=sign, quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        writer.writerow(table)
        writer.writerows([spelt(draw, cell) for cell in row] for row in zip(*table.values(), strict=True))


def write_database(path: Path, table: dict[str, list[Any]]) -> None:
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    with database:
        database.execute(f"CREATE TABLE t ({', '.join(table)})")
        marks = ", ".join("?" * len(table))
        database.executemany(f"INSERT INTO t VALUES ({marks})", zip(*table.values(), strict=True))
    database.close()


def shuffled(draw: random.Random, table: dict[str, list[Any]]) -> dict[str, list[Any]]:
    order, names = list(range(len(table["y"]))), list(table)
    draw.shuffle(order)
    draw.shuffle(names)
    return {name: [table[name][row] for row in order] for name in names}


def test_delimiters_orders_spellings_and_formats_do_not_matter(tmp_path: Path) -> None:
    draw = random.Random("formats")
    for _ in range(60):
        table = made(draw, draw.choice([1, 2, 7, 40]))
        arrow = pa.table({name: pa.array(column) for name, column in shuffled(draw, table).items()})
        pq.write_table(arrow, tmp_path / "a.parquet", row_group_size=3)
        feather.write_feather(arrow, str(tmp_path / "a.feather"), chunksize=5)
        write_database(tmp_path / "a.db", shuffled(draw, table))
        write_text(draw, tmp_path / "a.csv", table, ",")
        write_text(draw, tmp_path / "b.csv", shuffled(draw, table), ";")
        write_text(draw, tmp_path / "c.tsv", shuffled(draw, table), "\t")
        frame = Source.of(
            source="frame", target="y", classes=2, feature_bound=1.0, learned="all", frame=dict(shuffled(draw, table))
        )
        found = {
            "csv": fingerprint(tmp_path, "a.csv"),
            "semicolons": fingerprint(tmp_path, "b.csv", delimiter=";"),
            "tabs": fingerprint(tmp_path, "c.tsv"),
            "parquet": fingerprint(tmp_path, "a.parquet"),
            "feather": fingerprint(tmp_path, "a.feather"),
            "database": fingerprint(tmp_path, "sqlite:///a.db", query="SELECT * FROM t"),
            "frame": read(frame, tmp_path)[0].raw.fingerprint(KEY),
        }
        assert len(set(found.values())) == 1, (table, found)


def test_any_other_table_has_another_fingerprint(tmp_path: Path) -> None:
    draw = random.Random("others")
    for _ in range(120):
        table = made(draw, draw.choice([2, 5, 30]))
        write_text(draw, tmp_path / "a.csv", table, ",")
        before = fingerprint(tmp_path, "a.csv")
        other, how = {name: list(column) for name, column in table.items()}, draw.randrange(4)
        name, row = draw.choice(list(other)), draw.randrange(len(other["y"]))
        if how == 0:  # one cell
            other[name][row] = 123.25 if other[name][row] is None else None
        elif how == 1:  # a row less
            other = {title: column[:row] + column[row + 1 :] for title, column in other.items()}
        elif how == 2:  # a row twice
            other = {title: [*column, column[row]] for title, column in other.items()}
        else:  # a column of another name
            other = {f"{title}'" if title == name else title: column for title, column in other.items()}
        if other["y" if "y" in other else "y'"]:
            write_text(draw, tmp_path / "b.csv", other, ",")
            source = Source.of(source="b.csv", target="y", classes=2, feature_bound=1.0, learned="all")
            assert open_source(source, tmp_path)[0].rows().fingerprint(KEY) != before, (table, other)


cells = st.one_of(st.floats(allow_nan=True, width=64), st.sampled_from([0.0, -0.0, 1.0, math.nan]))


@given(rows=st.lists(st.tuples(cells, cells, st.sampled_from(["", "a", "b", "1", "1.0"])), min_size=1, max_size=30))
def test_numbers_and_their_texts_are_one(rows: list[tuple[float, float, str]]) -> None:
    first, second, third = zip(*rows, strict=True)
    numbers = rows_of({"a": np.array(first), "b": np.array(second), "c": Texts.of(third)})
    texts = rows_of({"a": Texts.of(map(repr, first)), "b": Texts.of(map(repr, second)), "c": Texts.of(third)})
    assert numbers.fingerprint(KEY) == texts.fingerprint(KEY)
    assert numbers.found_in(texts) == texts.found_in(numbers) == len(rows)


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12), cut=st.integers(0, 12))
def test_equal_rows_are_counted(rows: list[tuple[int, int]], cut: int) -> None:
    whole = [*rows, (0, 0)]
    one, other = whole[: cut + 1], whole[cut:] or [(0, 0)]
    tables = [
        rows_of({"a": np.array([a for a, _ in part]), "b": Texts.of(b for _, b in part)}) for part in (one, other)
    ]
    assert tables[0].found_in(tables[1]) == sum(row in other for row in one)
    assert (tables[0].fingerprint(KEY) == tables[1].fingerprint(KEY)) == (sorted(one) == sorted(other))


def test_parts_are_as_good_as_the_whole() -> None:
    draw = np.random.default_rng(5)
    numbers, words = draw.normal(size=100_000), draw.integers(0, 5, 100_000)
    table = {"a": numbers, "b": Texts(list("uvwxy"), words)}
    parts = RawRows(
        lambda: (
            {"a": numbers[k : k + 7000], "b": Texts(list("uvwxy"), words[k : k + 7000])}
            for k in range(0, 100_000, 7000)
        )
    )
    assert rows_of(table).fingerprint(KEY) == parts.fingerprint(KEY)


@given(values=st.lists(st.integers(0, PRIME), min_size=1, max_size=40), factor=st.integers(0, PRIME - 1))
def test_arithmetic_is_modulo_the_prime(values: list[int], factor: int) -> None:
    array = np.array(values, dtype=np.uint64)
    other = np.roll(array, 1)
    short = array & np.uint64(2**32 - 1)
    product = 1
    for value in values:
        product = product * value % PRIME
    assert module._product(array) == product
    for found, expected in (
        (module._multiplied(array, other), [a * b for a, b in zip(values, other.tolist(), strict=True)]),
        (module._times(short, factor), [a * factor for a in short.tolist()]),
        (module._added(array, other), [a + b for a, b in zip(values, other.tolist(), strict=True)]),
    ):
        assert [one % PRIME for one in found.tolist()] == [one % PRIME for one in expected]
        assert max(found.tolist()) <= PRIME


@pytest.mark.parametrize("swap", [(0, 1), (0, 2), (1, 2)])
def test_cells_do_not_wander_between_rows(swap: tuple[int, int]) -> None:
    """A sum of linear forms would not notice."""
    first, second = np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])
    moved = second.copy()
    moved[list(swap)] = moved[list(swap)[::-1]]
    assert rows_of({"a": first, "b": second}).fingerprint(KEY) != rows_of({"a": first, "b": moved}).fingerprint(KEY)
