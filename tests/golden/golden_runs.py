"""Numbers and bits that are frozen: what is certified for each study, and the model that the same key trains.

``tests/golden/runs``: ``records.csv`` and one study a file. ``numbers.json`` holds for each study, and for each job
that trains nothing, every observer's epsilon and a digest of the released numbers; no file layout, no plan text and no
wording. ``tests/golden/mechanisms``: mechanism files, and what ``account_for`` says of each (``answers.json``).
Freeze all of it again, which is right only in a commit that says which number moved and why:

    python tests/golden/golden_runs.py [NAME ...]

The key and the clock of a run come from this file. A run's noise depends on the plan's text and on the data's
fingerprint, so that no key is used twice; here it depends on the key alone, so that a plan may be written in other
words and still train to the same bits.
"""

import atexit
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from fedveil import Result, __version__, account_for, parse_mechanism, run_study, synthesise, tune_study
from fedveil.engine.system import System
from fedveil.noise.entropy import Entropy

HERE = Path(__file__).parent
RUNS, MECHANISMS, NUMBERS = HERE / "runs", HERE / "mechanisms", HERE / "numbers.json"
SHARED = "books.sqlite"  # the ledger of the studies whose names begin with "shared"
DELTA = 1e-5
STUDIES = sorted(path.stem for path in RUNS.glob("*.toml"))
CLOCK = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def system(name: str) -> System:
    """A world whose random bytes are the study's own stream and whose clock stands still; one client misses a round."""
    drawn = 0

    def random(count: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(f"{name} {drawn}".encode()).digest(count)

    return System(random=random, now=lambda: CLOCK, fails=lambda turn, client: (turn, client) == (1, 2))


@contextmanager
def noise_by_key_alone() -> Iterator[None]:
    """Have every key give its own noise, whatever the text of the plan that it is used with."""
    bound = Entropy.from_key

    def unbound(key: bytes, context: str = "") -> Entropy:
        return bound(key)

    Entropy.from_key = staticmethod(unbound)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Entropy.from_key = bound  # type: ignore[method-assign]


def arithmetic() -> str:
    """A fingerprint of this machine's floating point: model bytes can only be compared where it is the same."""
    grid = np.linspace(-30.0, 30.0, 4001)
    wide = np.sin(np.arange(64 * 37, dtype=np.float64)).reshape(64, 37)
    values = [np.exp(grid), np.log1p(np.abs(grid)), np.asarray(log_ndtr(grid)), wide.T @ wide, wide @ grid[:37]]
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()[:16]


def promised(certificate: Any) -> dict[str, list[str]]:
    """Every observer's epsilon as it prints, so that no digit is rounded, and the bound that proves it."""
    return {one.adversary: [repr(one.answer.epsilon), one.answer.certified_by] for one in certificate.guarantees}


def digest(numbers: Iterable[Any]) -> str:
    """A digest of numbers and words in their order; floats count with all their bits."""
    return hashlib.sha256("\n".join(repr(one) for one in numbers).encode()).hexdigest()[:16]


def flat(value: Any) -> Iterator[Any]:
    """The numbers and words inside dictionaries and lists, each after the name it has."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield key
            yield from flat(value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from flat(one)
    else:
        yield value


def carry_out(name: str, folder: Path) -> Result:
    """Run a study in ``folder``, into a folder of its name."""
    for file in ("records.csv", f"{name}.toml"):
        shutil.copyfile(RUNS / file, folder / file)
    job = tune_study if name.startswith("tuned") else run_study
    return job(folder / f"{name}.toml", out=folder / name, system=system(name))


@cache
def made_run(name: str) -> Path:
    """The folder of a finished run, made once in a process, for tests that only look at one."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    carry_out(name, folder)
    return folder / name


def trained(name: str, folder: Path) -> dict[str, Any]:
    """What a study's run certifies and releases."""
    result = carry_out(name, folder)
    numbers = {key: result.metrics[key] for key in ("test", "evaluation") if result.metrics.get(key)}
    with np.load(folder / name / "model.npz") as model:
        frozen = {"promised": promised(result.certificate), "model": digest(model["parameters"].tolist())}
    return {**frozen, "measured": numbers} if numbers else frozen


def measured_profile(folder: Path) -> dict[str, Any]:
    """A private profile of the records."""
    from fedveil.jobs.entry import Wish, profile_data

    shutil.copyfile(RUNS / "records.csv", folder / "records.csv")
    wish = Wish(data=str(folder / "records.csv"), target="ill", classes=("0", "1"), ignore=("site",), delta=1e-4)
    result = profile_data(wish, 2.0, folder / "profile", system=system("profile"))
    return {"promised": promised(result.certificate), "released": digest(flat(asdict(result.profile)))}


def evaluated(folder: Path) -> dict[str, Any]:
    """A private evaluation of a released model on its own training records."""
    from fedveil.jobs.evaluation import evaluate_model

    trained("hidden-secret", folder)
    found = evaluate_model(
        folder / "hidden-secret",
        folder / "records.csv",
        epsilon=2.0,
        out=folder / "found",
        delta=1e-4,
        system=system("evaluated"),
    )
    assert found.certificate is not None
    return {"promised": promised(found.certificate), "released": digest(flat(found.metrics))}


def generated(folder: Path) -> dict[str, Any]:
    """A private generator of tables, and rows drawn from it."""
    shutil.copyfile(RUNS / "records.csv", folder / "records.csv")
    study = {
        "data": {"source": str(folder / "records.csv"), "target": "ill", "classes": ["0", "1"], "ignore": ["site"]},
        "privacy": {"epsilon": 4.0, "delta": 1e-4},
        "generator": {"kind": "marginals"},
    }
    result = synthesise(study, folder / "generator", rows=50, seed=1, system=system("generator"))
    rows = (folder / "generator" / "synthetic.csv").read_text(encoding="utf-8")
    return {"promised": promised(result.certificate), "released": digest(rows.split("\n"))}


JOBS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "profile": measured_profile,
    "evaluate": evaluated,
    "synthesise": generated,
}
NAMES = [*STUDIES, *JOBS]


def again(name: str, folder: Path) -> dict[str, Any]:
    """Carry out a study or a job in ``folder``, and return its frozen numbers."""
    with noise_by_key_alone():
        return JOBS[name](folder) if name in JOBS else trained(name, folder)


def answer(path: Path) -> dict[str, Any]:
    """What is certified for a mechanism file, under every bound; numbers as they print, so that none is rounded."""
    found = account_for(parse_mechanism(path.read_text(encoding="utf-8")), delta=DELTA)
    bounds = {bound.name: [repr(bound.epsilon), bound.status] for bound in found.bounds}
    return {"epsilon": repr(found.epsilon), "certified_by": found.certified_by, "bounds": bounds}


def make(names: Iterable[str]) -> None:
    """Freeze these numbers, and every answer, again."""
    frozen = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            folder = Path(place) / ("shared" if name.startswith("shared") else name)  # other ledgers for the others
            folder.mkdir(exist_ok=True)
            frozen[name] = again(name, folder)
            print(name, file=sys.stderr)
    kept = {name: frozen[name] for name in NAMES if name in frozen}
    NUMBERS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
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
    make(sys.argv[1:] or NAMES)
