"""One table from every source: how text is cut into cells, how columns get types, and what stays out of memory."""

import gzip
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather
from pyarrow import parquet as pq

from fedveil.core.errors import BadValue
from fedveil.data import read_csv
from fedveil.data.frames import columns_of_frame
from fedveil.data.load import load
from fedveil.data.sources import chunks, open_source, read
from fedveil.data.spec import Source, Split
from fedveil.data.typed import texts_of, typed, vector_of


def source(name: str, **more: Any) -> Source:
    given = {"source": name, "target": "y", "classes": 2, "feature_bound": 9.0, "intercept": 0, **more}
    return Source.parse(given)


def cells(base: Path, text: str | bytes, name: str = "a.csv", **more: Any) -> dict[str, list[Any]]:
    """Every column of a file as it is read where nobody states its type."""
    (base / name).write_bytes(text.encode() if isinstance(text, str) else text)
    found: dict[str, list[Any]] = {}
    for one in open_source(source(name, **more), base):
        for batch in one.batches(one.names, ()):
            for title, column in batch.items():
                found.setdefault(title, []).extend(column.to_pylist())
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a,y\n1, 2 \n\n   \n3,4\n", {"a": [1.0, 3.0], "y": [2.0, 4.0]}),
        (" \n\na,y\n1,2\n", {"a": [1.0], "y": [2.0]}),
        ('a, y\nx, "p ""q"" r"\n', {"a": ["x"], "y": ['p "q" r']}),
        ('a,y\n"x, y","p\nq"\n', {"a": ["x, y"], "y": ["p\nq"]}),
        ('a,y\n5" pipe,1\n', {"a": ['5" pipe'], "y": [1.0]}),
        ("a,y\r\n1,2\r\n", {"a": [1.0], "y": [2.0]}),
        ("\ufeffa,y\n1,2\n", {"a": [1.0], "y": [2.0]}),
        ("a,y\n+1,.5\n-2e3,5.\n", {"a": [1.0, -2000.0], "y": [0.5, 5.0]}),
        ("a,y\n?, NA\n1,nan\n", {"a": [None, 1.0], "y": [None, None]}),
        ("a,y\n0x10,1_000\n", {"a": ["0x10"], "y": ["1_000"]}),
        ("a,y\ntrue,2021-03-04\nfalse,05:06\n", {"a": ["true", "false"], "y": ["2021-03-04", "05:06"]}),
        ("a,y\n007,12345678901234567\n", {"a": [7.0], "y": [12345678901234568.0]}),
        ("a,y\n1,2", {"a": [1.0], "y": [2.0]}),
    ],
)
def test_text_is_cut_into_cells(tmp_path: Path, text: str, found: dict[str, list[Any]]) -> None:
    assert cells(tmp_path, text) == found
    assert cells(tmp_path, gzip.compress(text.encode()), "a.csv.gz") == found


def test_a_text_that_comes_late_makes_the_column_one_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_csv, "_BLOCK", 64)
    lines = [f"{k},{k},{k},{k % 2}" for k in range(40)] + ["x,40,?,1", "41,y,41,0", "1.50,2,3,1"]
    text = "\n".join(["a,b,c,y", *lines]) + "\n"
    found = cells(tmp_path, text)
    assert found["c"][-3:] == [None, 41.0, 3.0]
    table, _ = read(replace(source("a.csv"), learned="all"), tmp_path)
    for name, last in (("a", ["39", "x", "41", "1.5"]), ("b", ["39", "40", "y", "2"])):
        texts = table.texts(name)
        spelt = [read_csv.usual_writing(texts.words[code], ".", None) for code in texts.codes]
        assert [str(float(word)) if word == "1.50" else word for word in spelt[-4:]] == last
    assert table.is_numbers("c")
    with pytest.raises(BadValue, match=r"a\.csv, line 42, column 'a' must be a number, got 'x'"):
        load(source("a.csv"), Split(kind="record"), base=tmp_path, generator=np.random.default_rng)


def test_columns_without_end_that_turn_into_texts_are_read_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_csv, "_BLOCK", 256)
    width, calls = 12, []
    rows = [["1"] * width for _ in range(60)]
    for place in range(width):
        rows[40 + place][place] = f"w{place}"
    (tmp_path / "a.csv").write_text("\n".join(",".join(row) for row in [[f"c{k}" for k in range(width)], *rows]))
    whole = read_csv._read
    monkeypatch.setattr(read_csv, "_read", lambda *given: calls.append(1) or whole(*given))
    one = open_source(replace(source("a.csv"), learned="all"), tmp_path)[0]
    found = [texts_of(column) for batch in one.batches(one.names, ()) for column in [batch["c11"]]]
    assert [part.words[code] for part in found for code in part.codes][51] == "w11"
    assert len(calls) <= 5


