"""The list of planted errors fits the code: each can be planted in one place, and its tests are there."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from mutants import Mutant, Sources, misfits, path_of, read_list  # noqa: E402  (a tool, not a package)

LEAST = 120


def test_every_error_can_be_planted_once_and_its_tests_are_there() -> None:
    """What was rewritten or renamed needs its row in tools/mutants.toml rewritten too; what was only moved does not."""
    mutants = read_list()
    assert len(set(mutants)) == len(mutants) >= LEAST
    assert misfits(mutants, Sources.read(ROOT)) == []


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


def planted(mutant: Mutant, path: str = path_of("x")) -> str:
    """Return the text above with the error in it."""
    where, text = mutant.plant(Sources({path: TEXT, "src/other.py": "def other():\n    return 'one, two'\n"}))
    assert where == path
    return text


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
    text = planted(Mutant("x", name, old, new, ()))
    assert any(line.replace(" ", "") in row.replace(" ", "") for row in text.splitlines())
    assert len(ast.parse(text).body) == 3


def test_code_that_moved_is_found_by_its_name() -> None:
    assert "total = ((a - b))" in planted(Mutant("x", "Sum.added", "a + b", "a - b", ()), path="src/y/z.py")


def test_a_part_of_a_string_is_replaced() -> None:
    sources = Sources({"src/other.py": "def other():\n    return 'one, two'\n"})
    assert "return 'one, three'" in Mutant("other", "other", "'two'", "'three'", ()).plant(sources)[1]


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("Sum.added", "c", "d", "it is there 0 times"),
        ("Sum.added", "b", "a", "it is there 3 times"),
        ("<module>", "a + b", "a", "it is there 2 times"),
        ("Sum.removed", "a + b", "a", "there is no such name"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, old: str, new: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"x:{name} must hold exactly once, and {why}"):
        planted(Mutant("x", name, old, new, ()))


def test_what_changes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="x:added must change something"):
        planted(Mutant("x", "added", "a + b", "(a  + b)", ()))
