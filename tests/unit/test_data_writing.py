"""How numbers are written, categories that stand for all others, labels that are not listed, and bent scales."""

import threading
from pathlib import Path

import numpy as np
import pytest

from fedveil.core.errors import FedveilError
from fedveil.data.load import Loaded, load
from fedveil.data.sources import chunks
from fedveil.data.spec import Source, Split
from fedveil.jobs.local import plan_study

EURO = "size;ward;ill\n1.234,5;A;no\n2,25;B;yes\n-7;Z;no\n"


def loaded(folder: Path, text: str, **stated: object) -> Loaded:
    (folder / "x.csv").write_text(text, encoding="utf-8")
    values = {"source": "x.csv", "feature_bound": 1.0, "target": "ill", "classes": ["no", "yes"], **stated}
    source = Source.parse(values)
    return load(source, Split(kind="record"), base=folder, generator=np.random.default_rng)


def plain(text: str) -> str:
    return text.replace(".", "").replace(",", ".").replace(";", ",")


def test_decimal_commas_and_thousands_are_the_same_numbers(tmp_path: Path) -> None:
    stated = {"categories": {"ward": ["A", "B", "Z"]}, "scale": {"size": [-10.0, 2000.0]}}
    signs = {"delimiter": ";", "decimal": ",", "thousands": "."}
    found, usual = loaded(tmp_path, EURO, **stated, **signs), loaded(tmp_path, plain(EURO), **stated)
    assert np.array_equal(found.train.features, usual.train.features)


def test_new_records_are_read_as_the_training_records_were(tmp_path: Path) -> None:
    stated = {"categories": {"ward": ["A", "B", "Z"]}, "scale": {"size": [-10.0, 2000.0]}}
    found = loaded(tmp_path, EURO, **stated, delimiter=";", decimal=",", thousands=".")
    assert found.preparation
    part = next(chunks(found.preparation.source("x.csv"), tmp_path, {"size": True, "ward": False}))
    rows, dropped = found.preparation.rows(part.cells, part.place)
    assert not dropped.any()
    assert rows == pytest.approx(found.train.features)


def test_the_ledger_knows_numbers_and_not_how_they_are_written(tmp_path: Path) -> None:
    stated = {"categories": {"ward": ["A", "B", "Z"]}}
    found = loaded(tmp_path, EURO, **stated, delimiter=";", decimal=",", thousands=".")
    assert found.fingerprint(b"k" * 32) == loaded(tmp_path, plain(EURO), **stated).fingerprint(b"k" * 32)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("size;ill\n1;no\n", r'separated by \',\', got .* state data\.delimiter = ";"'),
        ("size\till\n1\tno\n", r'state data\.delimiter = "\\t"'),
        ('size,ill\n"1,5",no\n', r'line 2, column \'size\' must be a number, got .* State data\.decimal = ","\.'),
        ('size,ill\n"1,500",no\n', r'data\.decimal = "," or, if it separates thousands, data\.thousands = ","'),
        ('size,ill\n"1.500,25",no\n', r'State data\.decimal = "," and data\.thousands = "\."'),
        ('size,ill\n"1 500.25",no\n', r'State data\.thousands = " "'),
        ("size,ill\nbig,no\n", r"List it under data\.missing"),
    ],
)
def test_other_signs_are_recognised_with_a_hint(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(FedveilError, match=told):
        loaded(tmp_path, text, scale={"size": [0.0, 9.0]})


def test_a_column_of_decimal_commas_is_not_silently_taken_for_texts(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('size,ill\n"1,5",no\n"2,5",yes\n')
    tables = {
        "data": {"source": str(tmp_path / "x.csv"), "target": "ill", "classes": ["no", "yes"]},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 1.0, "delta": 1e-3},
    }
    with pytest.raises(FedveilError, match=r"column 'size' must hold numbers .* State data\.decimal"):
        plan_study(tables)


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"decimal": ";"}, 'data.decimal must be "." or ","'),
        ({"thousands": "x"}, "data.thousands must be"),
        ({"decimal": ",", "thousands": ","}, "data.thousands must differ from data.decimal"),
        ({"unlisted": "keep"}, 'data.unlisted must be "refuse" or "drop-row"'),
        ({"bend": {"size": 1.0}}, "data.bend.size must be of a column with a range"),
        ({"bend": {"size": 0.0}, "scale": {"size": [0, 1]}}, "data.bend.size must be positive"),
        ({"bend": {"size": float("nan")}, "scale": {"size": [0, 1]}}, "data.bend.size must be a finite number"),
        ({"bend": {"sise": 1.0}, "default_scale": [0, 1]}, "data.bend must name columns of x.csv"),
    ],
)
def test_senseless_signs_are_refused(tmp_path: Path, stated: dict[str, object], told: str) -> None:
    with pytest.raises(FedveilError) as refused:
        loaded(tmp_path, "size,ill\n1,no\n2,yes\n", **stated)
    assert str(refused.value).startswith(told)