def test_a_row_longer_than_a_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_csv, "_BLOCK", 64)
    long = "x" * 500
    assert cells(tmp_path, f"a,y\n1,2\n{long},3\n") == {"a": [1.0, long], "y": [2.0, 3.0]}
    assert cells(tmp_path, f"{long},y\n1,2\n") == {long: [1.0], "y": [2.0]}
    monkeypatch.setattr(read_csv, "LINE", 128)
    with pytest.raises(BadValue, match=r"a\.csv must have lines of fewer than 128 characters"):
        cells(tmp_path, f"a,y\n1,2\n{long},3\n")


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    text = 'a,k,y\n1,"two\nlines",0\n\n   \n2,u,1\n3,"a\n\nb",0\n4,u,7\n'
    (tmp_path / "a.csv").write_text(text)
    table, _ = read(source("a.csv", ignore=["k"]), tmp_path)
    assert [table.place(row) for row in range(4)] == [f"a.csv, line {line}" for line in (2, 6, 7, 10)]
    with pytest.raises(BadValue, match=r"a\.csv, line 10, column 'y' must be one of data\.classes: 0, 1, got '7'"):
        load(source("a.csv", ignore=["k"]), Split(kind="record"), base=tmp_path, generator=np.random.default_rng)
    part = next(chunks(source("a.csv"), tmp_path, {"a": True}))
    assert part.place(3) == "a.csv, line 10"


def test_nan_is_missing_unless_the_study_says_otherwise(tmp_path: Path) -> None:
    text = "a,y\nnan,0\n2,1\n"
    assert cells(tmp_path, text)["a"] == [None, 2.0]
    assert cells(tmp_path, text, missing=["?"])["a"] == ["nan", "2"]


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    for text in ("Größe,y\n1,0\n".encode("latin-1"), "a,y\nGröße,0\n".encode("latin-1"), "a,y\nx,0\n".encode("utf-16")):
        with pytest.raises(BadValue, match=r"a\.csv(, line 1,)? must (be UTF-8 text|hold no character of code 0)"):
            cells(tmp_path, text)


@pytest.mark.parametrize("sign", ["é", '"', "\n"])
def test_delimiters_are_signs(tmp_path: Path, sign: str) -> None:
    with pytest.raises(BadValue, match=r"data\.delimiter must be one character of ASCII"):
        source("a.csv", delimiter=sign)


KINDS = {
    "whole": pa.array([1, None, 3], pa.int32()),
    "half": pa.array([0.5, None, 1.5], pa.float16()),
    "money": pa.array([Decimal("0.10"), None, Decimal("12345.67")]),
    "flag": pa.array([True, None, False]),
    "word": pa.array([" a", None, "b"], pa.large_string()),
    "kind": pa.array(["u", None, "u"]).dictionary_encode(),
    "day": pa.array([date(2021, 3, 4), None, date(1999, 1, 1)]),
    "moment": pa.array([datetime(2021, 3, 4, 5, 6, 7, 120000), None, datetime(2021, 3, 4)]),
    "abroad": pa.array([datetime(2021, 3, 4, tzinfo=UTC), None, None]),
    "none": pa.nulls(3),
}


def test_types_of_arrow_become_numbers_or_texts() -> None:
    numbers = {"whole": [1, 3], "half": [0.5, 1.5], "money": [0.1, 12345.67], "flag": [1, 0]}
    for name, (first, last) in numbers.items():
        found = vector_of(typed(KINDS[name], name, "t"))
        assert (found[0], np.isnan(found[1]), found[2]) == (first, True, last)
    assert np.isnan(vector_of(typed(KINDS["none"], "none", "t"))).all()
    texts = {
        "word": ["a", "", "b"],
        "kind": ["u", "", "u"],
        "day": ["2021-03-04", "", "1999-01-01"],
        "moment": ["2021-03-04 05:06:07.12", "", "2021-03-04 00:00:00"],
        "abroad": ["2021-03-04 00:00:00Z", "", ""],
    }
    for name, expected in texts.items():
        column = texts_of(typed(KINDS[name], name, "t"))
        assert [column.words[code] for code in column.codes] == expected
    with pytest.raises(BadValue, match="The column 'l' of t must hold numbers or texts, got 'list"):
        typed(pa.array([[1]]), "l", "t")


def test_texts_that_no_row_holds_are_not_there() -> None:
    given = pa.DictionaryArray.from_arrays(pa.array([0, 2, 0], pa.int8()), pa.array(["u", "secret", "v"]))
    assert texts_of(typed(given, "k", "t")).words == ["u", "v"]


def test_feather_is_read_as_parquet_is(tmp_path: Path) -> None:
    table = pa.table({**{name: KINDS[name] for name in ("whole", "flag", "kind", "day")}, "y": [0, 1, 0]})
    lists = table.append_column("lists", pa.array([[1], [2], [3]]))
    pq.write_table(lists, tmp_path / "a.parquet")
    feather.write_feather(lists, str(tmp_path / "a.feather"), compression="zstd", chunksize=2)
    feather.write_feather(lists, str(tmp_path / "b.arrow"), compression="uncompressed")
    rules = {"categories": {"kind": ["u"]}, "ignore": ["day"], "default_fill": 5, "fill": {"kind": "u"}}
    found = [
        load(source(name, **rules), Split(kind="record"), base=tmp_path, generator=np.random.default_rng)
        for name in ("a.parquet", "a.feather", "b.arrow")
    ]
    assert {one.fingerprint(b"k" * 16) for one in found} == {found[0].fingerprint(b"k" * 16)}
    for one in found:
        assert one.train.features.tolist() == [[1, 1, 1], [5, 5, 1], [3, 0, 1]]
    assert read(source("a.feather", **rules), tmp_path)[0].choice.whole == ("whole", "y")
    (tmp_path / "c.feather").write_bytes((tmp_path / "a.feather").read_bytes()[:-20])
    with pytest.raises(BadValue, match=r"c\.feather must be a Feather file"):
        read(source("c.feather", **rules), tmp_path)


