"""The command line itself: help, suggestions, completion, errors as JSON, and what is said when a run is stopped."""

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from wards import Command

import fedveil
from fedveil.cli import GROUPS
from fedveil.cli.parsing import App
from fedveil.cli.progress import ProgressLine
from fedveil.engine.system import Interrupted, Progress, System
from fedveil.federation.site.data import read_site_data

BIN = Path(sys.executable).parent
STUDY = {
    "data": {"source": "sklearn:wine", "feature_bound": 1.0},
    "model": {"kind": "softmax"},
    "privacy": {"epsilon": 2.0, "delta": 1e-3},
    "algorithm": {"kind": "dpsgd", "rate": 0.5, "rounds": 3},
}


class TestHelp:
    @pytest.mark.parametrize("words", [["run"], ["deploy", "init"], ["keys", "new"], ["predict"], []])
    def test_it_has_no_backslash(self, command: Command, words: list[str]) -> None:
        said = command(*words, "--help")
        assert said.code == 0
        assert "\\" not in said.out

    def test_required_is_written_as_it_is_meant(self, command: Command) -> None:
        assert " [required]" in command("run", "--help").out

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (["rnu"], "No such command 'rnu'. Did you mean 'run'? See 'fedveil --help'."),
            (["deploy", "ini"], "No such command 'ini'. Did you mean 'init'? See 'fedveil deploy --help'."),
            (["run"], "Missing argument 'study'. See 'fedveil run --help'."),
            (["keys", "new"], "See 'fedveil keys new --help'."),
            (["plan", "--bogus", "x"], "See 'fedveil plan --help'."),
        ],
    )
    def test_a_wrong_use_points_to_the_help_of_that_command(
        self, command: Command, words: list[str], told: str
    ) -> None:
        said = command(*words)
        assert said.code == 2
        assert said.err.strip().replace("'STUDY'", "'study'").endswith(told)  # versions of typer differ
        assert said.err.count("Did you mean") <= 1
        assert len(said.err.splitlines()) == 1


