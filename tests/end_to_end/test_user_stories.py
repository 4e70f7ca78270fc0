"""What a first user tries: every kind of study on small data, odd data, odd names, odd folders; and what they read."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil import cli, run_study

STUDY = """
[data]
feature_bound = 1.0
{data}
[model]
{model}
[privacy]
epsilon = 2.0
delta = 1e-4
{privacy}
[schedule]
{schedule}
{more}
"""
QUICK = "kind = 'constant'\npasses = 1\nrounds = 4"
TABLE = "source = 'table.csv'\ntarget = 'y'\nclasses = 2"
HELD_OUT = "[data.held_out]\nfraction = 0.25\npublic = true\n"
VOID = {"meta", "link", "br", "line", "rect", "circle", "path", "polyline", "polygon"}


@dataclass(frozen=True)
class Seen:
    """What a command left behind: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


Command = Callable[..., Seen]


@pytest.fixture
def fedveil(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process, on a screen of 80 columns."""

    def run(*arguments: object) -> Seen:
        monkeypatch.setattr("sys.argv", ["fedveil", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        seen = capsys.readouterr()
        return Seen(int(str(stop.value.code)), seen.out, seen.err)

    return run


def sentence(seen: Seen) -> str:
    """What a refusal says: one line, for a person, and nothing else."""
    assert seen.code == 2, seen.err
    assert seen.out == ""
    assert seen.err.startswith("fedveil: ")
    assert seen.err.count("\n") == 1
    assert "internal error" not in seen.err
    return seen.err


def study(folder: Path, **parts: str) -> Path:
    """A study of 120 rows with two features, unless parts of it are stated."""
    settings = {"data": TABLE, "model": "kind = 'logistic'", "privacy": "", "schedule": QUICK, "more": ""}
    path = folder / "study.toml"
    path.write_text(STUDY.format(**(settings | parts)), encoding="utf-8")
    return path


def table(folder: Path, rows: int = 120, name: str = "table.csv", head: str = "a,b,y") -> list[str]:
    """Write a table of two features and a label; its lines."""
    generator = np.random.default_rng(1)
    block = generator.uniform(-1, 1, size=(rows, 2))
    labels = block @ [2.0, -1.0] > 0
    lines = [head, *(f"{a:.3f},{b:.3f},{int(y)}" for (a, b), y in zip(block, labels, strict=True))]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lines


class Page(HTMLParser):
    """A page whose tags must close in order; its text and tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


DIABETES = "source = 'sklearn:diabetes'\ntarget_scale = [25, 346]"
LOSSES = {
    "huber": (f"{DIABETES}\n{HELD_OUT}", "kind = 'huber'\nthreshold = 0.5"),
    "smoothed-hinge": (f"{TABLE}\n{HELD_OUT}", "kind = 'smoothed-hinge'\nsmoothing = 0.5\nl2 = 0.01\nradius = 5.0"),
    "softmax": (f"source = 'sklearn:wine'\n{HELD_OUT}", "kind = 'softmax'\nclip = 0.5\nradius = 10.0"),
    "logistic": (f"{TABLE}\n{HELD_OUT}", "kind = 'logistic'"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_from_study_to_page(tmp_path: Path, loss: str, fedveil: Command) -> None:
    table(tmp_path)
    data, model = LOSSES[loss]
    seen = fedveil("run", study(tmp_path, data=data, model=model), "--out", tmp_path / "out", "--json")
    assert seen.code == 0, seen.err
    result = json.loads(seen.out)
    assert 1.9 < result["guarantees"][0]["epsilon"] <= 2.0
    assert np.isfinite(result["metrics"]["test"]["loss"])
    assert loss in page(tmp_path / "out").text
    again = fedveil("certify", tmp_path / "out", "--json")
    assert json.loads(again.out)["matches"] is True


SCHEDULES = {
    "sizes of their own": ("batch = [20, 40, 60]\npasses = 2", "kind = 'logistic'"),
    "steps of their own": ("step_size = [0.5, 0.4, 0.3]\nrounds = 3\npasses = 2", "kind = 'logistic'"),
    "until it stands still": ("rounds = 'converged'\nkind = 'constant'", "kind = 'logistic'\nl2 = 0.1\nradius = 3.0"),
    "noise of their own": ("noise_std = 9.0\nrounds = 4\npasses = 1", "kind = 'logistic'"),
    "noise by round": ("noise_std = [9.0, 8.0, 7.0]\nrounds = 3\npasses = 1\nstep_size = 0.5", "kind = 'logistic'"),
}


@pytest.mark.parametrize("stated", SCHEDULES)
def test_every_number_of_a_schedule_may_be_stated(tmp_path: Path, stated: str, fedveil: Command) -> None:
    table(tmp_path)
    schedule, model = SCHEDULES[stated]
    seen = fedveil("plan", study(tmp_path, schedule=schedule, model=model), "--json")
    assert seen.code == 0, seen.err
    result = json.loads(seen.out)
    assert result["guarantees"][0]["epsilon"] <= 2.0
    if "noise_std" in schedule:
        assert max(np.atleast_1d(result["method"]["noise_std"])) == 9.0
    if "batch" in schedule:
        assert result["method"]["batch"] == [20, 40, 60]


@pytest.mark.parametrize("adversary", ["curious-client", "every-model", "server-with-secure-aggregation", "server"])
def test_the_target_is_met_for_whom_it_is_meant(tmp_path: Path, adversary: str, fedveil: Command) -> None:
    table(tmp_path)
    privacy = f"adversary = '{adversary}'\nneighbours = 'zero-out'"
    clients = "[clients]\nkind = 'equal'\ncount = 12"
    seen = fedveil("plan", study(tmp_path, privacy=privacy, more=clients), "--json")
    assert seen.code == 0, seen.err
    epsilon = {row["adversary"]: row["epsilon"] for row in json.loads(seen.out)["guarantees"]}
    assert 1.9 < epsilon[adversary] <= 2.0
    assert epsilon["final-model"] <= epsilon["every-model"]


def test_one_dimension_may_use_laplace_noise(tmp_path: Path) -> None:
    table(tmp_path)
    data = f"{TABLE}\ncolumns = ['a']\nintercept = 0"
    more = "[algorithm]\nnoise = 'laplace'"
    path = study(tmp_path, data=data, model="kind = 'logistic'\nradius = 3.0", schedule="rounds = 100", more=more)
    certificate = run_study(path, tmp_path / "out").certificate
    assert certificate.plan.dimension == 1
    assert certificate.guarantees[0].answer.epsilon <= 2.0


def test_a_page_about_random_stopping_does_not_speak_of_the_last_model(tmp_path: Path) -> None:
    table(tmp_path)
    run_study(study(tmp_path, more="[algorithm]\nstopping = 'random'"), tmp_path / "out")
    assert "only one, drawn at random, is released" in page(tmp_path / "out").text


@pytest.mark.parametrize("case", ["five rows", "one class", "all zero", "one row"])
def test_poor_data_are_no_reason_to_fail(tmp_path: Path, case: str, fedveil: Command) -> None:
    lines = table(tmp_path, rows={"five rows": 5, "one row": 1}.get(case, 60))
    rows = [line.split(",") for line in lines[1:]]
    if case == "one class":
        rows = [[a, b, "1"] for a, b, _ in rows]
    if case == "all zero":
        rows = [["0", "0", y] for _, _, y in rows]
    (tmp_path / "table.csv").write_text("\n".join([lines[0], *(",".join(row) for row in rows)]) + "\n")
    path = study(tmp_path, schedule="kind = 'constant'\npasses = 3\nrounds = 1")
    assert fedveil("run", path, "--out", tmp_path / "out", "--quiet") == Seen(0, "", "")
    with np.load(tmp_path / "out" / "model.npz", allow_pickle=False) as model:
        assert np.all(np.isfinite(model["parameters"]))
    assert page(tmp_path / "out").text.count("record") > 3


@pytest.mark.parametrize("how", ["excel", "quoted", "blank lines", "windows", "spaces"])
def test_tables_as_other_programs_write_them(tmp_path: Path, how: str, fedveil: Command) -> None:
    lines = table(tmp_path, head="y,b,a")
    text = {
        "excel": "\ufeff" + "\n".join(lines),
        "quoted": "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in lines),
        "blank lines": "\n".join(lines) + "\n\n\n",
        "windows": "\r\n".join(lines),
        "spaces": "\n".join(lines).replace(",", ", "),
    }[how]
    (tmp_path / "table.csv").write_bytes(text.encode())
    data = "source = 'table.csv'\ntarget = 'a'\nclasses = 2"
    seen = fedveil("plan", study(tmp_path, data=data), "--json")
    assert seen.code == 0, seen.err
    assert json.loads(seen.out)["method"]["records"] == 120


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("0\n", ",0\n"), ["table.csv, line"]),
        (("a,b,y", "a,a,y"), ["'a'"]),
        (("a,b,y", "a;b;y"), ["table.csv, line", "data.delimiter"]),
        (("-0.", "nan;-0."), ["table.csv, line", "data.missing"]),
    ],
)
def test_a_bad_table_is_refused_with_its_place(
    tmp_path: Path, change: tuple[str, str], words: list[str], fedveil: Command
) -> None:
    path = study(tmp_path)
    lines = table(tmp_path)
    (tmp_path / "table.csv").write_text(("\n".join(lines) + "\n").replace(*change, 1))
    said = sentence(fedveil("plan", path))
    assert all(word in said for word in words), said


