"""Columns that nobody would choose: handled with a note to the data holder, or one sentence and no charge."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wards import Command

from fedveil.core.errors import BadValue, FedveilError
from fedveil.core.tables import write_tables
from fedveil.engine.system import System
from fedveil.federation.aggregator.consortium import consortium
from fedveil.jobs.local import run_study
from fedveil.wire.content import Content

N = 10_000


def study(folder: Path, columns: dict[str, Any], rows: int = 400, **more: Any) -> dict[str, Any]:
    """A study of one good column and these."""
    generator = np.random.default_rng(0)
    good = generator.normal(300.0, 40.0, rows)
    label = (good + generator.normal(0.0, 10.0, rows) > 300).astype(int)
    cells = {"good": [f"{x:.3f}" for x in good], **{name: list(map(str, c)) for name, c in columns.items()}}
    lines = [",".join([*row, str(y)]) for *row, y in zip(*cells.values(), label, strict=True)]
    (folder / "odd.csv").write_text("\n".join([",".join([*cells, "label"]), *lines]) + "\n")
    return {
        "data": {
            "source": str(folder / "odd.csv"),
            "target": "label",
            "classes": 2,
            "held_out": {"fraction": 0.25, "public": True},
        },
        "clients": {"kind": "equal", "count": 4},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 3.0, "delta": 1e-6, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 20},
        "books": {"ledger": str(folder / "books.sqlite")},
        **more,
    }


def test_odd_columns_are_handled_and_told_to_the_data_holder_alone(tmp_path: Path, command: Command) -> None:
    """Constant, empty, of 1e300, and of ten thousand categories, all at once: the good column still decides."""
    odd = {
        "constant": [7] * N,
        "empty": [""] * N,
        "huge": ["1e300" if k % 7 == 0 else k for k in range(N)],
        "words": [f"w{k}" for k in range(N)],
    }
    tables = study(tmp_path, odd, N)
    nested = {key: value for key, value in tables.items() if key != "data"}
    held = tables["data"].pop("held_out")
    (tmp_path / "study.toml").write_text(write_tables({"data": tables["data"], "data.held_out": held, **nested}))
    told, out = command("run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")), tmp_path / "out"
    assert told.code == 0, told.err
    assert json.loads((out / "metrics.json").read_text())["test"]["accuracy"] > 0.88
    notes = json.loads((out / "private" / "preparation_notes.json").read_text())["notes"]
    for sentence in (
        "Column 'constant' is constant: leave it out (data.ignore).",
        "Column 'empty' has no values: leave it out (data.ignore).",
        "Column 'words': 100% of the records hold a category that was found too rare. List its public categories in "
        "data.categories, or raise epsilon.",
    ):
        assert sentence in notes
        assert sentence in " ".join(told.err.split())
        assert sentence not in told.out
        for path in out.iterdir():
            assert path.is_dir() or sentence.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("column", "prepare", "sentence"),
    [
        (["x" if k == 3 else k for k in range(400)], {}, r"odd\.csv, line 5, column 'odd' must be a number, got 'x'"),
        (["1e400" if k == 3 else k for k in range(400)], {}, r"line 5, column 'odd' must be a finite number"),
        (range(400), {"share": 0.0}, r"prepare\.share must lie strictly between 0 and 1, got 0\.0"),
        (range(400), {"share": 1.0}, r"prepare\.share must lie strictly between 0 and 1, got 1\.0"),
        (range(400), {"share": float("nan")}, r"prepare\.share must"),
        (range(400), {"share": 0.9999}, "with the preparation the best found promises"),
        (range(400), {"components": 2}, r"prepare\.components must be below the 2 features"),
        (range(400), {"whiten": 1}, r"prepare\.whiten must be true or false, got 1"),
        (range(400), {"kind": "stated", "whiten": True}, r"prepare\.whiten must be left out with kind = \"stated\""),
        (["x"] * 400, {"numbers": ["odd"]}, r"column 'odd' must be a number, got 'x'"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_no_charge(
    tmp_path: Path, column: Any, prepare: dict[str, Any], sentence: str
) -> None:
    tables = study(tmp_path, {"odd": column}, prepare=prepare)
    with pytest.raises(FedveilError, match=sentence):
        run_study(tables, tmp_path / "out")
    assert not (tmp_path / "books.sqlite").exists()
    assert not (tmp_path / "out" / "plan.toml").exists()


def test_a_client_without_records_is_refused_here_and_at_a_site(tmp_path: Path) -> None:
    tables = study(tmp_path, {"odd": range(400)}, clients={"kind": "equal", "count": 500})
    with pytest.raises(BadValue, match="Nobody may be left without a record"):
        run_study(tables, tmp_path / "out")
    assert not (tmp_path / "books.sqlite").exists()
    said = Content(values={"features": 2, "classes": 2, "bound": 1.0}, rows={"sizes": np.array([5, 0])})
    with pytest.raises(BadValue, match="The clients of east must have at least one record each"):
        consortium({"east": said})


def test_a_stated_rule_that_does_not_fit_is_told_to_the_data_holder_alone(tmp_path: Path) -> None:
    """The range of the good column is far off, one column is constant, one has no range, and one class is rare."""
    tables = study(tmp_path, {"constant": [7] * 400, "wild": range(400)})
    scale = {"good": [0.0, 1.0], "constant": [0.0, 10.0]}
    tables["data"] |= {"feature_bound": 1.0, "scale": scale, "classes": 3}
    tables["model"] = {"kind": "softmax"}
    told: list[str] = []
    run_study(tables, tmp_path / "out", system=System(note=told.append))
    assert told[0].endswith("State column ranges in data.scale, or a larger data.feature_bound.")
    assert "1 columns have no stated range (data.scale), so large values rule: wild." in told
    assert "Class 2 has 0 records: too few to be learned." in told
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or not any(note.encode() in path.read_bytes() for note in told), path
