"""Runs and answers that are frozen: what was planned, charged, released and certified once stays so, to the byte.

``tests/golden/runs``: ``records.csv`` and one study a file; beside each study a folder with what its run left.
``tests/golden/mechanisms``: mechanism files, and what ``account_for`` said of each (``answers.json``).
Make all of it again, which is right only in a commit that says which number moved and why:

    python tests/golden/golden_runs.py

A run that is not seeded is repeatable here because its key and its clock come from this file.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from fedveil import __version__, account_for, parse_mechanism, run_study
from fedveil.run.system import System

HERE = Path(__file__).parent
RUNS, MECHANISMS = HERE / "runs", HERE / "mechanisms"
KEPT = ("plan.toml", "ledger.jsonl", "model.npz", "certificate.json", "metrics.json")
SHARED = "books.sqlite"  # the books of the studies whose names begin with "shared"
DELTA = 1e-5
NAMES = sorted(path.stem for path in RUNS.glob("*.toml"))
CLOCK = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def system(name: str) -> System:
    """A world whose random bytes are the study's own stream and whose clock stands still; one client misses a round."""
    drawn = 0

    def random(count: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(f"{name} {drawn}".encode()).digest(count)

    return System(random=random, now=lambda: CLOCK, fails=lambda turn, client: (turn, client) == (1, 2))


def arithmetic() -> str:
    """A fingerprint of this machine's floating point: model bytes can only be compared where it is the same."""
    grid = np.linspace(-30.0, 30.0, 4001)
    wide = np.sin(np.arange(64 * 37, dtype=np.float64)).reshape(64, 37)
    values = [np.exp(grid), np.log1p(np.abs(grid)), np.asarray(log_ndtr(grid)), wide.T @ wide, wide @ grid[:37]]
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()[:16]


def run_again(name: str, folder: Path) -> Path:
    """Carry the study out again in ``folder``, and return where its run lies."""
    for file in ("records.csv", f"{name}.toml"):
        shutil.copyfile(RUNS / file, folder / file)
    run_study(folder / f"{name}.toml", out=folder / name, system=system(name))
    return folder / name


def answer(path: Path) -> dict[str, Any]:
    """What is certified for a mechanism file, under every bound; numbers as they print, so that none is rounded."""
    found = account_for(parse_mechanism(path.read_text(encoding="utf-8")), delta=DELTA)
    bounds = {bound.name: [repr(bound.epsilon), bound.status] for bound in found.bounds}
    return {"epsilon": repr(found.epsilon), "certified_by": found.certified_by, "bounds": bounds}


def make() -> None:
    """Write every frozen file again."""
    with tempfile.TemporaryDirectory() as place:
        for name in NAMES:
            folder = Path(place) / ("shared" if name.startswith("shared") else name)  # other books for the others
            folder.mkdir(exist_ok=True)
            made, kept = run_again(name, folder), RUNS / name
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir()
            for file in KEPT:
                shutil.copyfile(made / file, kept / file)
            print(name, file=sys.stderr)
        for file in (SHARED, f"{SHARED}.head"):
            shutil.copyfile(Path(place) / "shared" / file, RUNS / file)
    answers = {path.stem: answer(path) for path in sorted(MECHANISMS.glob("*.toml"))}
    (MECHANISMS / "answers.json").write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    provenance = {
        "tool": "fedveil",
        "version": __version__,
        "command": "python tests/golden/golden_runs.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "arithmetic": arithmetic(),
    }
    (HERE / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make()
