"""The list of planted errors fits the code: each can be planted in one place, and its tests are there."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from mutants import LIST, Mutant, read_list  # noqa: E402  (a tool, not a package)

MUTANTS = read_list(LIST)
LEAST = 120


def test_there_are_enough_and_none_twice() -> None:
    assert len(set(MUTANTS)) == len(MUTANTS) >= LEAST


@pytest.mark.parametrize("module", sorted({mutant.module for mutant in MUTANTS}))
def test_every_error_can_be_planted(module: str) -> None:
    """What was rewritten, or moved to another function, needs its row in tools/mutants.toml rewritten too."""
    for mutant in MUTANTS:
        if mutant.module == module:
            compile(mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8")), mutant.file, "exec")


def test_every_test_is_there() -> None:
    assert all((ROOT / test).exists() for mutant in MUTANTS for test in mutant.tests)


TEXT = """
LIMIT = 3

class Sum:
    def added(self, a, b):
        if a > b:
            total = (a +
                     b)
            print(total)
        return a + 2 * b

def added(a, b):
    return f"é {a}" + str(a + b)
"""


@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        ("Sum.added", "a + b", "a - b", "total = ((a - b))"),  # as it is written there, or on one line
        ("Sum.added", "2*b", "b", "return a + (b)"),
        ("Sum.added", "total = a + b\nprint(total)", "total = a\nprint(b)", "print(b)"),
        ("Sum.added", "print(total)", "pass", "pass"),  # an expression that is a statement
        ("Sum", "a > b", "True", "if (True):"),
        ("added", "a + b", "a", 'return f"é {a}" + str((a))'),
        ("<module>", "LIMIT = 3", "LIMIT = 4", "LIMIT = 4"),
    ],
)
def test_code_is_found_by_the_name_around_it_and_by_its_syntax(name: str, old: str, new: str, line: str) -> None:
    planted = Mutant("x", name, old, new, ()).applied(TEXT)
    assert any(line.replace(" ", "") in row.replace(" ", "") for row in planted.splitlines())
    assert len(ast.parse(planted).body) == 3


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("Sum.added", "c", "d", "it is there 0 times"),
        ("Sum.added", "b", "a", "it is there 3 times"),
        ("<module>", "a + b", "a", "it is there 2 times"),
        ("Sum.removed", "a + b", "a", "there is no such name"),
        ("added", "a + b", "(a  + b)", "it is there 1 times"),  # no error at all
    ],
)
def test_what_does_not_fit_is_refused(name: str, old: str, new: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"x:{name} must hold exactly once, and {why}"):
        Mutant("x", name, old, new, ()).applied(TEXT)