def test_missing_values_are_refused_filled_or_dropped_as_the_study_says(tmp_path: Path, fedveil: Command) -> None:
    lines = table(tmp_path)
    (tmp_path / "table.csv").write_text("\n".join([*lines, "NA,0.3,1"]) + "\n")
    said = sentence(fedveil("plan", study(tmp_path)))
    assert "table.csv, line 122, column 'a'" in said
    assert "data.default_fill" in said
    for rule, rows in (("0.0", 121), ("'drop-row'", 121)):  # a dropped row keeps its place, as a blank record
        seen = fedveil("plan", study(tmp_path, data=f"{TABLE}\ndefault_fill = {rule}"), "--json")
        assert json.loads(seen.out)["method"]["records"] == rows


NAME = "Zürich <script>alert(1)</script> & 東京"


def test_names_in_any_script_and_with_markup(tmp_path: Path, fedveil: Command) -> None:
    folder = tmp_path / "mes études 東"
    folder.mkdir()
    lines = table(folder)
    sites = ["<b>north</b>", "süd & west"]
    rows = [f"{line},{sites[number % 2]}" for number, line in enumerate(lines[1:])]
    (folder / "table.csv").write_text("\n".join(["größe,b,y,site", *rows]) + "\n", encoding="utf-8")
    data = f"{TABLE}\nclient_column = 'site'\n{HELD_OUT}"
    more = f"[study]\nname = '{NAME}'\n[clients]\nkind = 'column'"
    seen = fedveil("run", study(folder, data=data, more=more), "--out", folder / "mon résultat")
    assert seen.code == 0, seen.err
    assert seen.out.startswith("Zürich <script>")
    shown = page(folder / "mon résultat")
    assert NAME in shown.text
    assert "script" not in shown.tags


