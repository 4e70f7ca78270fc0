"""Plant one small error at a time and see whether a test notices: ``python tools/mutants.py [part of a name ...]``.

The list is ``tools/mutants.toml``. Sources and tests are copied to a temporary folder, and errors are planted there, so
the working tree never changes. First the named tests are run without any error: they must pass. An error is caught if
one of its tests fails (or hangs); those that survive are printed at the end, and the exit code is 1 if there are any.
The whole list takes an hour or so, and is not part of CI.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutants.toml"
COPIED = ("src", "tests", "pyproject.toml", "conftest.py")
PATIENCE = 600.0  # seconds for the tests of one error; more is a hang, and counts as caught


@dataclass(frozen=True, slots=True)
class Mutant:
    """An error to plant: ``new`` in the place of ``old``, which stands in ``file`` exactly once."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Return the text with the error in it."""
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.file} must hold exactly once what is to be replaced: {self.old!r}")
        return text.replace(self.old, self.new)


def read_list(path: Path = LIST) -> list[Mutant]:
    """Return all errors of the list, in its order."""
    groups = tomllib.loads(path.read_text(encoding="utf-8"))["group"]
    return [Mutant(g["file"], old, new, tuple(g["tests"])) for g in groups for old, new in g["mutants"]]


def copied(root: Path, into: Path) -> None:
    """Copy what tests need."""
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, into / name)


def caught(mutant: Mutant, folder: Path, patience: float = PATIENCE) -> bool:
    """Plant the error in the copy, run its tests, and take it out again."""
    file = folder / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.applied(original), encoding="utf-8")
    try:
        return any(_fails(test, folder, patience) for test in mutant.tests)
    finally:
        file.write_text(original, encoding="utf-8")


def _fails(test: str, folder: Path, patience: float) -> bool:
    """Whether a file of tests fails; files are run one by one, since the first mostly tells."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", test]
    # Bytecode is looked up by time and size, and a planted error may change neither.
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2):  # 1: a test failed, 2: the error broke an import
        raise RuntimeError(f"pytest ended with {done.returncode} for {test}:\n{done.stdout.decode()[-2000:]}")
    return done.returncode != 0


def survivors(mutants: Sequence[Mutant]) -> Iterator[Mutant]:
    """Try all of them, tell how it goes, and give those that no test notices."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        folder = Path(place)
        copied(ROOT, folder)
        red = [t for t in sorted({t for mutant in mutants for t in mutant.tests}) if _fails(t, folder, PATIENCE)]
        if red:
            raise RuntimeError(f"These must pass without any planted error, and do not: {', '.join(red)}")
        for number, mutant in enumerate(mutants, 1):
            start = time.monotonic()
            found = caught(mutant, folder)
            word = "caught  " if found else "SURVIVED"
            line = mutant.old.strip().splitlines()[0]
            took = time.monotonic() - start
            print(f"{number:4d}/{len(mutants)} {word} {took:5.0f} s  {mutant.file}: {line}", flush=True)
            if not found:
                yield mutant


def main() -> int:
    """Run the list, or the part of it that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="parts of file names; all files if left out")
    wanted = parser.parse_args().files
    mutants = [m for m in read_list() if not wanted or any(part in m.file for part in wanted)]
    alive = list(survivors(mutants))
    print(f"{len(mutants) - len(alive)} of {len(mutants)} planted errors were caught")
    for mutant in alive:
        print(f"\n{mutant.file}\n  - {mutant.old!r}\n  + {mutant.new!r}\n  {' '.join(mutant.tests)}")
    return 1 if alive or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