def test_a_feather_file_that_unpacks_to_much_more_is_refused(tmp_path: Path) -> None:
    bomb = pa.table({"a": pa.array(np.zeros(40_000_000)), "y": pa.array(np.zeros(40_000_000, dtype=np.int8))})
    feather.write_feather(bomb, str(tmp_path / "a.feather"), compression="zstd", chunksize=40_000_000)
    del bomb
    with pytest.raises(BadValue, match=r"a\.feather must unpack to at most"):
        read(source("a.feather"), tmp_path)


FRAME = {
    "age": [63.0, None, 57.0, 70.0],
    "count": [1, 2, None, 4],
    "flag": [True, None, False, True],
    "ward": ["A", "B", None, "A"],
    "y": ["no", "yes", "no", "yes"],
}


def test_frames_are_the_same_table(tmp_path: Path) -> None:
    stated = {"classes": ["no", "yes"], "categories": {"ward": ["A", "B"]}, "default_fill": 0, "fill": {"ward": "A"}}
    pl.DataFrame(FRAME).write_csv(tmp_path / "a.csv")
    pl.DataFrame(FRAME).write_parquet(tmp_path / "a.parquet")
    pandas = pd.DataFrame(FRAME)
    frames: list[Any] = [FRAME, pandas, pandas.convert_dtypes(), pl.DataFrame(FRAME), pa.table(FRAME)]
    frames += [pandas.astype({"ward": "category"}), {name: np.array(column) for name, column in FRAME.items()}]
    found = []
    for frame in frames:
        given = Source.of(source="frame", target="y", feature_bound=9.0, frame=columns_of_frame(frame), **stated)
        found.append(load(given, Split(kind="record"), base=tmp_path, generator=np.random.default_rng))
    stated["categories"] = {"ward": ["A", "B"]}
    found.append(
        load(
            source("a.parquet", **{**stated, "intercept": 1.0}),
            Split(kind="record"),
            base=tmp_path,
            generator=np.random.default_rng,
        )
    )
    assert {one.train.fingerprint(b"k" * 16) for one in found} == {found[0].train.fingerprint(b"k" * 16)}
    flags = {**stated, "ignore": ["flag"]}
    text = load(source("a.csv", **flags), Split(kind="record"), base=tmp_path, generator=np.random.default_rng)
    assert {one.fingerprint(b"k" * 16) for one in (*found, text)} == {text.fingerprint(b"k" * 16)}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1, "x", None], ["1", "x", ""]),
        ([True, "x", 2.5], ["1", "x", "2.5"]),
        ([date(2021, 3, 4), None, None], ["2021-03-04", "", ""]),
        ([float("nan"), "x", "nan"], ["", "x", "nan"]),
    ],
)
def test_objects_of_several_kinds_are_texts(column: list[Any], expected: list[str]) -> None:
    given = Source.of(source="frame", target="y", classes=2, feature_bound=1.0, frame={"a": column, "y": [0, 1, 0]})
    texts = read(given, Path())[0].texts("a")
    assert [texts.words[code] for code in texts.codes] == expected


def test_columns_that_are_left_out_are_read_again_for_the_fingerprint_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_csv, "_BLOCK", 2048)
    lines = [f"{k},{k % 7},{'u' if k % 3 else 'v'},{k % 2}" for k in range(2000)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,c,y", *lines]))
    table, _ = read(source("a.csv", columns=["a"]), tmp_path)
    assert table.cells.column_names == ["a", "y"]
    parts = list(table.raw.parts())
    assert len(parts) > 5
    assert {tuple(sorted(part)) for part in parts} == {("a", "b", "c", "y")}
    whole, _ = read(source("a.csv", categories={"c": ["u", "v"]}), tmp_path)
    assert len(list(whole.raw.parts())) == 1
    assert whole.raw.fingerprint(b"k" * 16) == table.raw.fingerprint(b"k" * 16)


def test_reading_text_does_not_load_pandas(tmp_path: Path) -> None:
    """It would take longer than the tables that most people have."""
    (tmp_path / "a.csv").write_text("a,k,y\n1,u,0\n,v,1\n")
    code = (
        "import sys; from pathlib import Path; from fedveil.data.sources import read; "
        "from fedveil.data.spec import Source; "
        "t, _ = read(Source.of(source='a.csv', target='y', classes=2, feature_bound=1.0, learned='all'), Path()); "
        "t.texts('k'); t.numbers('a', ()); t.raw.fingerprint(b'k' * 16); assert 'pandas' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