def fedveil_in(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Call the installed program as a shell does, in a home of its own."""
    settings = {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}", **more}
    return subprocess.run([BIN / "fedveil", *words], env=settings, capture_output=True, text=True, check=False)


class TestCompletion:
    """It is typer's own; what is ours: it knows commands whose code is not loaded, and loads the one in question."""

    @pytest.mark.parametrize(
        ("words", "place", "expected"),
        [
            ("fedveil ru", 1, ["run"]),
            ("fedveil run --res", 2, ["--resume"]),
            ("fedveil deploy i", 2, ["init"]),
        ],
    )
    def test_it_answers_a_shell(self, tmp_path: Path, words: str, place: int, expected: list[str]) -> None:
        asked = {"_FEDVEIL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
        said = fedveil_in(tmp_path, **asked)
        assert said.returncode == 0
        assert said.stdout.split() == expected

    def test_a_question_that_no_shell_asks_is_one_sentence(self, tmp_path: Path) -> None:
        for asked in ("1", "bash", "complete_tcsh"):
            said = fedveil_in(tmp_path, _FEDVEIL_COMPLETE=asked)
            assert said.returncode != 0
            assert len(said.stderr.splitlines()) == 1

    @pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
    def test_it_is_installed_once_however_often_and_bash_completes_a_command(self, tmp_path: Path) -> None:
        (tmp_path / ".bashrc").write_text("alias ll='ls -l'\n")
        run = {"env": {"HOME": str(tmp_path), "PATH": f"{BIN}:{os.environ['PATH']}"}, "text": True, "check": True}
        for _ in range(2):  # called by a shell, which typer recognises
            subprocess.run(["bash", "--norc", "-c", "fedveil --install-completion; true"], capture_output=True, **run)
        lines = [line for line in (tmp_path / ".bashrc").read_text().splitlines() if line]
        assert lines[0] == "alias ll='ls -l'"
        assert len(lines) == 2
        words = f"{lines[1]}; COMP_WORDS=(fedveil calib); COMP_CWORD=1; _fedveil_completion fedveil; "
        words += 'printf "%s\\n" "${COMPREPLY[@]}"'
        found = subprocess.run(["bash", "--norc", "-c", words], capture_output=True, **run)
        assert found.stdout.split() == ["calibrate"]


class TestErrors:
    @pytest.mark.parametrize(
        "words",
        [
            ["plan", "none.toml"],
            ["run", "none.toml", "--out", "x"],
            ["certify", "none"],
            ["account", "none.toml", "--delta", "1e-5"],
            ["audit", "none"],
            ["report", "none"],
            ["predict", "none", "none.csv", "--out", "p.csv"],
            ["profile", "none.csv", "--epsilon", "1"],
            ["compare", "none.toml", "--out", "x"],
            ["ledger", "none"],
            ["run"],
            ["site", "--data", "none", "--key", "none", "--records", "none"],
        ],
    )
    def test_with_json_they_are_json_on_standard_output_as_well(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        said = command(*words, "--json")
        assert said.code == 2
        found = json.loads(said.out)
        assert found["code"] == 2
        assert said.err == f"fedveil: {found['error']}\n"
        assert "Errno" not in said.err
        assert command(*words).out == ""  # and without it standard output stays empty

    def test_figures_without_matplotlib_say_what_to_install(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fedveil.cli.figures.find_spec", lambda name: None)
        said = command("figures", "--out", tmp_path / "figures")
        assert (said.code, said.err) == (2, "fedveil: The figures need matplotlib: pip install 'fedveil[figures]'.\n")
        assert not (tmp_path / "figures").exists()

    def test_a_result_is_not_followed_by_a_second_object(self, command: Command, tmp_path: Path) -> None:
        fedveil.run_study(STUDY, tmp_path / "out")
        stated = (tmp_path / "out" / "certificate.json").read_text()
        (tmp_path / "out" / "certificate.json").write_text(stated.replace('"private": true', '"private": false'))
        said = command("certify", tmp_path / "out", "--json")
        assert said.code != 0
        assert json.loads(said.out)["matches"] is False


def test_no_sentence_shows_the_operating_systems_own_words() -> None:
    """An ``except OSError as error`` that formats the error itself would print ``[Errno 2] ...``."""
    root, wrong = Path(fedveil.__file__).parent, list[str]()
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ExceptHandler) or node.type is None or "OSError" not in ast.unparse(node.type):
                continue
            shown = (part for part in ast.walk(node) if isinstance(part, ast.FormattedValue))
            here = [part.lineno for part in shown if ast.unparse(part.value) == node.name]
            wrong += [f"{path.relative_to(root)}:{line}" for line in here]
    assert wrong == []


class TestStopping:
    def stopping_at(self, stage: str) -> System:
        def tell(words: str) -> None:
            if words.startswith(stage):
                raise KeyboardInterrupt

        return System(tell=tell)

    def test_during_planning_nothing_is_charged_and_no_resume_is_advised(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted, match="before anything was charged; begin again") as stopped:
            fedveil.run_study(STUDY, tmp_path / "out", system=self.stopping_at("planning"))
        assert "--resume" not in str(stopped.value)
        fedveil.run_study(STUDY, tmp_path / "out")  # as the sentence says: the same command again

    def test_once_it_has_begun_a_resume_is_advised_and_works(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted, match="go on with the same command and --resume"):
            fedveil.run_study(STUDY, tmp_path / "out", system=self.stopping_at("training"))
        fedveil.run_study(STUDY, tmp_path / "out", resume=True)

    def test_stages_are_told_in_order(self, tmp_path: Path) -> None:
        told: list[str] = []
        fedveil.run_study(STUDY, tmp_path / "out", system=System(tell=told.append))
        kinds = [words.split(":")[0].split(",")[0] for words in told]
        assert kinds == ["reading the data", "planning", "charging the ledger", "training", "certifying"]


class TestProgress:
    class Terminal:
        def __init__(self) -> None:
            self.text = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            self.text += text
            return len(text)

        def flush(self) -> None:
            pass

    def wait_for(self, terminal: Terminal, words: str) -> None:
        """Words appear when the spinner turns next, several times a second."""
        until = time.monotonic() + 120
        while words not in terminal.text:
            assert time.monotonic() < until, terminal.text
            time.sleep(0.01)

    def test_a_terminal_shows_what_is_being_done_before_the_first_round(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = self.Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        shown = ProgressLine(quiet=False)
        shown.stage("reading the data")
        self.wait_for(terminal, "reading the data")
        shown.stage("planning")
        self.wait_for(terminal, "planning")
        shown(Progress(1, 2, 3.0, 0.5))
        self.wait_for(terminal, "round 1 of 2")
        shown.stage("certifying")
        self.wait_for(terminal, "certifying")
        shown.close()

    def test_quiet_is_quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = self.Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        shown = ProgressLine(quiet=True)
        shown.stage("reading the data")
        shown(Progress(1, 2, 3.0, 0.5))
        shown.close()
        assert terminal.text == ""


@pytest.mark.parametrize("clients", ["", "[clients]\n"])
def test_a_site_that_says_nothing_of_clients_is_one(tmp_path: Path, clients: str) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,0\n2,1\n")
    text = '[data]\nsource = "x.csv"\ntarget = "b"\nclasses = 2\nfeature_bound = 1.0\n' + clients
    (tmp_path / "data.toml").write_text(text)
    assert read_site_data(tmp_path / "data.toml").records.clients == 1


def test_every_command_is_listed_once_with_a_whole_line() -> None:
    """The list is shown without loading a command: its names are those that the modules add."""
    listed = [(module, name) for modules in GROUPS.values() for module, names in modules.items() for name in names]
    added = []
    for module in dict.fromkeys(module for module, _ in listed):
        app = App()
        app.callback()(lambda: None)
        import_module(f"fedveil.cli.{module}").register(app)
        group: Any = typer.main.get_command(app)
        assert all(command.help for command in group.commands.values())
        added += [(module, name) for name in group.commands]
    assert sorted(added) == sorted(listed)


def test_help_shows_every_line_in_full_at_80_columns(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = command("--help").out
    lines = {line for modules in GROUPS.values() for names in modules.values() for line in names.values()}
    assert all(any(row.endswith(line) for row in shown.splitlines()) for line in lines)
    assert all(len(row) <= 80 for row in shown.splitlines())
    assert [group for group in GROUPS if f"\n{group}:\n" in shown] == list(GROUPS)


LISTING = """
import sys
from fedveil.cli import main
sys.argv = ["fedveil", *{words!r}]
try:
    main()
finally:
    loaded = set(sys.modules)
    heavy = loaded & {{"numpy", "scipy", "sklearn", "rich", "cryptography", "matplotlib", "pyarrow", "torch", "flwr"}}
    parts = [name for name in loaded if name.startswith("fedveil.") and name not in {light!r}]
    assert not heavy, heavy
    assert not parts, parts
"""


@pytest.mark.parametrize(
    ("words", "code"), [([], 2), (["--help"], 0), (["--version"], 0), (["rnu"], 2), (["--bogus"], 2)]
)
def test_help_and_wrong_calls_load_no_command(words: list[str], code: int) -> None:
    light = ["fedveil.cli", "fedveil.cli.parsing", "fedveil.cli.show", "fedveil.core", "fedveil.core.errors"]
    light += ["fedveil.version"]
    text = LISTING.format(words=words, light=light)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


LIGHT = """
import sys
from importlib.util import find_spec
import fedveil.cli.node, fedveil.cli.relay, fedveil.cli.keys
assert "numpy" not in sys.modules  # what carries messages computes nothing
if find_spec("starlette") and find_spec("uvicorn"):
    import fedveil.studio.app
    assert "scipy" not in sys.modules  # nor does what shows the first page
import fedveil.accounting.compare, fedveil.cli.studies, fedveil.cli.studio, fedveil.cli.site
assert not {"scipy.signal", "scipy.stats", "sklearn", "matplotlib", "pyarrow", "torch", "flwr"} & set(sys.modules)
"""


def test_what_takes_long_to_load_is_not_loaded_before_it_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
