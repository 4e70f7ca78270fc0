"""Every format is read from a real file, and every fault of a file is named with its place."""

import gzip
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedveil.core.errors import BadValue
from fedveil.data.load import Loaded, load
from fedveil.data.spec import Source, Split

RECORD = Split(kind="record")


def loaded(base: Path, split: Split = RECORD, **table: Any) -> Loaded:
    stated = {"feature_bound": 100.0, "intercept": 0, **table}
    return load(Source.parse(stated), split, base=base, generator=np.random.default_rng)


def csv(base: Path, text: str, split: Split = RECORD, **table: Any) -> Loaded:
    (base / "a.csv").write_text(text)
    return loaded(base, split, **{"source": "a.csv", "target": "y", "classes": 2, **table})


def refused(sentence: str) -> Any:
    return pytest.raises(BadValue, match=sentence)


def test_plain_csv(tmp_path: Path) -> None:
    found = csv(tmp_path, '\ufeffa,"b ",y\r\n1, 2.5,0\r\n\r\n"-3",4e1,1.0\r\n')
    assert found.feature_names == ("a", "b")
    assert found.train.features.tolist() == [[1, 2.5], [-3, 40]]
    assert found.train.targets.tolist() == [0, 1]
    assert (found.test, found.dropped_rows, found.train.clients) == (None, 0, 2)


def test_gzip_tabs_and_chosen_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"a\tid\tb\ty\n1\tx\t2\tno\n3\ty\t4\tyes\n"))
    found = loaded(tmp_path, source="a.tsv.gz", target="y", classes=["no", "yes"], columns=["b", "a"])
    assert found.feature_names == ("b", "a")
    assert found.train.features.tolist() == [[2, 1], [4, 3]]
    same = loaded(tmp_path, source="a.tsv.gz", target="y", classes=["yes", "no"], ignore=["id", "a"])
    assert same.train.features.tolist() == [[2], [4]]
    assert same.train.targets.tolist() == [1, 0]


def test_csv_without_header(tmp_path: Path) -> None:
    for target, names in ((1, []), (-1, []), ("1", []), ("y", ["a", "y"])):
        found = csv(tmp_path, "1,0\n2,1\n", header=False, target=target, names=names)
        assert found.train.features.tolist() == [[1], [2]]
        assert found.feature_names == (names[0] if names else "0",)


def test_many_rows_are_read_in_chunks(tmp_path: Path) -> None:
    rows = 45_001
    text = "a,k,y\n" + "".join(f"{i % 90},{'u' if i % 2 else 'v'},{i % 2}\n" for i in range(rows))
    found = csv(tmp_path, text, categories={"k": ["u", "v"]})
    assert found.train.features[:, 0].tolist() == [i % 90 for i in range(rows)]
    assert found.train.features[:, 1].tolist() == found.train.targets.tolist()
    bad = text.replace("\n7,u,1\n", "\nseven,u,1\n")
    with refused(r"a\.csv, line 9, column 'a' must be a number, got 'seven'"):
        csv(tmp_path, bad, categories={"k": ["u", "v"]})


