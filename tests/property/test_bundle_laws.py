"""Laws of a model that is whole: what is written is what is read, and new records become the rows of training."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import BadValue
from fedveil.data.cells import canonical
from fedveil.data.column import Column
from fedveil.data.load import load
from fedveil.data.row_rule import Labels, RowRule
from fedveil.data.sources import chunks
from fedveil.data.spec import Source, Split
from fedveil.release.bundle import Bundle
from golden.golden_runs import made_run

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=6)
plain = words.filter(lambda word: not word.isascii() or (word.isalpha() and word.lower() not in ("nan", "inf")))
plain = plain.filter(lambda word: canonical(word) == word and word not in ("refuse", "drop-row", "zero"))
finite = st.floats(-1e6, 1e6)
spans = st.tuples(finite, st.floats(1e-3, 1e6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
rules = st.sampled_from(["refuse", "drop-row"])


@st.composite
def columns(draw: st.DrawFn, name: str) -> Column:
    if draw(st.booleans()):
        listed = tuple(draw(st.lists(plain, min_size=1, max_size=4, unique=True)))
        fill = draw(rules | st.sampled_from([*listed, "zero"]))
        unknown = draw(st.sampled_from(["refuse", "zero", *listed]))
        offsets = draw(st.just(()) | st.just(tuple(0.1 * k for k in range(len(listed)))))
        weight = draw(st.floats(0.1, 3.0))
        return Column(name=name, categories=listed, fill=fill, unknown=unknown, offsets=offsets, weight=weight)
    return Column(
        name=name,
        range=draw(st.none() | spans),
        centre=draw(st.none() | finite),
        scale=draw(st.none() | st.floats(1e-3, 1e3)),
        unit=draw(st.sampled_from([0.0, 0.5, 100.0])),
        fill=draw(rules | finite),
    )


@st.composite
def preparations(draw: st.DrawFn) -> RowRule:
    names = draw(st.lists(words, min_size=1, max_size=4, unique=True))
    labels = draw(
        st.just(Labels(name="y", classes=("0", "1"), numbered=True))
        | st.lists(plain, min_size=2, max_size=4, unique=True).map(lambda found: Labels(classes=tuple(found)))
        | spans.map(lambda span: Labels(name="y", span=span))
    )
    made = tuple(draw(columns(name)) for name in names)
    count = sum(column.width for column in made)
    spare = draw(st.integers(0, 2))
    return RowRule(
        columns=made,
        slots=tuple(draw(st.permutations(range(count + spare)))[:count]),
        width=count + spare,
        labels=labels,
        bound=draw(st.floats(0.1, 10.0)),
        intercept=draw(st.sampled_from([0.0, 1.0])),
        missing=tuple(draw(st.lists(words, max_size=3))),
        reading=draw(st.sampled_from([{}, {"delimiter": ";"}, {"header": False, "names": ["a", "b"]}])),
        absent=draw(st.sampled_from(["refuse", "fill"])),
    )


@settings(max_examples=30)
@given(preparations())
def test_a_preparation_is_what_was_written(preparation: RowRule) -> None:
    text = json.dumps(preparation.table(), allow_nan=False)
    assert RowRule.read(json.loads(text)) == preparation


@settings(max_examples=30)
@given(preparations(), st.data())
def test_a_row_never_exceeds_its_bound(preparation: RowRule, data: st.DataObject) -> None:
    """Whatever a record holds that is not refused."""
    cells: dict[str, Any] = {}
    for column in preparation.columns:
        values = st.sampled_from(column.categories) if column.categories else st.floats(-1e300, 1e300)
        cells[column.name] = np.array(data.draw(st.lists(values, min_size=3, max_size=3)))
    try:
        rows, dropped = preparation.rows(cells, str)
    except BadValue:  # a value may be one of the marks of a missing one
        return
    assert rows.shape == (3, len(preparation.features))
    assert np.all(np.linalg.norm(rows[~dropped], axis=1) <= preparation.total_bound * (1 + 1e-12))


CELLS = {
    "age": ["63", "41", "", "70", "12.5", "-3"],
    "ward": ["A", "B", "?", "C", " A", "3.0"],
    "pressure": ["145", "NA", "120", "1e3", "", "80"],
    "ill": ["yes", "no", "no", "yes", "no", "yes"],
}


@settings(max_examples=25)
@given(
    order=st.permutations(range(6)),
    age_fill=st.sampled_from([50.0, "drop-row"]),
    span=st.none() | spans,
    bound=st.floats(0.2, 4.0),
    intercept=st.sampled_from([0.0, 1.0]),
    suffix=st.sampled_from([".csv", ".tsv", ".csv.gz"]),
)
def test_new_records_become_the_rows_that_training_made(
    order: list[int], age_fill: Any, span: Any, bound: float, intercept: float, suffix: str
) -> None:
    source = Source.parse(
        {
            "source": f"records{suffix}",
            "target": "ill",
            "classes": ["no", "yes"],
            "feature_bound": bound,
            "intercept": intercept,
            "categories": {"ward": ["A", "B", "C", 3]},
            "fill": {"age": age_fill, "pressure": 130, "ward": "B"},
            "scale": {"pressure": [80, 200], **({} if span is None else {"age": span})},
        }
    )
    with tempfile.TemporaryDirectory() as place:
        base, mark = Path(place), "\t" if suffix == ".tsv" else ","
        lines = [mark.join(CELLS), *(mark.join(CELLS[name][row] for name in CELLS) for row in order)]
        text = "\n".join(lines) + "\n"
        (base / source.source).write_bytes(_packed(text.encode()) if suffix.endswith("gz") else text.encode())
        loaded = load(source, Split(kind="record"), base=base, generator=np.random.default_rng)
        preparation = loaded.preparation
        assert preparation is not None
        wanted = {column.name: not column.categories for column in preparation.columns}
        (chunk,) = list(chunks(preparation.source(source.source), base, wanted))
        rows, dropped = preparation.rows(chunk.cells, chunk.place)
    assert preparation.features == loaded.feature_names
    assert dropped.tolist() == loaded.train.blank.tolist()
    assert np.array_equal(rows[~dropped], loaded.train.features[~dropped])  # to the last bit


def _packed(data: bytes) -> bytes:
    import gzip

    return gzip.compress(data)


KINDS = ("dpsgd-poisson", "fedavg-masked", "hidden-growing-softmax", "hidden-huber", "prepared-hidden", "simfl")


@settings(max_examples=12)
@given(name=st.sampled_from(KINDS), known=st.booleans())
def test_a_bundle_is_what_was_written(name: str, known: bool) -> None:
    """Every kind of run; with a preparation of the plan's width, or without one."""
    bare = Bundle.of_run(made_run(name), None)
    preparation = _fitting(bare) if known else None
    bundle = Bundle.of_run(made_run(name), preparation)
    data = bundle.write()
    assert bundle.write() == data
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "bundle.zip"
        path.write_bytes(data)
        found = Bundle.read(path)
    assert found.plan == bundle.plan
    assert found.preparation == preparation
    assert found.certificate == json.loads((made_run(name) / "certificate.json").read_text("utf-8"))
    assert np.array_equal(found.parameters, bundle.parameters)
    assert found.write() == data


def _fitting(bundle: Bundle) -> RowRule:
    plan = bundle.plan
    count = plan.data.classes
    labels = Labels(classes=tuple(map(str, range(count))), numbered=True) if count else Labels(span=(0.0, 1.0))
    names = [Column(name=f"x{index}") for index in range(plan.real_features - 1)]
    return RowRule(columns=tuple(names), labels=labels, bound=math.sqrt(plan.data.bound**2 - 1.0))


@pytest.mark.parametrize("name", ["model.npz", "plan.toml", "certificate.json"])
def test_a_bundle_of_two_runs_is_refused(name: str) -> None:
    names = ("plan.toml", "model.npz", "certificate.json")
    files = {file: (made_run("hidden-secret") / file).read_bytes() for file in names}
    files[name] = (made_run("hidden-huber") / name).read_bytes()
    with pytest.raises(BadValue, match="must be"):
        Bundle.of(files, None)
