"""A study drafted for unknown data: types are told from the cells, and everything that is open is asked at once."""

from pathlib import Path

import pytest

from fedveil.core.errors import FedveilError
from fedveil.data.spec import Features
from fedveil.jobs.draft.columns import columns_of
from fedveil.jobs.draft.study import Draft, DraftTarget, usual_delta
from fedveil.jobs.entry import Wish, draft_study, init_study, profile_data
from fedveil.planning.study import read_study

CSV = """patient_id,admitted,age,ward,cost,empty,ill
P1,2021-03-04,63,A,"1,200.50",,yes
P2,2021-04-04,?,B,800,,no
P3,2021-05-04,57,,"12,000",,no
P4,,70,C,75.5,,yes
"""


def written(folder: Path, text: str = CSV, name: str = "visits.csv") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_columns_are_told_by_their_types(tmp_path: Path) -> None:
    found = columns_of(written(tmp_path), Path(), {})
    assert dict(found.kinds) == {
        "patient_id": "texts",
        "admitted": "dates",
        "age": "numbers",
        "ward": "texts",
        "cost": "numbers",
        "empty": "empty",
        "ill": "texts",
    }
    assert found.reading == {"thousands": ","}
    assert set(found.unused) == {"patient_id", "admitted", "empty"}
    assert found.records == 4


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("a;b\n1,5;x\n2,25;y\n", {"delimiter": ";", "decimal": ","}),
        ("a;b\n1.234,5;x\n2,25;y\n", {"delimiter": ";", "decimal": ",", "thousands": "."}),
        ("a\tb\n1.5\tx\n", {"delimiter": "\t"}),
        ("a|b\n1.5|x\n", {"delimiter": "|"}),
        ("a,b\n1.5,x\n", {}),
        ('a,b\n"1,234",x\n7,y\n', {"thousands": ","}),
        ("1,2.5,0\n3,4.5,1\n", {"header": False}),
        ("a;b\n1 234,5;x\n", {"delimiter": ";", "decimal": ",", "thousands": " "}),
    ],
)
def test_how_a_file_is_written_is_recognised(tmp_path: Path, text: str, reading: dict[str, object]) -> None:
    found = columns_of(written(tmp_path, text), Path(), {})
    assert found.reading == reading
    assert next(iter(found.kinds.values())) == "numbers"


def test_texts_with_commas_stay_texts(tmp_path: Path) -> None:
    found = columns_of(written(tmp_path, 'a,b\n"x, y",1\n"1,5 mg",2\n'), Path(), {})
    assert found.kinds["a"] == "texts"
    assert found.reading == {}


def test_all_questions_are_asked_at_once(tmp_path: Path) -> None:
    draft, _ = draft_study(Wish(data=written(tmp_path)))
    assert [one.key for one in draft.questions] == ["data.target", "data.classes", "data.ignore"]
    assert draft.target.column == "ill"
    assert not draft.complete
    text = draft.text()
    assert text.count("# OPEN") == 3


def test_answered_it_has_no_question_and_reads_as_a_study(tmp_path: Path) -> None:
    out = tmp_path / "study.toml"
    wish = Wish(data=written(tmp_path), target="ill", classes=("no", "yes"), ignore=("patient_id",))
    draft, _ = init_study(wish, out)
    assert draft.questions == ()
    study = read_study(out)
    assert study.source is not None
    assert study.source.labelling.classes == ("no", "yes")
    assert study.source.source == "visits.csv"
    assert set(study.source.features.ignore) == {"patient_id", "admitted", "empty"}
    assert study.prepare is not None
    assert study.prepare.numbers == ("age", "cost")
    assert study.prepare.texts == ("ward",)
    assert study.model.kind == "logistic"


def test_no_value_of_the_data_is_in_the_draft(tmp_path: Path) -> None:
    draft, _ = draft_study(Wish(data=written(tmp_path)))
    text = draft.text()
    for value in ("P1", "2021", "63", "800", "yes", '"A"'):
        assert value not in text


