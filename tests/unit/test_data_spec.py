"""What a study states about its data is checked at birth, and survives being written down."""

from typing import Any

import pytest

from fedveil.core.errors import BadValue
from fedveil.data.spec import HeldOut, Source, Split, parse_data

PLAIN: dict[str, Any] = {"source": "a.csv", "feature_bound": 1.0, "target": "y", "classes": 2}


def plain(**other: Any) -> Source:
    return Source.parse({**PLAIN, **other})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sourcee": "b"}, r"\[data\]: the key 'sourcee' must be a known one.*Did you mean source\?"),
        ({"scales": {}}, r"Did you mean scale\?"),
        ({"source": ""}, r"data\.source must be a text that is not empty"),
        ({"source": 3}, r"data\.source must be a text"),
        ({"source": "sklearn:iriss"}, r"one of breast_cancer, digits, wine, diabetes"),
        ({"source": "sklearn:digit"}, r"Did you mean digits\?"),
        ({"feature_bound": 0}, r"data\.feature_bound must lie in"),
        ({"feature_bound": -1.0}, r"data\.feature_bound must lie in"),
        ({"feature_bound": float("nan")}, r"data\.feature_bound must be a finite number"),
        ({"feature_bound": float("inf")}, r"data\.feature_bound must be a finite number"),
        ({"feature_bound": "1"}, r"data\.feature_bound must be a number, got '1'"),
        ({"feature_bound": True}, r"data\.feature_bound must be a number, got True"),
        ({"feature_bound": 10**400}, r"data\.feature_bound must be a finite number"),
        ({"intercept": -1}, r"data\.intercept must lie between 0"),
        ({"intercept": 1e6}, r"data\.intercept must lie between 0"),
        ({"format": "xls"}, r"data\.format must be one of csv"),
        ({"format": "parket"}, r"Did you mean parquet\?"),
        ({"format": ["csv"]}, r"data\.format must be one of"),
        ({"target": 1.5}, r"data\.target must be a column's name"),
        ({"target": True}, r"data\.target must be a column's name"),
        ({"header": 1}, r"data\.header must be true or false"),
        ({"names": ["a"]}, r"data\.names must go with header = false"),
        ({"names": ["a", "a"], "header": False}, r"data\.names must name each column once"),
        ({"columns": "a"}, r"data\.columns must be a list"),
        ({"columns": [1.5]}, r"data\.columns must be a column's name"),
        ({"columns": ["a"], "ignore": ["a"]}, r"data\.ignore must not name what data\.columns names"),
        ({"delimiter": ",,"}, r"data\.delimiter must be one character"),
        ({"features": 0}, r"data\.features must be at least 1"),
        ({"features": 2.5}, r"data\.features must be a whole number"),
        ({"features": 10**7}, r"data\.features must be at most 1e6"),
        ({"categories": {"a": []}}, r"data\.categories\.a must list at least 1"),
        ({"categories": {"a": ["x", "x"]}}, r"name each once"),
        ({"categories": {"a": [1, "1.0"]}}, r"numbers that are equal are the same"),
        ({"categories": {"a": [True]}}, r"list texts or numbers"),
        ({"categories": ["a"]}, r"data\.categories must be a table"),
        ({"categories": {"a": ["x"]}, "scale": {"a": [0, 1]}}, r"not name a column of data\.categories"),
        ({"scale": {"a": [1, 0]}}, r"data\.scale\.a must be a range \[low, high\] with low < high"),
        ({"scale": {"a": [1, 1]}}, r"low < high"),
        ({"scale": {"a": [0, float("inf")]}}, r"data\.scale\.a must be a finite number"),
        ({"scale": {"a": [0]}}, r"data\.scale\.a must be a range"),
        ({"scale": {"a": 3}}, r"data\.scale\.a must be a list"),
        ({"default_scale": [0, 5e-324]}, r"usable width"),
        ({"missing": "NA"}, r"data\.missing must be a list"),
        ({"missing": [0]}, r"data\.missing must be a list of texts"),
        ({"fill": {"a": "mean"}}, r"data\.fill\.a must be a number"),
        ({"fill": {"a": float("nan")}}, r"data\.fill\.a must be a finite number"),
        ({"fill": 3}, r"data\.fill must be a table"),
        ({"default_fill": "mean"}, r"data\.default_fill must be \"refuse\", \"drop-row\" or a number"),
        ({"fill": {"a": "z"}, "categories": {"a": ["x"]}}, r"data\.fill\.a must be one of its categories"),
        ({"classes": 1}, r"data\.classes must be at least 2"),
        ({"classes": ["a"]}, r"data\.classes must list at least 2"),
        ({"classes": ["a", "a"]}, r"data\.classes must name each once"),
        ({"classes": "ab"}, r"data\.classes must be a whole number"),
        ({"classes": True}, r"data\.classes must be a whole number"),
        ({"label_above": 0}, r"state one of classes, label_above and target_scale"),
        ({"target_scale": [0, 1]}, r"state one of classes, label_above and target_scale"),
        ({"client_column": 1.5}, r"data\.client_column must be a column's name"),
        ({"labels": ""}, r"data\.labels must be a text"),
    ],
)
def test_a_bad_source_is_refused_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        plain(**change)


