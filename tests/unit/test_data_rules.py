"""The public rule on small tables: categories, ranges, missing values, labels, the cut and the intercept."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.data.arrays import records_from_arrays
from fedveil.data.cells import canonical
from fedveil.data.load import Loaded, load
from fedveil.data.records import Records
from fedveil.data.rows import cut_rows
from fedveil.data.spec import HeldOut, Source, Split


def rows(base: Path, text: str, held: HeldOut | None = None, split: str = "record", **table: Any) -> Loaded:
    (base / "a.csv").write_text(text)
    stated = {"source": "a.csv", "target": "y", "classes": 2, "feature_bound": 100.0, "intercept": 0, **table}
    source = Source.parse({key: value for key, value in stated.items() if value is not None})
    return load(source, Split(kind=split), held, base=base, generator=np.random.default_rng)  # type: ignore[arg-type]


def test_categories_are_one_hot_in_the_order_declared(tmp_path: Path) -> None:
    text = "k,x,m,y\n3.0,1,?,0\n 3,2,u,1\n+7,3,v,1\n?,4,u,0\n"
    categories = {"k": [7, "3"], "m": ["u", "v", "?"]}
    found = rows(tmp_path, text, categories=categories, fill={"k": 7})
    assert found.feature_names == ("k=7", "k=3", "x", "m=u", "m=v", "m=?")
    assert found.train.features.tolist() == [
        [0, 1, 1, 0, 0, 1],
        [0, 1, 2, 1, 0, 0],
        [1, 0, 3, 0, 1, 0],
        [1, 0, 4, 1, 0, 0],
    ]


def test_ranges_are_public_and_what_lies_outside_is_cut(tmp_path: Path) -> None:
    text = "a,b,y\n0,5,0\n10,5,0\n5,5,0\n-99,5,1\n99,5,1\n"
    found = rows(tmp_path, text, scale={"a": [0, 10]})
    assert found.train.features[:, 0].tolist() == [-1, 1, 0, -1, 1]
    assert found.train.features[:, 1].tolist() == [5] * 5  # no range: as it stands; a constant column is kept
    both = rows(tmp_path, text, scale={"a": [0, 10]}, default_scale=[4, 8])
    assert both.train.features[:, 1].tolist() == [-0.5] * 5


def test_a_row_depends_on_its_own_record_alone(tmp_path: Path) -> None:
    one = rows(tmp_path, "a,b,y\n1,2,0\n3,4,1\n", feature_bound=1.0).train.features[0]
    other = rows(tmp_path, "a,b,y\n1,2,0\n-1e9,7,1\n5,5,1\n", feature_bound=1.0).train.features[0]
    assert one.tolist() == other.tolist()


def test_missing_values_follow_the_stated_rule(tmp_path: Path) -> None:
    text = "a,b,k,y\n1,?,u,0\nNA,2,u,1\n3,4,,1\n5,6,u,?\n7,8,u,0\n"
    common: dict[str, Any] = {"categories": {"k": ["u", "v"]}}
    found = rows(tmp_path, text, **common, default_fill="drop-row")
    assert (found.dropped_rows, len(found.train), found.train.blank.tolist()) == (4, 5, [True] * 4 + [False])
    assert found.train.features.tolist() == [[0, 0, 0, 0]] * 4 + [[7, 8, 1, 0]]
    assert found.train.present().features.tolist() == [[7, 8, 1, 0]]
    found = rows(tmp_path, text, **common, fill={"a": -1, "b": -2, "k": "v", "y": "drop-row"})
    assert found.dropped_rows == 1
    assert found.train.present().features.tolist() == [[1, -2, 1, 0], [-1, 2, 1, 0], [3, 4, 0, 1], [7, 8, 1, 0]]
    with pytest.raises(BadValue, match=r"a\.csv, line 4, column 'k' must not be missing"):
        rows(tmp_path, text, **common, default_fill=0.0, fill={"y": "drop-row"})
    with pytest.raises(BadValue, match=r"line 2, column 'b' must not be missing"):
        rows(tmp_path, text, **common, default_fill="drop-row", fill={"b": "refuse"})


def test_a_number_may_mark_what_is_missing(tmp_path: Path) -> None:
    found = rows(tmp_path, "a,k,y\n-9.0,1,0\n1,-9,1\n", missing=["-9"], default_fill=5, categories={"k": [1, 5]})
    assert found.train.features.tolist() == [[5, 1, 0], [1, 0, 1]]
    np.savez(tmp_path / "a.npz", X=np.array([[-9, 1], [2, 3]]), y=[0, 1])
    source = Source.of(
        source="a.npz", target="y", classes=2, feature_bound=9.0, intercept=0, missing=("-9",), default_fill=4
    )
    train = load(source, Split(kind="record"), base=tmp_path, generator=np.random.default_rng).train
    assert train.features.tolist() == [[4, 1], [2, 3]]


def test_a_filled_value_is_scaled_like_any_other(tmp_path: Path) -> None:
    found = rows(tmp_path, "a,y\n?,0\n5,1\n", scale={"a": [0, 10]}, default_fill=20)
    assert found.train.features.tolist() == [[1], [0]]


def test_labels(tmp_path: Path) -> None:
    text = "a,y\n1,0\n2,1\n3,4\n"
    assert rows(tmp_path, text, classes=["4", 1, 0.0]).train.targets.tolist() == [2, 1, 0]
    found = rows(tmp_path, text, classes=None, label_above=0)
    assert (found.train.targets.tolist(), found.train.classes) == ([0, 1, 1], 2)
    found = rows(tmp_path, text, classes=None, target_scale=[0, 2])
    assert (found.train.targets.tolist(), found.train.classes) == ([-1, 0, 1], 0)
    only = rows(tmp_path, "a,y\n1,1\n2,1\n").train
    assert (only.targets.tolist(), only.classes) == ([1, 1], 2)  # one class occurs, two are declared
    with pytest.raises(BadValue, match="never learned"):
        rows(tmp_path, text, classes=None)


def test_the_intercept_is_a_last_column_outside_the_cut(tmp_path: Path) -> None:
    found = rows(tmp_path, "a,b,y\n3,4,0\n0.3,0.4,1\n", feature_bound=1.0, intercept=0.5)
    assert found.feature_names == ("a", "b", "intercept")
    np.testing.assert_allclose(found.train.features, [[0.6, 0.8, 0.5], [0.3, 0.4, 0.5]], rtol=1e-13)
    assert found.train.bound == math.hypot(1, 0.5)


def test_huge_rows_keep_their_direction() -> None:
    given = np.array([[1e308, 1e308], [-1e200, 0.0], [1e-300, 0.0], [0.0, 0.0]])
    cut_rows(given, 2.0)
    np.testing.assert_allclose(given, [[2**0.5, 2**0.5], [-2, 0], [1e-300, 0], [0, 0]], rtol=1e-14)


def test_clients_by_column(tmp_path: Path) -> None:
    text = "a,site,y\n1,007,0\n2,7,1\n3,007,1\n"
    found = rows(tmp_path, text, split="column", client_column="site")
    assert (found.train.names, found.train.owner.tolist()) == (("007", "7"), [0, 1, 0])
    assert found.feature_names == ("a",)
    with pytest.raises(BadValue, match=r"data\.client_column must be given when clients\.kind is \"column\""):
        rows(tmp_path, text, split="column", ignore=["site"])
    with pytest.raises(BadValue, match=r"line 2, column 'site' must not be missing"):
        rows(tmp_path, "a,site,y\n1,,0\n", split="column", client_column="site", default_fill=1.0)
    with pytest.raises(BadValue, match=r"data\.source must be a folder when clients\.kind is \"file\""):
        rows(tmp_path, text, split="file", ignore=["site"])


def test_more_clients_than_records_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,0\n2,1\n")
    source = Source.of(source="a.csv", target="y", classes=2, feature_bound=1.0)
    for split in (
        Split(kind="equal", count=3),
        Split(kind="uneven", count=3, alpha=1),
        Split(kind="dirichlet", count=3, alpha=1),
    ):
        with pytest.raises(BadValue, match=r"clients\.count must be at most the number of records, 2, got 3"):
            load(source, split, base=tmp_path, generator=np.random.default_rng)


def test_held_out_rows(tmp_path: Path) -> None:
    text = "a,s,y\n" + "".join(f"{i},{'u' if i < 2 else 'v'},{i % 2}\n" for i in range(20))
    found = rows(tmp_path, text, HeldOut(fraction=0.25, public=True), ignore=["s"])
    assert found.test is not None
    assert (len(found.train), len(found.test), found.test_public) == (15, 5, True)
    assert found.test.names == ("held-out",)
    both = np.concatenate([found.train.features, found.test.features])
    assert sorted(both[:, 0]) == list(range(20))
    again = rows(tmp_path, text, HeldOut(fraction=0.25), ignore=["s"])
    assert again.test is not None
    assert again.test.features.tolist() == found.test.features.tolist()
    other = rows(tmp_path, text, HeldOut(fraction=0.25, seed=1), ignore=["s"])
    assert other.test is not None
    assert other.test.features.tolist() != found.test.features.tolist()
    most = rows(tmp_path, text, HeldOut(fraction=0.9), split="column", client_column="s")
    assert most.test is not None
    assert (most.test.names, len(most.test)) == (("u", "v"), 18)
    dealt = rows(tmp_path, text, HeldOut(fraction=0.9), ignore=["s"])  # the same rows, whoever owns them
    assert dealt.test is not None
    assert most.test.features.tolist() == dealt.test.features.tolist()
    with pytest.raises(BadValue, match=r"leave records on both sides of 20"):
        rows(tmp_path, text, HeldOut(fraction=0.01), ignore=["s"])


def test_a_held_out_source(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("a,y\n5,1\n")
    (tmp_path / "c.csv").write_text("b,y\n5,1\n")
    table = {"source": "a.csv", "target": "y", "classes": 2, "feature_bound": 9.0}
    train = Source.parse(table)
    (tmp_path / "a.csv").write_text("a,y\n1,0\n")
    split = Split(kind="record")
    held = HeldOut.parse({"source": "b.csv"}, train)
    found = load(train, split, held, base=tmp_path, generator=np.random.default_rng)
    assert found.test is not None
    assert found.test.features.tolist() == [[5, 1]]
    for other in (
        HeldOut.parse({"source": "c.csv"}, train),
        HeldOut.parse({"source": "b.csv", "classes": 3}, train),
        HeldOut(source=Source.parse({**table, "feature_bound": 8.0})),
    ):
        with pytest.raises(BadValue, match="same features, classes and bound"):
            load(train, split, other, base=tmp_path, generator=np.random.default_rng)


def test_records_from_arrays() -> None:
    found = records_from_arrays([[0, 255], [255, 0]], ["b", "a"], bound=9, classes=["a", "b"], scale=(0, 255))
    assert found.features.tolist() == [[-1, 1, 1], [1, -1, 1]]
    assert (found.targets.tolist(), found.clients, found.names) == ([1, 0], 2, ())
    found = records_from_arrays(np.eye(2), [5, 0], [7, 7], bound=2, target_scale=(0, 10), intercept=0)
    assert (found.targets.tolist(), found.clients, found.names, found.bound) == ([0, -1], 1, ("7",), 2)
    assert records_from_arrays([[1]], [True], bound=1, classes=2).targets.tolist() == [1]


@pytest.mark.parametrize(
    ("X", "y", "more", "sentence"),
    [
        ([1, 2], [0, 1], {}, r"X must have 2 dimensions"),
        ([[1], [2, 3]], [0, 1], {}, r"X must be an array with rows of equal length"),
        ([["a"], ["b"]], [0, 1], {}, r"X must hold numbers"),
        ([[1j], [1]], [0, 1], {}, r"X must hold numbers"),
        ([[1], [np.nan]], [0, 1], {}, r"X, row 2, column '0' must not be missing"),
        ([[1], [np.inf]], [0, 1], {}, r"X, row 2, column '0' must be a finite number"),
        ([[1], [2]], [0], {}, r"have as many labels as rows, 2, got 1"),
        ([[1], [2]], [0, 2], {}, r"X, row 2, label must be one of data\.classes: 0, 1, got '2'"),
        ([[1], [2]], [[0], [1]], {}, r"y must have 1 dimension,"),
        ([[1], [2]], [0, None], {}, r"y must hold numbers or texts"),
        ([[1], [2]], ["0", "1"], {"classes": None, "target_scale": (0, 1)}, r"y must hold numbers when target_scale"),
        ([[1], [2]], [0, 1], {"classes": None}, r"Labels are declared"),
        ([[1], [2]], [0, 1], {"clients": [1]}, r"clients must name the client of each of the 2 rows, got 1"),
        ([[1], [2]], [0, 1], {"clients": [1.5, 2]}, r"clients must name clients by texts or whole numbers"),
        ([[1], [2]], [0, 1], {"bound": 0}, r"feature_bound must lie in"),
        (np.zeros((0, 2)), [], {}, r"X must hold at least one row"),
        (np.zeros((2, 0)), [0, 1], {}, r"leave at least one feature"),
    ],
)
def test_bad_arrays_are_refused(X: Any, y: Any, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        records_from_arrays(X, y, **{"bound": 1.0, "classes": 2, **more})


def good(**change: Any) -> Records:
    values: dict[str, Any] = {
        "features": np.array([[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]]),
        "targets": np.array([0.0, 1, 1]),
    }
    values |= {"owner": np.array([1, 0, 1]), "clients": 2, "bound": 1.0, "classes": 2, "names": ("u", "v")}
    return Records(**{**values, **change})


def test_records_know_their_shape() -> None:
    found = good()
    assert found.sizes.tolist() == [1, 2]
    shape = found.shape
    assert (shape.records, shape.features, shape.clients, shape.largest_client, shape.smallest_client) == (
        3,
        2,
        2,
        2,
        1,
    )
    order, starts = found.by_client()
    assert (order.tolist(), starts.tolist()) == ([1, 0, 2], [0, 1, 3])
    assert (found.name(1), good(names=()).name(1)) == ("v", "client 2")


def test_records_cannot_be_written_but_the_callers_array_can() -> None:
    mine = np.zeros((3, 2))
    found = good(features=mine)
    with pytest.raises(ValueError, match="read-only"):
        found.features[0, 0] = 9.0
    mine[0, 0] = 1.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"features": np.zeros((3, 2), dtype=np.float32)}, "C-contiguous array of float64"),
        ({"features": np.zeros((2, 3)).T}, "C-contiguous array of float64"),
        ({"features": [[0.0]]}, "C-contiguous array of float64"),
        ({"features": np.zeros(3)}, "have rows and columns"),
        ({"features": np.zeros((3, 0))}, "have rows and columns"),
        ({"features": np.zeros((2, 2))}, "one row for each target, 3"),
        ({"features": np.array([[0.0], [1.0], [math.nextafter(1, 2)]])}, "row 2 must be finite with norm at most 1.0"),
        ({"features": np.array([[0.0], [np.nan], [0.0]])}, "row 1 must be finite with norm at most 1.0, got nan"),
        ({"features": np.array([[0.0], [-np.inf], [0.0]])}, "row 1 must be finite"),
        ({"targets": np.array([0.0, 1, 2])}, "be classes 0 to 1"),
        ({"targets": np.array([0.0, 1, 0.5])}, "be classes 0 to 1"),
        ({"targets": np.array([0.0, 1, np.nan])}, "targets must be finite"),
        ({"targets": np.array([0, 1, 1])}, "3 values of float64"),
        ({"targets": np.zeros(0), "features": np.zeros((0, 1))}, "at least one record"),
        ({"owner": np.array([0, 0, 2])}, "lie between 0 and 1"),
        ({"owner": np.array([-1, 0, 1])}, "lie between 0 and 1"),
        ({"owner": np.array([1, 1, 1])}, "give every client a record, got 'none for u'"),
        ({"owner": np.array([0.0, 1, 1])}, "3 values of int64"),
        ({"clients": 4, "names": ()}, "lie between 1 and 3 records"),
        ({"clients": 0}, "lie between 1 and 3 records"),
        ({"names": ("u",)}, "name all 2 clients or none"),
        ({"classes": 1}, "0 or at least 2"),
        ({"bound": 0.0}, "bound must be finite and positive"),
        ({"bound": math.nan}, "bound must be finite and positive"),
    ],
)
def test_bad_records_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        good(**change)


def test_fingerprints_are_keyed_and_see_everything() -> None:
    key, other = b"k" * 16, b"l" * 16
    seen = {
        good().fingerprint(other),
        *(
            records.fingerprint(key)
            for records in (
                good(),
                good(features=np.array([[0.8, 0.6], [0.0, 0.0], [-1.0, 0.0]])),
                good(targets=np.array([1.0, 1, 1])),
                good(owner=np.array([0, 1, 1])),
                good(names=("u", "w")),
                good(bound=1.5),
                good(classes=3),
            )
        ),
    }
    assert len(seen) == 8
    assert good().fingerprint(key) == good().fingerprint(key)
    for bad in (b"", b"short", b"k" * 65, "k" * 16):
        with pytest.raises(BadValue, match="16 to 64 secret bytes"):
            good().fingerprint(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("3", 3.0, True),
        ("+1", 1, True),
        ("-0", 0, True),
        ("1e1", "10", True),
        ("9007199254740993", "9007199254740992", False),
        ("1_0", "10", False),
        ("nan", "NaN", False),
        ("inf", "infinity", False),
        (" a", "a ", True),
        ("0.1", 0.1, True),
    ],
)
def test_labels_have_one_spelling(one: object, other: object, same: bool) -> None:
    assert (canonical(one) == canonical(other)) is same
