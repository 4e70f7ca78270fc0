"""Prove that what pip installs works: ``python tools/prove_wheel.py``, or ``make wheel``.

Builds the sdist, and the wheel from it; installs the wheel into two empty environments outside the repository, one with
the newest versions of everything it depends on and one with the lowest that it declares, without ``constraints.txt``;
and uses each as a new user would. It stops at the first thing that is not as promised, and leaves nothing behind.
It needs only Python and pip. PyTorch, TenSEAL and Flower are left to the tests: they are pinned, and large.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "figures,onnx,studio,sql"
LOWEST = re.compile(r"Requires-Dist: ([\w.-]+)(?:\[[\w,]+\])?(?:>=|==)([\w.]+)")
RECORDS = """
import sqlite3
from pathlib import Path
import pyarrow
import pyarrow.parquet
from sklearn.datasets import load_breast_cancer

found = load_breast_cancer()
columns = [str(name) for name in found.feature_names]
Path("folder").mkdir()
pyarrow.parquet.write_table(pyarrow.table(dict(zip(columns, found.data.T, strict=True))), "folder/records.parquet")
with sqlite3.connect("records.db") as database:
    database.execute("CREATE TABLE records (" + ", ".join(f'"{name}" REAL' for name in columns) + ")")
    database.executemany(f"INSERT INTO records VALUES ({', '.join('?' * len(columns))})", found.data.tolist())
"""


def call(*words: str | Path, where: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder and return what it said; it must end with this exit code and warn of nothing."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_CONSTRAINT"))}
    done = subprocess.run([str(word) for word in words], cwd=where, env=settings, capture_output=True, text=True)
    said = f"{done.stdout}\n{done.stderr}"
    must(done.returncode == code, f"{words} must exit with {code}, not {done.returncode}", said)
    return done


def must(holds: bool, rule: str, said: str) -> None:
    """Stop unless this holds, and show what was printed."""
    if not holds:
        sys.exit(f"prove_wheel: {rule}. It printed:\n{said}")


@dataclass(frozen=True, slots=True)
class Environment:
    """An empty environment, without even pip, and a folder to work in beside it."""

    folder: Path

    def begin(self, *, with_pip: bool = False) -> "Environment":
        """Make the environment."""
        (self.folder / "work").mkdir(parents=True)
        venv.create(self.folder / "venv", with_pip=with_pip)
        return self

    def python(self, *words: str | Path) -> str:
        """Run Python there and return what it prints."""
        return call(self.folder / "venv/bin/python", *words, where=self.folder / "work").stdout

    def fedveil(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of the installed program; none may show a warning or a traceback of Python."""
        done = call(self.folder / "venv/bin/fedveil", *words, where=self.folder / "work", code=code)
        clean = not re.search(r"Warning:|Traceback", done.stderr)
        must(clean, f"{words} must not show Python's own words", done.stderr)
        return done


def install(builder: Environment, place: Environment, *what: str | Path) -> None:
    """Install into an environment by the pip of another; what is never imported need not be compiled."""
    there = place.folder / "venv/bin/python"
    builder.python("-m", "pip", "--python", there, "--quiet", "install", "--no-compile", *what)


def build(builder: Environment) -> Path:
    """Build the sdist, and from it the wheel; return the wheel."""
    install(builder, builder, "build")
    builder.python("-m", "build", "--outdir", builder.folder / "dist", ROOT)
    must(len(list((builder.folder / "dist").glob("*.tar.gz"))) == 1, "an sdist must be built", "")
    (wheel,) = (builder.folder / "dist").glob("*.whl")
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "fedveil").rglob("*") if path.is_file()}
    missing = {name for name in files if "__pycache__" not in name}.difference(zipfile.ZipFile(wheel).namelist())
    must(not missing, "the wheel must hold every file of the package", f"it lacks {sorted(missing)}")
    return wheel


def lowest_versions(wheel: Path) -> str:
    """Return the lowest versions that the wheel's metadata allow, as constraints for pip."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        found = LOWEST.findall(file.read(name).decode())
    return "".join(f"{package}=={version}\n" for package, version in found)


def use_core(place: Environment) -> None:
    """Do what a new user does with the package alone."""
    done = place.fedveil(code=2)
    must("Usage: fedveil" in done.stderr + done.stdout, "fedveil alone must print its help", done.stderr)
    must("Train:" in place.fedveil("--help").stdout, "fedveil --help must list the commands", "")
    for words in (["rnu"], ["run"], ["demo", "--bogus"], ["certify", "nowhere"], ["figures"]):
        done = place.fedveil(*words, code=2)
        right = done.stdout == "" and done.stderr.startswith("fedveil: ") and done.stderr.count("\n") == 1
        must(right, f"{words} must be refused in one sentence on standard error", done.stdout + done.stderr)
    place.fedveil("demo", "--out", "demo")
    done = place.fedveil("certify", "demo")
    must("Certificate verified:" in done.stdout, "certify must find the certificate right", done.stdout)
    place.fedveil("predict", "demo", "sklearn:breast_cancer", "--out", "predictions.csv")
    rows = (place.folder / "work" / "predictions.csv").read_text().splitlines()
    must(len(rows) == 570, "predict must answer for 569 records", f"{len(rows)} lines")


def use_extras(place: Environment) -> None:
    """Go through the door of each extra once: the same predictions from wherever the records lie."""
    work = place.folder / "work"
    place.python("-c", RECORDS)
    query = ("--query", "SELECT * FROM records")
    sources = {"folder/records.parquet": (), "duckdb:folder": (), "sqlite:///records.db": query}
    for number, (source, more) in enumerate(sources.items()):
        place.fedveil("predict", "demo", source, "--out", f"{number}.csv", *more)
        same = (work / f"{number}.csv").read_text() == (work / "predictions.csv").read_text()
        must(same, f"predict must answer for {source} as it does for the same records elsewhere", "")
    place.fedveil("export", "demo", "--to", "onnx", "--out", "model.onnx")
    place.python("-c", "import onnxruntime; onnxruntime.InferenceSession('model.onnx')")
    place.fedveil("figures", "--only", "renyi-conversion", "--out", "figures")
    place.python("-c", "import fedveil.studio.app, fedveil.studio.app, psycopg")


def main() -> None:
    """Build, and prove with the newest and the lowest versions."""
    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the folder goes, too, when CI stops it

    def tell(words: str) -> None:
        print(f"{time.monotonic() - start:4.0f} s  {words}", flush=True)

    with tempfile.TemporaryDirectory(prefix="fedveil-wheel-") as name:
        builder = Environment(Path(name) / "build").begin(with_pip=True)
        wheel = build(builder)
        tell(f"built {wheel.name} from its sdist")
        (Path(name) / "lowest.txt").write_text(lowest_versions(wheel))
        for kind, chosen in (("newest", []), ("lowest", ["--constraint", Path(name) / "lowest.txt"])):
            place = Environment(Path(name) / kind).begin()
            install(builder, place, wheel, *chosen)
            use_core(place)
            tell(f"{kind} versions: help, refusals, demo, certify and predict work")
            install(builder, place, f"{wheel}[{EXTRAS}]", *chosen)
            use_extras(place)
            tell(f"{kind} versions: {EXTRAS.replace(',', ', ')} work")
    tell("proved")


if __name__ == "__main__":
    main()
