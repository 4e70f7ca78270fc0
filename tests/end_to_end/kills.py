"""The real command in a fresh process that dies, or is told to stop, at a named step of its own.

``python kills.py --at STEP [--signal INT] -- run STUDY --out DIR``: the command, but before the step (its number, or
its name, as in ``round 3``) the process sends itself a signal, SIGKILL unless another is named. A step is a file
that is opened for writing, renamed, linked, chmoded or removed, a folder that is made, a statement to the ledger's
database, or a round of training; Python's audit events and a subclass of SQLite's connection tell them, so the
product has no hooks.
``--steps FILE`` writes the names of all steps.

Nothing waits for seconds: every kill is at a step. Kills of every kind of job at all of its steps: tools/kill_jobs.py.
"""

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

STUDY = """
[data]
source = "data.npz"
feature_bound = 1.0
classes = 2
target = "y"
[data.held_out]
fraction = 0.2
public = true
[model]
kind = "logistic"
radius = 5.0
[privacy]
epsilon = 2.0
delta = 1e-4
[schedule]
kind = "constant"
passes = 2
rounds = 3
step_size = 0.05
noise_std = 60.0
"""
FILES = {
    "bundle.zip",
    "certificate.json",
    "ledger.jsonl",
    "metrics.json",
    "model.npz",
    "plan.toml",
    "private",
    "report.html",
}
BOOKS = {"data.npz.sqlite" + end for end in ("", ".head", "-wal", "-shm")}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Steps:
    """Counts the steps in a folder, and sends the signal before the one that was asked for."""

    def __init__(self, folder: Path, at: str | None, number: int) -> None:
        self.folder, self.at, self.number, self.seen = str(folder), at, number, list[str]()

    def step(self, name: str) -> None:
        self.seen.append(name)
        if self.at in (name, str(len(self.seen) - 1)):
            os.kill(os.getpid(), self.number)

    def audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        places = {"os.rename": 1, "os.link": 1, "os.remove": 0, "os.mkdir": 0, "os.chmod": 0, "os.truncate": 0}
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if writes or event in places:
            path = arguments[places.get(event, 0)]
            if isinstance(path, int):
                self.step(f"{event} a handle")
            elif isinstance(path, str | Path) and str(path).startswith(self.folder):
                name = Path(path).name
                self.step(f"{event} {name.split('.part')[0][1:-9] + '.part' if name.endswith('.part') else name}")


def watched(steps: Steps) -> None:
    """Make this process tell its steps."""
    from fedveil.cli import studies
    from fedveil.engine.system import System

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *more: Any) -> Any:
            steps.step(f"before {sql[:16]}")
            found = super().execute(sql, *more)
            steps.step(f"after {sql[:16]}")
            return found

    real = sqlite3.connect

    def connect(*arguments: Any, **named: Any) -> Any:
        return real(*arguments, **{"factory": Connection, **named})

    @contextmanager
    def progress(_: bool) -> Iterator[Any]:
        def watch(now: Any) -> None:
            steps.step(f"round {now.round}")

        watch.stage = lambda _: None  # type: ignore[attr-defined]
        yield watch

    sqlite3.connect = connect  # type: ignore[assignment]
    studies.progress = progress  # type: ignore[assignment]
    studies.System = lambda **given: System(checkpoint_every=0.0, **given)  # type: ignore[assignment, misc]  # every round
    sys.addaudithook(steps.audited)


def command(*words: object, at: str | None = None, stop: str = "KILL", log: Path | None = None) -> list[str]:
    """The words of a process that runs a command, and stops at a step."""
    wish = [] if at is None else ["--at", at]
    wish += [] if log is None else ["--steps", str(log)]
    return [sys.executable, "-B", __file__, *wish, "--signal", stop, "--", *map(str, words)]


def started(*words: object, **wish: Any) -> "subprocess.CompletedProcess[str]":
    """A fresh process, and what came of it."""
    return subprocess.run(command(*words, **wish), capture_output=True, text=True, check=False)


def write_study(folder: Path, more: str = "") -> Path:
    """A small study with its data."""
    generator = np.random.default_rng(0)
    block = generator.normal(size=(100, 3)) / 3
    np.savez(folder / "data.npz", X=block, y=(block[:, 0] > 0).astype(np.int64))
    path = folder / "study.toml"
    path.write_text(STUDY + more, encoding="utf-8")
    return path


def check_now(out: Path) -> None:
    """At any moment: an output was recorded before it appeared, and was charged before that."""
    books = out.parent / ".fedveil" / "data.npz.sqlite"
    stories: dict[str, list[str]] = {}
    models: set[str] = set()
    if books.exists():
        with tempfile.TemporaryDirectory() as name:  # looking must not repair anything
            for path in books.parent.glob(f"{books.name}*"):
                shutil.copy(path, name)
            with closing(sqlite3.connect(Path(name) / books.name)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                rows = connection.execute("SELECT run, kind, payload FROM entries ORDER BY sequence").fetchall()
        for run, kind, payload in rows:
            stories.setdefault(run, []).append(kind)
            models |= {json.loads(payload)["model"]} if kind == "release" else set()
    assert all(story in (["charge"], ["charge", "release"]) for story in stories.values()), stories
    if (out / "model.npz").exists():
        assert sha256((out / "model.npz").read_bytes()).hexdigest() in models
    if (out / "certificate.json").exists():
        assert not {"key", "checkpoint", "answers"} & {path.name for path in (out / "private").iterdir()}


def check_end(out: Path) -> None:
    """At the end: everything is there, it certifies, and nothing is left over."""
    from fedveil.certificate.certify import certify
    from fedveil.version import __version__

    check_now(out)
    assert {path.name for path in out.iterdir()} == FILES
    assert {path.name for path in (out / "private").iterdir()} == {"books", "lock", "study"}
    assert {path.name for path in (out.parent / ".fedveil").iterdir()} <= BOOKS
    assert certify(out, __version__).text() == (out / "certificate.json").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in (out / "ledger.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    assert [line["kind"] for line in lines if "kind" in line] == ["charge", "release"]  # other runs show digests


def killed_and_resumed(study: Path, out: Path, points: Sequence[str | int]) -> list[str]:
    """Kill a run, then its resumes, at these steps; end it; the steps that were reached."""
    found, resume = list[str](), list[str]()
    for point in points:
        done = started("run", study, "--out", out, "--quiet", *resume, at=str(point))
        if done.returncode == 0:  # it had fewer steps left
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        found.append(str(point))
        check_now(out)
        resume = ["--resume"] if (out / "plan.toml").exists() else []
    else:
        done = started("run", study, "--out", out, "--quiet", *resume)
        assert done.returncode == 0, done.stderr
    check_end(out)
    return found


def main() -> None:
    """The use above."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--at")
    parser.add_argument("--signal", default="KILL")
    parser.add_argument("--steps", type=Path)
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    from fedveil.cli import main as fedveil

    folder = Path(asked.words[asked.words.index("--out") + 1]).parent  # the data and their books lie there, too
    steps = Steps(folder, asked.at, signal.Signals[f"SIG{asked.signal}"])
    watched(steps)
    sys.argv = ["fedveil", *asked.words]
    try:
        fedveil()
    finally:
        if asked.steps is not None:
            asked.steps.write_text(json.dumps(steps.seen), encoding="utf-8")


if __name__ == "__main__":
    main()