@pytest.mark.parametrize(
    ("text", "table", "sentence"),
    [
        ("", {}, r"a\.csv must hold at least one row, got 'an empty file'"),
        ("a,y\n", {}, r"a\.csv must hold at least one row"),
        ("a,y\n1,0\n1\n", {}, r"a\.csv, line 3, must have 2 cells, got 1"),
        ("a,y\n1,0,5\n", {}, r"line 2, must have 2 cells, got 3"),
        ("a,a,y\n1,2,0\n", {}, r"different names, got 'a'"),
        ("a,Y\n1,0\n", {}, r"data\.target must be a column of a\.csv, got 'y'"),
        ("a,y\n1,0\n", {"target": None}, r"data\.target must name the column of a\.csv to predict"),
        ("a,y\n1,0\n", {"target": 1}, r"data\.target must be a column's name when the file has a header"),
        ("1,0\n", {"target": 2, "header": False}, r"less than the number of columns, 2"),
        ("1,0\n", {"header": False, "names": ["y"]}, r"data\.names must name all 2 columns"),
        ("y\n1\n", {}, r"leave at least one feature"),
        ("age,y\n1,0\n", {"columns": ["aged"]}, r"data\.columns must name columns of a\.csv.*Did you mean age\?"),
        ("a,y\n1,0\n", {"columns": ["a", "y"]}, r"name neither the target nor the client column"),
        ("a,y\n1,0\n", {"ignore": ["b"]}, r"data\.ignore must name columns"),
        ("a,y\n1,0\n", {"scale": {"b": [0, 1]}}, r"data\.scale must name columns"),
        ("a,y\n1,0\n", {"fill": {"b": 1}}, r"data\.fill must name columns"),
        ("a,y\n1,0\n", {"categories": {"b": ["x"]}}, r"data\.categories must name columns"),
        ("a,y\n1,0\n", {"client_column": "b"}, r"data\.client_column must name columns"),
        ("a,y\n1,0\n", {"client_column": "y"}, r"data\.client_column must differ from data\.target"),
        ("a,b,y\n1,1,0\n", {"ignore": ["b"], "scale": {"b": [0, 1]}}, r"give rules for features only, got 'b'"),
        ("a,y\n1,0\n", {"scale": {"y": [0, 1]}}, r"give rules for features only, got 'y'"),
        ("a,y\n1,0\n", {"fill": {"y": 1}}, r"data\.fill\.y must be \"refuse\" or \"drop-row\""),
        ("a,y\nx,0\n", {}, r"a\.csv, line 2, column 'a' must be a number, got 'x'"),
        ("a,y\n1_000,0\n", {}, r"line 2, column 'a' must be a number, got '1_000'"),
        ("a,y\n1,0\ninf,0\n", {}, r"line 3, column 'a' must be a finite number, got inf"),
        ("a,y\n1e999,0\n", {}, r"line 2, column 'a' must be a finite number"),
        ("a,y\nnan,0\n", {"missing": ["?"]}, r"line 2, column 'a' must be a number, got 'nan'"),
        ("a,y\n1,0\n?,1\n", {}, r"line 3, column 'a' must not be missing.*State data\.fill\.a"),
        ("a,y\n1,2\n", {}, r"a\.csv, line 2, column 'y' must be one of data\.classes: 0, 1, got '2'"),
        ("a,y\n1,0.5\n", {}, r"column 'y' must be one of data\.classes"),
        ("a,y\n1,\n", {}, r"line 2, column 'y' must not be missing"),
        ("a,y\n1,\n", {"default_fill": 0.0}, r"line 2, column 'y' must not be missing"),
        ("a,y\n1,\n", {"default_fill": "drop-row"}, r"at least one row without a missing value"),
        (
            "a,y\nz,0\n",
            {"categories": {"a": ["x", "w"]}},
            r"line 2, column 'a' must be one of data\.categories\.a: x, w",
        ),
        ("a,y\n?,0\n", {"categories": {"a": ["x"]}, "default_fill": 0.0}, r"column 'a' must not be missing"),
        ('a,y\n2,1\n"1,0\n3,1\n', {}, r"a\.csv, line 3 or after, must be separated text: unexpected end of data"),
        ("a,y\n1,x\n", {"classes": None, "target_scale": [0, 1]}, r"column 'y' must be a number, got 'x'"),
        ("a,y\n1,1\n", {"labels": "b"}, r"data\.labels must go with a file of images"),
    ],
)
def test_a_bad_csv_is_refused_by_its_place(tmp_path: Path, text: str, table: dict[str, Any], sentence: str) -> None:
    with refused(sentence):
        csv(tmp_path, text, **table)


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    with refused(r"a\.csv, line 5, column 'a' must be a number, got 'x'"):
        csv(tmp_path, 'a,b,y\n1,"two\nlines",0\n\nx,u,0\n', ignore=["b"])


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with refused(r"none\.csv must be a file, but there is none"):
        loaded(tmp_path, source="none.csv", target="y", classes=2)
    (tmp_path / "a.what").write_text("1")
    with refused(r"data\.format must be given for a\.what"):
        loaded(tmp_path, source="a.what", target="y", classes=2)
    (tmp_path / "a.csv").write_bytes(b"a,y\n\xff\xfe,0\n")
    with refused(r"a\.csv must be UTF-8 text"):
        loaded(tmp_path, source="a.csv", target="y", classes=2)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"a,y\n" + bytes(range(48, 58)) * 999)[:-20])
    with refused(r"b\.csv\.gz must be a whole gzip file"):
        loaded(tmp_path, source="b.csv.gz", target="y", classes=2)
    (tmp_path / "c.csv.gz").write_bytes(b"a,y\n1,0\n")
    with refused(r"c\.csv\.gz must be a whole gzip file"):
        loaded(tmp_path, source="c.csv.gz", target="y", classes=2)
    with refused(r"data\.source must be a folder when data\.format is \"folder\""):
        loaded(tmp_path, source="a.csv", target="y", classes=2, format="folder")