def test_a_study_is_read_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    table(home)
    path = study(home, more="[books]\nledger = 'books.sqlite'\ncap = {final-model = [3.0, 1e-3]}")
    monkeypatch.chdir(other)
    run_study(path, "out")
    assert (home / "books.sqlite").exists()
    assert (other / "out" / "model.npz").exists()


@pytest.mark.parametrize("command", ["demo", "plan", "run", "certify", "report"])
def test_every_help_has_an_example_and_fits_the_screen(command: str, fedveil: Command) -> None:
    seen = fedveil(command, "--help")
    assert seen.code == 0
    assert f"Example: fedveil {command}" in seen.out
    assert "--json" in seen.out
    assert max(map(len, seen.out.splitlines())) <= 80


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    table(folder)
    run_study(study(folder), folder / "out")
    return folder / "out"


def test_what_is_printed_fits_80_columns_and_names_the_page(finished: Path, fedveil: Command) -> None:
    planned = fedveil("plan", finished.parent / "study.toml")
    certified = fedveil("certify", finished)
    for seen in (planned, certified):
        assert seen.code == 0, seen.err
        assert max(map(len, seen.out.splitlines())) <= 80
        for who in ("final-model", "curious-client", "every-model", "server"):
            assert who in seen.out
    assert "report.html" in fedveil("report", finished).out


