"""Plant one small error at a time and see whether a test notices: ``python tools/mutants.py [part of a name ...]``.

The list is ``tools/mutants.toml``. Sources and tests are copied to a temporary folder, and errors are planted there, so
the working tree never changes. An error is caught if one of its tests fails (or hangs); tests that fail without any
error prove nothing, so each is run once without one before it is relied on. Those that survive are printed at the end,
and the exit code is 1 if there are any. The whole list takes an hour or so, and is not part of CI.
"""

import argparse
import ast
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np  # noqa: F401  loaded once, and so not by every forked run of tests
import pytest
import scipy.optimize
import scipy.special
import scipy.stats  # noqa: F401

FORK = multiprocessing.get_context("fork")
ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutants.toml"
COPIED = ("src", "tests", "pyproject.toml", "conftest.py")
PATIENCE = 900.0  # seconds for one file of tests; more is a hang, and counts as caught


@dataclass(frozen=True, slots=True)
class Mutant:
    """An error to plant: ``new`` in the place of ``old``, code that stands exactly once in what ``name`` names.

    ``name``: of a function, method or class of ``module``, or ``<module>``. ``old`` and ``new`` are expressions, or one
    or more whole statements each. Code is compared by its syntax: line breaks, and what is around, do not matter.
    """

    module: str
    name: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        """The path of the module."""
        path = Path("src", *self.module.split("."))
        return str(path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py"))

    def applied(self, text: str) -> str:
        """Return the module's text with the error in it."""
        old, new = _expression(self.old), _expression(self.new)
        alone = old is not None and new is not None
        wanted: list[ast.AST] = [old] if alone and old else [*ast.parse(self.old).body]
        scopes = [scope for scope in _scopes(ast.parse(text)) if scope[0] == self.name]
        places = {place for _, scope in scopes for place in _places(scope, wanted, alone)}
        if len(places) != 1 or ast.dump(ast.parse(self.old)) == ast.dump(ast.parse(self.new)):
            why = f"it is there {len(places)} times" if scopes else "there is no such name"
            raise ValueError(f"{self.module}:{self.name} must hold exactly once, and {why}: {self.old}")
        ((first, start, last, end),) = places
        lines = text.encode().splitlines(keepends=True)
        put = f"({self.new})" if alone else self.new.replace("\n", "\n" + " " * start)
        found = b"".join(lines[: first - 1]) + lines[first - 1][:start] + put.encode()
        return (found + lines[last - 1][end:] + b"".join(lines[last:])).decode()


def _expression(code: str) -> ast.expr | None:
    """Return the code as an expression; None if it is none."""
    try:
        return ast.parse(code, mode="eval").body
    except SyntaxError:
        return None


def _same(one: ast.AST, other: ast.AST) -> bool:
    """Return whether two nodes have the same syntax, whether they are read or written."""
    return type(one) is type(other) and _shape(one) == _shape(other)


def _shape(node: ast.AST) -> str:
    return re.sub(r", ctx=(Load|Store|Del)\(\)", "", ast.dump(node))


def _scopes(node: ast.AST, name: str = "<module>") -> Iterator[tuple[str, ast.AST]]:
    """Yield the module and everything in it that has a name, with its qualified name."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield name, node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            own = getattr(child, "name", None) if isinstance(child, ast.stmt) else None
            inner = own if name == "<module>" else f"{name}.{own}"
            yield from _scopes(child, inner if own else name)


def _places(scope: ast.AST, wanted: Sequence[ast.AST], alone: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield where such code stands: first line and column, last line and column; ``alone``: as an expression."""
    for node in ast.walk(scope):
        if alone and isinstance(node, ast.expr) and _same(node, wanted[0]):
            yield node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
        for _, body in ast.iter_fields(node) if not alone else ():
            rows = body if isinstance(body, list) and body and isinstance(body[0], ast.stmt) else []
            for at in range(len(rows) - len(wanted) + 1):
                part = rows[at : at + len(wanted)]
                if all(map(_same, part, wanted)):
                    yield part[0].lineno, part[0].col_offset, part[-1].end_lineno or 0, part[-1].end_col_offset or 0


def read_list(path: Path = LIST) -> list[Mutant]:
    """Return all errors of the list, in its order."""
    groups = tomllib.loads(path.read_text(encoding="utf-8"))["group"]
    return [Mutant(g["module"], *row, tests=tuple(g["tests"])) for g in groups for row in g["mutants"]]


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of sources and tests; ``sound`` holds the tests that have passed in it without any error."""

    folder: Path
    sound: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, root: Path, folder: Path) -> "Copy":
        """Copy what tests need."""
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / name, folder / name)
        return cls(folder)

    def catches(self, mutant: Mutant) -> bool:
        """Return whether a test notices the error: quick tests of all files first, then those of tests/slow.txt."""
        return any(self._notices(mutant, test, speed) for speed in ("not slow", "slow") for test in mutant.tests)

    def _notices(self, mutant: Mutant, test: str, speed: str) -> bool:
        if (test, speed) not in self.sound:
            if self._fails(test, speed):
                raise RuntimeError(f"{test} ({speed}) must pass without any planted error, and it does not")
            self.sound.add((test, speed))
        file = self.folder / mutant.file
        original = file.read_text(encoding="utf-8")
        file.write_text(mutant.applied(original), encoding="utf-8")
        try:
            return self._fails(test, speed)
        finally:
            file.write_text(original, encoding="utf-8")

    def _fails(self, test: str, speed: str) -> bool:
        run = FORK.Process(target=_run, args=(self.folder, test, speed))
        run.start()
        run.join(PATIENCE)
        if run.exitcode is None:
            run.kill()
            run.join()
            return True
        if run.exitcode in (0, 5):  # all passed, or there are none of this speed
            return False
        if run.exitcode in (1, 2) or run.exitcode < 0:  # a test failed, the error broke an import, or it crashed
            return True
        raise RuntimeError(f"pytest ended with {run.exitcode} for {test} ({speed})")


def _run(folder: Path, test: str, speed: str) -> None:
    """Run a file of tests in a process of its own, on the copy of the sources."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder / "src")  # for processes that tests start
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.path.insert(0, str(folder / "src"))
    sys.dont_write_bytecode = True  # it is looked up by time and size, and a planted error may change neither
    plain = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", speed]
    os._exit(int(pytest.main([*plain, test])))


def survivors(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Try all of them, tell how it goes, and return those that no test notices."""
    alive = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Copy.of(ROOT, Path(place))
        for number, mutant in enumerate(mutants, 1):
            start = time.monotonic()
            word = "caught" if copy.catches(mutant) else "SURVIVED"
            line, took = mutant.old.strip().splitlines()[0], time.monotonic() - start
            print(
                f"{number:4d}/{len(mutants)} {word:8} {took:5.0f} s  {mutant.module}:{mutant.name}: {line}", flush=True
            )
            if word != "caught":
                alive.append(mutant)
    return alive


def main() -> int:
    """Run the list, or the part of it that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of the names of modules; all modules if left out")
    wanted = parser.parse_args().parts
    mutants = [m for m in read_list() if not wanted or any(part in m.module for part in wanted)]
    alive = survivors(mutants)
    print(f"{len(mutants) - len(alive)} of {len(mutants)} planted errors were caught")
    for mutant in alive:
        print(f"\n{mutant.module}:{mutant.name}\n  - {mutant.old!r}\n  + {mutant.new!r}\n  {' '.join(mutant.tests)}")
    return 1 if alive or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