class TestOthers:
    TEXT = "ward,ill\nA,no\nB,yes\nQ,no\n,yes\n"

    def test_words_that_are_not_listed_join_the_others(self, tmp_path: Path) -> None:
        stated = {"categories": {"ward": ["A", "B", "(other)"]}, "fill": {"ward": "(other)"}}
        found = loaded(tmp_path, self.TEXT, **stated)
        rows = found.train.features[:, :3]
        assert (rows > 0).tolist() == [
            [True, False, False],
            [False, True, False],
            [False, False, True],
            [False, False, True],
        ]
        assert found.preparation
        again, _ = found.preparation.rows({"ward": ["A", "B", "unheard of", ""]}, str)
        assert again == pytest.approx(found.train.features)

    def test_without_such_a_category_they_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FedveilError, match=r"must be one of data\.categories\.ward: A, B"):
            loaded(tmp_path, self.TEXT, categories={"ward": ["A", "B"]}, fill={"ward": "A"})


class TestUnlisted:
    TEXT = "size,ill\n1,no\n2,yes\n3,perhaps\n4,\n"

    def test_records_with_other_labels_take_no_part(self, tmp_path: Path) -> None:
        stated = {"scale": {"size": [0.0, 4.0]}, "unlisted": "drop-row", "fill": {"ill": "drop-row"}}
        found = loaded(tmp_path, self.TEXT, **stated)
        assert found.train.blank.tolist() == [False, False, True, True]
        assert len(found.train) == 4  # it keeps its place: that it was dropped is protected like any value

    def test_by_default_they_are_refused_with_the_way_out(self, tmp_path: Path) -> None:
        with pytest.raises(FedveilError, match=r"line 4.*got 'perhaps'.*data\.unlisted = \"drop-row\""):
            loaded(tmp_path, self.TEXT, scale={"size": [0.0, 4.0]}, fill={"ill": "drop-row"})

    def test_whether_rows_may_be_dropped_is_known(self) -> None:
        source = Source.of(source="x.csv", feature_bound=1.0, classes=2, target="ill", unlisted="drop-row")
        assert source.drops_rows


def test_a_bent_scale_is_the_inverse_hyperbolic_sine(tmp_path: Path) -> None:
    text = "size,ill\n0,no\n10,yes\n1e6,no\n1e300,yes\n"
    found = loaded(tmp_path, text, scale={"size": [0.0, 1e6]}, bend={"size": 2.0}, feature_bound=2.0, intercept=0.0)
    top = np.arcsinh(5e5)
    expected = [-1.0, 2 * np.arcsinh(5.0) / top - 1, 1.0, 1.0]
    assert found.train.features[:, 0] == pytest.approx(expected)
    assert found.preparation
    again, _ = found.preparation.rows({"size": np.array([0.0, 10.0, 1e6, 1e300])}, str)
    assert again[:, 0] == pytest.approx(expected)


def test_reading_ahead_ends_with_its_reader(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "x.csv").write_text("size,ward\n" + "1.5,A\n" * 30_000)
    source = Source.of(source="x.csv", feature_bound=1.0, label_above=0.0)
    before = threading.active_count()
    parts = chunks(source, tmp_path, {"size": True, "ward": False})
    first = next(parts)
    parts.close()
    assert len(first) == 8192
    assert threading.active_count() == before
    assert sum(len(part) for part in chunks(source, tmp_path, {"size": True, "ward": False})) == 30_000
