"""Plant one small error at a time and see whether a test notices: ``python tools/mutants.py [part of a name ...]``.

The list is ``tools/mutants.toml``. Sources and tests are copied to a temporary folder, and errors are planted there, so
the working tree never changes. An error is caught if one of its tests fails (or hangs); tests that fail without any
error prove nothing, so each is run once without one before it is relied on. Those that survive are printed at the end,
and the exit code is 1 if there are any. The whole list takes an hour or so, and is not part of CI; ``--check`` only
looks whether each error can be planted, in seconds.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
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

    ``name``: of a function, method or class, or ``<module>``. ``old`` and ``new`` are expressions, or one or more whole
    statements each. Code is compared by its syntax: line breaks, and what is around, do not matter. Two string literals
    replace a part of one string. ``module`` is where the code is looked for first; code that moved is looked for, by
    its name, in the whole package.
    """

    module: str
    name: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, sources: "Sources") -> tuple[str, str]:
        """Return the path of the file with the code, and its text with the error in it."""
        if ast.dump(ast.parse(self.old)) == ast.dump(ast.parse(self.new)):
            raise ValueError(f"{self.module}:{self.name} must change something: {self.old}")
        change = _change(self.old, self.new)
        own = path_of(self.module)
        places = sources.places(self.name, change, [own]) or sources.places(self.name, change, list(sources.texts))
        if len(places) != 1:
            why = f"it is there {len(places)} times" if sources.scopes(self.name) else "there is no such name"
            raise ValueError(f"{self.module}:{self.name} must hold exactly once, and {why}: {self.old}")
        ((path, place),) = places
        return path, place.put(sources.texts[path])