@pytest.mark.parametrize("victim", ["plan.toml", "ledger.jsonl", "certificate.json", "model.npz"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00garbage", b"{}"])
def test_certify_on_garbage(
    finished: Path, tmp_path: Path, victim: str, content: bytes | None, fedveil: Command
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    path = folder / victim
    path.unlink() if content is None else path.write_bytes(content)
    seen = fedveil("certify", folder, "--json")
    assert seen.code == 2
    assert seen.err.startswith("fedveil: ")
    assert seen.err.count("\n") == 1
    found = json.loads(seen.out)
    assert found.get("matches") is False or seen.err == f"fedveil: {found['error']}\n"


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"format": 1, "test": {"accuracy": "high"}}'])
def test_a_report_needs_the_metrics_and_leaves_the_old_page(
    finished: Path, tmp_path: Path, content: bytes | None, fedveil: Command
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    path = folder / "metrics.json"
    path.unlink() if content is None else path.write_bytes(content)
    assert "metrics.json" in sentence(fedveil("report", folder))
    assert (folder / "report.html").read_bytes() == (finished / "report.html").read_bytes()


PLACES = {
    "no study": (("plan", "nothing.toml"), "nothing.toml"),
    "a folder for a study": (("plan", "."), "."),
    "a file for a folder": (("run", "study.toml", "--out", "study.toml"), "--out"),
    "no run to certify": (("certify", "nothing"), "plan.toml"),
    "no run to report": (("report", "study.toml"), "plan.toml"),
    "an option that is none": (("plan", "study.toml", "--bogus"), "--bogus"),
    "no place for the results": (("run", "study.toml"), "--out"),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_wrong_place_is_one_sentence(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, fedveil: Command
) -> None:
    table(tmp_path)
    study(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments, word = PLACES[place]
    assert word in sentence(fedveil(*arguments))


KINDS = {
    "too many rounds": ({"schedule": "rounds = 1000"}, "schedule.rounds"),
    "batches that do not fit": ({"schedule": "batch = [100, 100]"}, "schedule.batch"),
    "steps that do not fit": ({"schedule": "step_size = [0.5, 0.4]\nrounds = 3"}, "schedule.step_size"),
    "half a pass": ({"schedule": "passes = 0.5"}, "schedule.passes"),
    "no privacy": ({"privacy": "unit = 'person'"}, "privacy.unit"),
    "the wrong loss": ({"model": "kind = 'huber'"}, "huber"),
    "a text for a number": ({"model": "kind = 'logistic'\nl2 = 'much'"}, "l2"),
    "more clients than rows": ({"more": "[clients]\nkind = 'equal'\ncount = 121"}, "clients.count"),
    "a kind that is none": ({"more": "[clients]\nkind = 'equals'\ncount = 3"}, "Did you mean equal?"),
    "a cap below the run": ({"more": "[books]\ncap = {final-model = [1.0, 1e-3]}"}, "cap"),
}


@pytest.mark.parametrize("stated", KINDS)
def test_a_wish_that_cannot_be_met_is_refused_by_its_name(tmp_path: Path, stated: str, fedveil: Command) -> None:
    table(tmp_path)
    parts, word = KINDS[stated]
    assert word in sentence(fedveil("run", study(tmp_path, **parts), "--out", tmp_path / "out"))
    assert not (tmp_path / "out" / "plan.toml").exists()
