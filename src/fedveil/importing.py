"""Functions by name: "package.file:function", or one that a program of this process has given."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from fedveil.checks import require
from fedveil.errors import BadValue

_NAME = 'be "package.file:function", found on Python\'s path or in the current folder'
_GIVEN = "given"  # in place of a file, for what has no name that another process could import
_functions: dict[str, Any] = {}


@contextmanager
def current_folder() -> Iterator[None]:
    """Add the current folder at the end of Python's path for a while, since a command does not start with it."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def give(function: Callable[..., Any] | str) -> str:
    """Return the name by which this process finds a function: what a study may state for it.

    The name ends in a hash of the function's source text, or of its code where there is no text, so that a plan tells
    two functions of one name apart. Another process must give the function again. A text is returned as it is.
    """
    if isinstance(function, str):
        return function
    require(callable(function), "A given function", "be callable", type(function).__name__)
    word = getattr(function, "__name__", type(function).__name__)
    word = word if str(word).isidentifier() else "function"
    name = f"{_GIVEN}:{word}_{_code_hash(function)}"
    _functions[name] = function
    return name


def named(text: str, what: str) -> Any:
    """Return the object that ``package.file:name`` names, also looking in the current folder."""
    file, _, name = text.partition(":")
    require(bool(file) and name.isidentifier(), what, _NAME, text)
    if file == _GIVEN:
        if text not in _functions:
            raise BadValue(
                f"{what} is {text!r}, a function that a program gave to its run: give the same one again "
                "(fedveil.give), or train with a function that can be imported by its name."
            )
        return _functions[text]
    plain = file.removesuffix(".py").replace("/", ".")
    require(not file.endswith(".py"), what, _NAME, text, f"Write {plain}:{name}, as in an import.")
    with current_folder():
        try:
            found = getattr(import_module(file), name, None)
        except Exception as error:  # a user's file may fail in any way
            raise BadValue(f"{what} must {_NAME}, got {text!r}: {type(error).__name__}: {error}.") from error
    require(callable(found), what, f"name a function in {file}", text)
    return found


def _code_hash(function: Any) -> str:
    """Return a short hash of what the function is written as; of an object, what it says of itself."""
    stated = getattr(function, "fingerprint", None)
    if isinstance(stated, str):
        return hashlib.sha256(stated.encode()).hexdigest()[:16]
    try:
        text = inspect.getsource(function).encode()
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        if code is None:
            raise BadValue(f"A given function must have a source text or code of its own, got {function!r}.") from None
        text = code.co_code + repr((code.co_consts, code.co_names)).encode()
    return hashlib.sha256(text).hexdigest()[:16]
