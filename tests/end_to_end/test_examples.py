"""Every example runs as it stands: the studies by the command line, the notebooks cell by cell."""

import json
import shutil
from pathlib import Path

import pytest
from wards import Command

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDIES = sorted(EXAMPLES.glob("*.toml"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for study in STUDIES:
        shutil.copy(study, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_a_study_beats_the_best_constant_answer_within_its_epsilon(study: Path, folder: Path, command: Command) -> None:
    done = command("run", study.name, "--out", "out", "--quiet")
    assert done.code == 0, done.err
    test = json.loads((folder / "out" / "metrics.json").read_text())["test"]
    if "accuracy" in test:
        assert test["accuracy"] > test["baseline"]["accuracy"]  # by 15 points and more, many times the noise's spread
    else:
        assert test["mae"] < test["baseline"]["mae"]
    certificate = json.loads((folder / "out" / "certificate.json").read_text())
    assert certificate["private"] is True
    assert any(row["epsilon"] is not None and row["epsilon"] <= 8 for row in certificate["guarantees"])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("folder")
def test_a_notebook_runs_cell_by_cell(notebook: Path) -> None:
    if "sqlite://" in notebook.read_text(encoding="utf-8"):
        pytest.importorskip("sqlalchemy", reason="records in a database need fedveil[sql]")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 2
    names: dict[str, object] = {"__name__": "__notebook__"}
    for number, text in enumerate(code, start=1):
        exec(compile(text, f"{notebook.name}, cell {number}", "exec"), names)


def test_everything_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(STUDIES) == 5
    assert len(NOTEBOOKS) == 4
    assert all(path.name in listed for path in [*STUDIES, *NOTEBOOKS])