def test_undeclared_labels_are_refused_with_the_way_out() -> None:
    with pytest.raises(BadValue, match=r"Labels are declared, never learned"):
        Source.parse({"source": "a.csv", "feature_bound": 1.0, "target": "y"})


@pytest.mark.parametrize("key", ["source", "feature_bound"])
def test_what_is_needed_must_be_there(key: str) -> None:
    with pytest.raises(BadValue, match=rf"\[data\]: {key} must be given"):
        Source.parse({name: value for name, value in PLAIN.items() if name != key})


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({}, r"\[clients\]: kind must be given"),
        ({"kind": "equall"}, r"Did you mean equal\?"),
        ({"kind": ["equal"]}, r"clients\.kind must be one of"),
        ({"kind": "equal"}, r"clients\.count must be given for kind equal"),
        ({"kind": "record", "count": 3}, r"clients\.count must be left out for kind record"),
        ({"kind": "equal", "count": 0}, r"clients\.count must be at least 1"),
        ({"kind": "equal", "count": 2.0}, r"clients\.count must be a whole number"),
        ({"kind": "equal", "count": 2, "alpha": 1}, r"clients\.alpha must be left out for kind equal"),
        ({"kind": "dirichlet", "count": 2}, r"clients\.alpha must be given for kind dirichlet"),
        ({"kind": "dirichlet", "count": 2, "alpha": 0}, r"clients\.alpha must lie in"),
        ({"kind": "dirichlet", "count": 2, "alpha": float("nan")}, r"clients\.alpha must be a finite number"),
        ({"kind": "uneven", "count": 2, "alpha": -1}, r"clients\.alpha must lie in"),
        ({"kind": "record", "seed": -1}, r"clients\.seed must be at least 0"),
        ({"kind": "record", "cuont": 1}, r"Did you mean count\?"),
    ],
)
def test_a_bad_split_is_refused_in_a_sentence(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        Split.parse(table)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({}, r"\[data\.held_out\] must state either source or fraction, got 'neither'"),
        ({"fraction": 0.2, "source": "b.csv"}, r"must state either source or fraction, got 'both'"),
        ({"fraction": 0.0}, r"strictly between 0 and 1"),
        ({"fraction": 1}, r"strictly between 0 and 1"),
        ({"fraction": "half"}, r"must be a number"),
        ({"fraction": 0.2, "public": 1}, r"data\.held_out\.public must be true or false"),
        ({"fraction": 0.2, "seed": 1.5}, r"data\.held_out\.seed must be a whole number"),
        ({"fraction": 0.2, "labels": "b"}, r"must name a source when it says how to read one"),
        ({"source": "b.csv", "feature_bound": 2.0}, r"the key 'feature_bound' must be a known one"),
        ({"fractoin": 0.2}, r"Did you mean fraction\?"),
    ],
)
def test_bad_held_out_rows_are_refused_in_a_sentence(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        HeldOut.parse(table, plain())


def test_tables_must_be_tables() -> None:
    for parse in (Source.parse, Split.parse, parse_data):
        with pytest.raises(BadValue, match="must be a table"):
            parse([])  # type: ignore[arg-type]


SOURCES = [
    plain(),
    plain(columns=[0, 1], header=False, target=-1, names=[]),
    plain(categories={"a": [1, "x"]}, fill={"a": "x", "b": 2}, default_fill="drop-row", missing=["-"]),
    plain(scale={"b": [0, 1]}, default_scale=[-1, 2], intercept=0, delimiter=";", client_column="c"),
    Source.parse({"source": "i-ubyte", "labels": "l-ubyte", "feature_bound": 3, "classes": ["0", 1], "format": "idx"}),
    Source.parse({"source": "a.csv", "feature_bound": 3, "target": "y", "target_scale": [0, 10]}),
    Source.parse({"source": "a.csv", "feature_bound": 3, "target": "y", "label_above": 0}),
    Source.parse({"source": "sklearn:wine", "feature_bound": 1}),
]


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_survives_being_written_down(source: Source) -> None:
    assert Source.parse(source.table()) == source


@pytest.mark.parametrize(
    "split",
    [
        Split(kind="record"),
        Split(kind="equal", count=3, seed=9),
        Split(kind="uneven", count=3, alpha=0),
        Split(kind="dirichlet", count=3, alpha=0.5),
    ],
)
def test_a_split_survives_being_written_down(split: Split) -> None:
    assert Split.parse(split.table()) == split


def test_held_out_rows_survive_being_written_down() -> None:
    train = plain(default_fill=1.0)
    for table in ({"fraction": 0.25, "seed": 4}, {"source": "b.csv", "public": True, "fill": {"a": 1.0}}):
        held = HeldOut.parse(table, train)
        assert HeldOut.parse(held.table(train), train) == held
    other = HeldOut(source=plain(source="c.csv"))
    assert HeldOut.parse(other.table(train), train) == other
    with pytest.raises(BadValue, match=r"data\.held_out\.default_scale must be given when data states it"):
        other.table(plain(default_scale=[0, 1]))


def test_a_held_out_source_says_only_what_differs() -> None:
    source, held = parse_data({**PLAIN, "held_out": {"source": "b.csv", "public": True}})
    assert held is not None
    assert held.source == plain(source="b.csv")
    assert held.public
    assert parse_data(PLAIN) == (source, None)


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        plain().source = "b"  # type: ignore[misc]


def test_a_held_out_source_is_public_only_by_its_own_word() -> None:
    train = Source.parse({"source": "a.csv", "target": "y", "classes": 2, "feature_bound": 1.0, "public": True})
    held = HeldOut.parse({"source": "b.csv"}, train)
    assert held.source is not None
    assert (train.public, held.source.public, held.public) == (True, False, False)
    assert HeldOut.parse(held.table(train), train) == held
    with pytest.raises(BadValue, match=r"data\.public must be true or false, got 'yes'"):
        Source.parse({"source": "a.csv", "target": "y", "classes": 2, "feature_bound": 1.0, "public": "yes"})


@pytest.mark.parametrize(
    ("table", "places"),
    [
        ({"kind": "record"}, "row numbers"),
        ({"kind": "equal", "count": 2}, "row numbers"),
        ({"kind": "uneven", "count": 2, "alpha": 1.0}, "row numbers"),
        ({"kind": "column"}, "client column"),
        ({"kind": "file"}, "file names"),
        ({"kind": "dirichlet", "count": 2, "alpha": 1.0}, "labels"),
    ],
)
def test_a_split_knows_what_it_depends_on(table: dict[str, Any], places: str) -> None:
    assert Split.parse(table).places == places