def test_libsvm(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("+1 1:2 4:-0.5 # note\n\n-1\n# only a note\n1 2:1e1\n")
    found = loaded(tmp_path, source="a.svm", features=4, classes=[-1, 1])
    assert found.train.features.tolist() == [[2, 0, 0, -0.5], [0, 0, 0, 0], [0, 10, 0, 0]]
    assert found.train.targets.tolist() == [1, 0, 1]
    assert found.feature_names == ("1", "2", "3", "4")
    assert loaded(tmp_path, source="a.svm", features=4, label_above=0, columns=["4"]).feature_names == ("4",)


@pytest.mark.parametrize(
    ("text", "table", "sentence"),
    [
        ("1 1:1\n", {"features": None}, r"data\.features must state how many features"),
        ("1 1:1\n", {"target": "y"}, r"data\.target must be left out"),
        ("1 5:1\n", {}, r"a\.svm, line 1 must hold index:value pairs.*data\.features \(4\).*got '5:1'"),
        ("1 0:1\n", {}, r"got '0:1'"),
        ("1 2:1 1:1\n", {}, r"got '1:1'"),
        ("1 1:1 1:1\n", {}, r"got '1:1'"),
        ("1 1:1:2\n", {}, r"got '1:1:2'"),
        ("1 1\n", {}, r"got '1'"),
        ("1 1:\n", {}, r"got '1:'"),
        ("1 x:1\n", {}, r"got 'x:1'"),
        ("1 1:nan\n", {}, r"got '1:nan'"),
        ("1 1:1_0\n", {}, r"got '1:1_0'"),
        ("-1 1:1\n1 1:-inf\n", {}, r"line 2 must hold.*got '1:-inf'"),
        ("x 1:1\n", {}, r"column 'label' must be a number, got 'x'"),
        ("2 1:1\n", {}, r"a\.svm, record 1, label must be one of data\.classes: -1, 1, got '2'"),
        ("\n", {}, r"a\.svm must hold at least one row"),
    ],
)
def test_bad_libsvm_is_refused_by_its_place(tmp_path: Path, text: str, table: dict[str, Any], sentence: str) -> None:
    (tmp_path / "a.svm").write_text(text)
    with refused(sentence):
        loaded(tmp_path, **{"source": "a.svm", "features": 4, "classes": [-1, 1], **table})


def idx(values: np.ndarray[Any, Any], kind: int) -> bytes:
    head = bytes([0, 0, kind, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return head + values.tobytes()


@pytest.mark.parametrize(
    ("kind", "dtype"), [(8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
def test_idx(tmp_path: Path, kind: int, dtype: str) -> None:
    images = np.arange(12, dtype=dtype).reshape(3, 2, 2)
    (tmp_path / "images-ubyte.gz").write_bytes(gzip.compress(idx(images, kind)))
    (tmp_path / "labels-ubyte").write_bytes(idx(np.array([2, 0, 1], dtype=">u1"), 8))
    found = loaded(tmp_path, source="images-ubyte.gz", labels="labels-ubyte", classes=3)
    assert found.train.features.tolist() == images.reshape(3, 4).tolist()
    assert found.train.targets.tolist() == [2, 0, 1]


def test_bad_idx_is_refused(tmp_path: Path) -> None:
    good = idx(np.zeros((2, 3), dtype=">u1"), 8)
    (tmp_path / "l.idx").write_bytes(idx(np.zeros(2, dtype=">u1"), 8))
    for name, content, sentence in (
        ("magic", b"\1" + good[1:], "begin as an IDX file does"),
        ("kind", b"\0\0\7" + good[3:], "begin as an IDX file does"),
        ("empty", b"", "begin as an IDX file does"),
        ("head", good[:6], "state all its dimensions"),
        ("short", good[:-1], r"have 18 bytes, as its head says, got 17"),
        ("long", good + b"\0", r"have 18 bytes, as its head says, got 19"),
        ("flat", idx(np.zeros(2, dtype=">u1"), 8), "hold an array of rows or images"),
        ("more", idx(np.zeros((3, 3), dtype=">u1"), 8), "have the same number of records"),
        ("none", idx(np.zeros((0, 3), dtype=">u1"), 8), "have the same number of records"),
    ):
        (tmp_path / f"{name}.idx").write_bytes(content)
        with refused(sentence):
            loaded(tmp_path, source=f"{name}.idx", labels="l.idx", classes=2)
    with refused(r"data\.labels must name the file with the labels of l\.idx"):
        loaded(tmp_path, source="l.idx", classes=2)
    with refused(r"absent\.idx must be a file, but there is none"):
        loaded(tmp_path, source="l.idx", labels="absent.idx", classes=2)


def test_npz(tmp_path: Path) -> None:
    site = np.array(["b", "a", "b"])
    np.savez(tmp_path / "a.npz", X=np.arange(6).reshape(3, 2), age=[1.5, 2, 3], y=[True, False, True], site=site)
    column = Split(kind="column")
    found = loaded(tmp_path, column, source="a.npz", target="y", classes=2, client_column="site")
    assert found.feature_names == ("0", "1", "age")
    assert found.train.features.tolist() == [[0, 1, 1.5], [2, 3, 2], [4, 5, 3]]
    assert (found.train.names, found.train.owner.tolist()) == (("a", "b"), [1, 0, 1])
    assert found.train.targets.tolist() == [1, 0, 1]


def test_bad_npz_is_refused(tmp_path: Path) -> None:
    y = np.array([0, 1])
    archives: dict[str, tuple[dict[str, Any], str]] = {
        "lengths": ({"X": np.zeros((3, 2)), "y": y}, "have the same length"),
        "square": ({"A": np.zeros((2, 2)), "y": y}, "be one-dimensional, or named X"),
        "single": ({"a": np.float64(1), "y": y}, "have one value a row"),
        "object": ({"a": np.array([1, None]), "y": y}, "NumPy archive of plain arrays"),
        "dates": ({"a": np.array(["2020", "2021"], dtype="M8[Y]"), "y": y}, "hold numbers or texts"),
        "complex": ({"a": np.array([1j, 2]), "y": y}, "hold numbers or texts"),
        "taken": ({"X": np.zeros((2, 2)), "1": y, "y": y}, "not be named as a column of X"),
        "inf": (
            {"a": np.array([1, -np.inf]), "y": y},
            r"inf\.npz, row 2, column 'a' must be a finite number, got -inf",
        ),
        "nan": ({"a": np.array([1, np.nan]), "y": y}, r"nan\.npz, row 2, column 'a' must not be missing"),
        "text": ({"a": np.array(["1", "x"]), "y": y}, r"text\.npz, row 2, column 'a' must be a number, got 'x'"),
        "labels": ({"a": y, "y": np.array([0, np.nan])}, r"row 2, column 'y' must not be missing"),
        "empty": ({"a": y[:0], "y": y[:0]}, r"hold at least one row"),
    }
    for name, (arrays, sentence) in archives.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with refused(sentence):
            loaded(tmp_path, source=f"{name}.npz", target="y", classes=2)
    (tmp_path / "junk.npz").write_bytes(b"junk")
    with refused(r"junk\.npz must be a NumPy archive"):
        loaded(tmp_path, source="junk.npz", target="y", classes=2)
    np.save(tmp_path / "one.npy", y)
    with refused(r"one\.npy must be an archive of arrays"):
        loaded(tmp_path, source="one.npy", format="npz", target="y", classes=2)
    with refused(r"no\.npz must be a file"):
        loaded(tmp_path, source="no.npz", target="y", classes=2)


def test_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array([1, 2, None], pa.int32()),
            "x": pa.array([0.5, None, 1.5], pa.float32()),
            "flag": pa.array([True, False, None]),
            "kind": pa.array(["u", None, "v"]).dictionary_encode(),
            "when": pa.array([1, 2, 3], pa.timestamp("s")),
            "y": pa.array(["no", "yes", "no"], pa.large_string()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    rules = {"fill": {"n": 9, "kind": "v"}, "default_fill": 7, "categories": {"kind": ["u", "v"]}}
    stated = {"source": "a.parquet", "target": "y", "classes": ["no", "yes"], **rules}
    found = loaded(tmp_path, ignore=["when"], **stated)
    assert found.feature_names == ("n", "x", "flag", "kind=u", "kind=v")
    assert found.train.features.tolist() == [[1, 0.5, 1, 1, 0], [2, 7, 0, 0, 1], [9, 1.5, 7, 0, 1]]
    with refused(r"a\.parquet, row 1, column 'when' must be a number, got '1970-01-01 00:00:01'"):
        loaded(tmp_path, **stated)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no PAR1")
    with refused(r"b\.parquet must be a Parquet file"):
        loaded(tmp_path, **{**stated, "source": "b.parquet"})
    with refused(r"c\.parquet must be a file"):
        loaded(tmp_path, **{**stated, "source": "c.parquet"})


def test_a_library_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with refused("need scikit-learn"):
        loaded(tmp_path, source="sklearn:wine", classes=3)


def test_a_folder_is_one_file_a_client(tmp_path: Path) -> None:
    folder = tmp_path / "sites"
    folder.mkdir()
    (folder / "b.va.data").write_text("1,?,0\n2,5,3\n")
    (folder / "a.data").write_text("3.0,6,1\n")
    (folder / ".hidden.data").write_text("junk")
    (folder / "notes.md").write_text("junk")
    stated = {"source": "sites", "files": "*.data", "header": False, "target": -1, "label_above": 0}
    found = loaded(tmp_path, Split(kind="file"), **stated, default_fill=4)
    assert found.train.names == ("a", "b.va")
    assert found.train.features.tolist() == [[3, 6], [1, 4], [2, 5]]
    assert (found.train.owner.tolist(), found.train.targets.tolist()) == ([0, 1, 1], [1, 0, 1])
    with refused(r"b\.va\.data, line 1, column '1' must not be missing"):
        loaded(tmp_path, Split(kind="file"), **stated)
    assert loaded(tmp_path, Split(kind="file"), **stated, default_fill="drop-row").dropped_rows == 1
    (folder / "c.data").write_text("1,?,0\n")
    found = loaded(tmp_path, Split(kind="file"), **stated, default_fill="drop-row")
    assert (found.train.names, found.train.sizes.tolist()) == (("a", "b.va", "c"), [1, 2, 1])  # c is blank, and there
    assert found.train.present().names == ("a", "b.va")
    (folder / "c.data").write_text("1,2,3,0\n")
    with refused(r"c\.data and a\.data must have the same columns"):
        loaded(tmp_path, Split(kind="file"), **stated, default_fill=4)
    (folder / "c.data").write_text("")
    with refused(r"c\.data must hold at least one row"):
        loaded(tmp_path, Split(kind="file"), **stated, default_fill=4)
    with refused(r"The folder sites must hold files that match data\.files, '\*\.csv'"):
        loaded(tmp_path, Split(kind="file"), **{**stated, "files": "*.csv"})
    with refused(r"data\.files must be a pattern of names in the folder"):
        loaded(tmp_path, Split(kind="file"), **{**stated, "files": "../*"})


def test_files_that_differ_by_suffix_alone_stay_two_clients(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.csv").write_text("x,y\n1,0\n")
    (tmp_path / "s" / "a.txt").write_text("x,y\n2,1\n")
    found = loaded(tmp_path, Split(kind="file"), source="s", target="y", classes=2, format="folder")
    assert found.train.names == ("a.csv", "a.txt")


@pytest.mark.parametrize(
    ("name", "rows", "width", "classes"),
    [("breast_cancer", 569, 30, 2), ("digits", 1797, 64, 10), ("wine", 178, 13, 3), ("diabetes", 442, 10, 0)],
)
def test_shipped_sets_need_no_more_than_a_bound(tmp_path: Path, name: str, rows: int, width: int, classes: int) -> None:
    shape = loaded(tmp_path, source=f"sklearn:{name}").train.shape
    assert (shape.records, shape.features, shape.classes, shape.bound) == (rows, width, classes, 100.0)
    features = loaded(tmp_path, source=f"sklearn:{name}").train.features
    assert np.abs(features).max() <= 1
    free = loaded(tmp_path, source=f"sklearn:{name}", default_scale=[-1e6, 1e6]).train.features
    assert np.abs(free).max() < 0.01


def test_shipped_sets_obey_what_is_stated(tmp_path: Path) -> None:
    found = loaded(tmp_path, source="sklearn:digits", label_above=4, ignore=["pixel_0_0"])
    assert (found.train.classes, found.train.shape.features) == (2, 63)
    found = loaded(tmp_path, source="sklearn:wine", columns=["hue"], scale={"hue": [0, 1]})
    assert found.train.features.max() == 1
    with refused(r"data\.target must be left out"):
        loaded(tmp_path, source="sklearn:wine", target="hue")
