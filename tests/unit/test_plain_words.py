"""Docstrings say something: none is a word or two, and none leans on a sentence that is not there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fedveil

SOURCE = Path(fedveil.__file__).parent
LEANING = ("That of ", "Those of ", "As planned", "As given", "As stated")  # whose, planned by whom, where?


def docstrings() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    place = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 1)}"
                    yield place, text


def test_no_docstring_is_a_word_or_two() -> None:
    found = dict(docstrings())
    assert len(found) > 2000
    assert not {place: text for place, text in found.items() if len(text.split()) < 3}


def test_no_docstring_leans_on_a_sentence_that_is_not_there() -> None:
    assert not {place: text for place, text in docstrings() if text.startswith(LEANING)}
