"""The list of planted errors fits the code: each can still be planted, exactly once, and its tests are there."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from mutants import LIST, Mutant, read_list  # noqa: E402  (a tool, not a package)

MUTANTS = read_list(LIST)
LEAST = 120


def test_there_are_enough_and_none_twice() -> None:
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS) >= LEAST


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_every_error_can_be_planted(file: str) -> None:
    """A line that was rewritten needs its pair in tools/mutants.toml rewritten too."""
    text = (ROOT / file).read_text(encoding="utf-8")
    for mutant in MUTANTS:
        if mutant.file == file:
            compile(mutant.applied(text), file, "exec")


def test_every_test_is_there() -> None:
    assert all((ROOT / test).exists() for mutant in MUTANTS for test in mutant.tests)


def test_what_does_not_fit_is_refused() -> None:
    mutant = Mutant("x.py", "a", "b", ())
    assert mutant.applied("1 + a") == "1 + b"
    for text in ("1 + c", "a + a"):
        with pytest.raises(ValueError, match="exactly once"):
            mutant.applied(text)