def path_of(module: str) -> str:
    """Return the path of a module's file."""
    path = Path("src", *module.split("."))
    return str(path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py"))


@dataclass(frozen=True, slots=True)
class Place:
    """Some code of a file, by lines (from 1) and columns (in bytes), and what is put there."""

    first: int
    start: int
    last: int
    end: int
    new: str

    def put(self, text: str) -> str:
        """Return the text with the new code in place of the old."""
        lines = text.encode().splitlines(keepends=True)
        before = b"".join(lines[: self.first - 1]) + lines[self.first - 1][: self.start]
        return (before + self.new.encode() + lines[self.last - 1][self.end :] + b"".join(lines[self.last :])).decode()


@dataclass(frozen=True, slots=True)
class Sources:
    """The texts of all modules by path, and everything in them that has a qualified name."""

    texts: dict[str, str]
    _named: dict[str, list[tuple[str, ast.AST]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path, text in self.texts.items():
            for name, scope in _scopes(ast.parse(text)):
                self._named.setdefault(name, []).append((path, scope))

    @classmethod
    def read(cls, root: Path) -> "Sources":
        """Read the package under a folder."""
        files = sorted((root / "src").rglob("*.py"))
        return cls({str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in files})

    def scopes(self, name: str) -> list[tuple[str, ast.AST]]:
        """Return what has this name, with its path."""
        return self._named.get(name, [])

    def places(self, name: str, change: "Change", paths: Sequence[str]) -> set[tuple[str, Place]]:
        """Return every place of the code in what has this name, in these files."""
        return {(path, place) for path, scope in self.scopes(name) if path in paths for place in change(scope)}


Change = Callable[[ast.AST], Iterator[Place]]


def _change(old: str, new: str) -> Change:
    """Return a function that yields the places of the old code in a piece of syntax."""
    one, other = _expression(old), _expression(new)
    if isinstance(one, ast.Constant) and isinstance(one.value, str) and isinstance(other, ast.Constant):
        return partial(_strings, old=one.value, new=str(other.value))
    if one is not None and other is not None:
        return partial(_expressions, old=one, new=new)
    return partial(_statements, old=ast.parse(old).body, new=new)


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


def _place(first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, new: str) -> Place:
    return Place(first.lineno, first.col_offset, last.end_lineno or 0, last.end_col_offset or 0, new)


def _strings(scope: ast.AST, old: str, new: str) -> Iterator[Place]:
    """Yield each string that holds the old one exactly once."""
    inner = {part for node in ast.walk(scope) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(scope):  # a part of an f-string has no place of its own
        text = node.value if isinstance(node, ast.Constant) and node not in inner else None
        if isinstance(text, str) and text.count(old) == 1:
            yield _place(node, node, repr(text.replace(old, new)))


def _expressions(scope: ast.AST, old: ast.expr, new: str) -> Iterator[Place]:
    for node in ast.walk(scope):
        if isinstance(node, ast.expr) and _same(node, old):
            yield _place(node, node, f"({new})")


def _statements(scope: ast.AST, old: list[ast.stmt], new: str) -> Iterator[Place]:
    """Yield each run of statements that are the old ones, one after the other in one block."""
    blocks = (block for node in ast.walk(scope) for _, block in ast.iter_fields(node) if isinstance(block, list))
    for block in blocks:
        for at in range(len(block) - len(old) + 1):
            part = block[at : at + len(old)]
            if all(map(_same, part, old)):
                yield _place(part[0], part[-1], new.replace("\n", "\n" + " " * part[0].col_offset))


def read_list(path: Path = LIST) -> list[Mutant]:
    """Return all errors of the list, in its order."""
    groups = tomllib.loads(path.read_text(encoding="utf-8"))["group"]
    return [Mutant(g["module"], *row, tests=tuple(g["tests"])) for g in groups for row in g["mutants"]]


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of sources and tests; ``sound`` holds the tests that have passed in it without any error."""

    folder: Path
    sources: Sources
    sound: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, root: Path, folder: Path) -> "Copy":
        """Copy what tests need."""
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / name, folder / name)
        return cls(folder, Sources.read(folder))

    def catches(self, mutant: Mutant) -> bool:
        """Return whether a test notices the error: quick tests of all files first, then those of tests/slow.txt."""
        return any(self._notices(mutant, test, speed) for speed in ("not slow", "slow") for test in mutant.tests)

    def _notices(self, mutant: Mutant, test: str, speed: str) -> bool:
        if (test, speed) not in self.sound:
            if self._fails(test, speed):
                raise RuntimeError(f"{test} ({speed}) must pass without any planted error, and it does not")
            self.sound.add((test, speed))
        path, text = mutant.plant(self.sources)
        file = self.folder / path
        file.write_text(text, encoding="utf-8")
        try:
            return self._fails(test, speed)
        finally:
            file.write_text(self.sources.texts[path], encoding="utf-8")

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
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", speed]
    os._exit(int(pytest.main([*options, test])))


def misfits(mutants: Sequence[Mutant], sources: Sources) -> list[str]:
    """Return why an error cannot be planted, or why its tests cannot run, for each that does not fit the code."""
    problems = []
    for mutant in mutants:
        try:
            path, text = mutant.plant(sources)
            compile(text, path, "exec")
        except (ValueError, SyntaxError) as problem:
            problems.append(str(problem))
        problems += [f"{mutant.module}: there is no {test}" for test in mutant.tests if not (ROOT / test).exists()]
    return problems


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
    parser.add_argument("--check", action="store_true", help="only look whether each error can be planted")
    asked = parser.parse_args()
    mutants = [m for m in read_list() if not asked.parts or any(part in m.module for part in asked.parts)]
    if asked.check:
        problems = misfits(mutants, Sources.read(ROOT))
        print("\n".join([*problems, f"{len(mutants) - len(problems)} of {len(mutants)} errors can be planted"]))
        return 1 if problems or not mutants else 0
    alive = survivors(mutants)
    print(f"{len(mutants) - len(alive)} of {len(mutants)} planted errors were caught")
    for mutant in alive:
        print(f"\n{mutant.module}:{mutant.name}\n  - {mutant.old!r}\n  + {mutant.new!r}\n  {' '.join(mutant.tests)}")
    return 1 if alive or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