def test_other_cells_of_the_same_types_give_the_same_draft(tmp_path: Path) -> None:
    first, _ = draft_study(Wish(data=written(tmp_path)))
    other = CSV.replace("63", "11").replace("A,", "Q,").replace("yes", "maybe").replace("75.5", "3.25")
    assert draft_study(Wish(data=written(tmp_path, other)))[0].text() == first.text()


def test_a_file_without_a_header_names_its_target_by_number(tmp_path: Path) -> None:
    out = tmp_path / "s.toml"
    init_study(Wish(data=written(tmp_path, "1,2.5,0\n3,4.5,1\n"), classes=("0", "1")), out)
    study = read_study(out)
    assert study.source is not None
    assert study.source.labelling.target == 2
    assert study.source.reading.header is False


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"target": "il"}, "--target must name a column of the data, got 'il'. Did you mean ill"),
        (
            {"client_column": "warden"},
            "--client-column must name a column of the data, got 'warden'. Did you mean ward",
        ),
        ({"ignore": ("x y z",)}, "--ignore must name a column of the data"),
        ({"classes": ("yes",)}, "--classes must name at least two"),
        ({"classes": ("a", "b"), "range": (0.0, 1.0)}, "--range must be left out with --classes"),
        ({"range": (3.0, 1.0)}, "--range must be a range"),
    ],
)
def test_a_wrong_answer_is_refused(tmp_path: Path, given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match="^" + told.replace(".", r"\.")):
        draft_study(Wish(data=written(tmp_path), **given))  # type: ignore[arg-type]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "study.toml"
    out.write_text("mine")
    with pytest.raises(FedveilError, match="--out must name a new file"):
        init_study(Wish(data=written(tmp_path)), out)
    assert out.read_text() == "mine"
    init_study(Wish(data=written(tmp_path)), out, instead=True)
    assert "[data]" in out.read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "hold at least one row"), ("a\n1\n", "have at least two columns"), ("a,b\n", "hold at least one row")],
)
def test_a_file_without_a_table_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(FedveilError, match=told):
        columns_of(written(tmp_path, text), Path(), {})


def test_keys_and_texts_of_any_spelling_survive_the_file(tmp_path: Path) -> None:
    draft = Draft(
        name='quote " and \\ back',
        source="a b.csv",
        target=DraftTarget(column="tär get", classes=('yes, "so"', "no\tso")),
        records=10,
        rules=Features(
            scale={"a.b": (0.0, 1.0), "c d": (-1.0, 2.5)},
            categories={'e"f': ("x", "(other)")},
            fill={"tär get": "drop-row"},
        ),
    )
    path = tmp_path / "s.toml"
    path.write_text(draft.text(), encoding="utf-8")
    study = read_study(path)
    assert study.name == draft.name
    assert study.source is not None
    assert study.source.labelling.classes == ('yes, "so"', "no\tso")
    assert study.source.features.scale == {"a.b": (0.0, 1.0), "c d": (-1.0, 2.5)}
    assert study.source.features.categories == {'e"f': ("x", "(other)")}


@pytest.mark.parametrize("records", [1, 9, 10_000, 99_999, 10**7])
def test_the_usual_delta_is_below_one_over_the_records(records: int) -> None:
    assert usual_delta(records) <= 1e-4
    assert usual_delta(records) < 1 / records


def test_every_column_that_mixes_numbers_and_texts_is_named_at_once(tmp_path: Path) -> None:
    text = "a,b,c,ill\n1,2,x,no\n2,none,y,yes\nmany,3,z,no\n4,5,1,yes\n5,?,w,no\n"
    wish = Wish(data=written(tmp_path, text), target="ill", classes=("no", "yes"))
    draft, found = draft_study(wish)
    assert found.mixed == ("a", "b")
    assert [one.key for one in draft.questions] == ["column 'a'", "column 'b'"]
    assert not draft.complete
    with pytest.raises(FedveilError, match=r"--ignore a --ignore b"):
        profile_data(wish, 1.0, tmp_path / "out")
    assert not (tmp_path / ".fedveil").exists()
    left, _ = draft_study(Wish(data=wish.data, target="ill", classes=("no", "yes"), ignore=("a", "b")))
    assert left.complete
