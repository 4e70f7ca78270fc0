"""The one gate for code that a study, a plan or a bundle names: only what was allowed by name is imported and run.

A name is "package.file:function". The doors (an option ``--module`` of the command line, the operator of a site,
:func:`allowing` in Python) say which names are allowed; :func:`named` alone imports, and refuses every other name
before Python looks for it. The modules that fedveil ships need no permission, and neither does a function that a
program of this process has given as an object (:func:`give`).
"""

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, final

from fedveil.core.errors import BadValue, require

_NAME = 'be "package.file:function", found on Python\'s path or in the current folder'
_GIVEN = "given"  # in place of a file, for what has no name that another process could import
_functions: dict[str, Any] = {}
# Modules of our own, whose sizes are part of their names; nothing else of ours may be named, least of all a command.
_OWN: Final = re.compile(r"fedveil\.models\.torch\.generators:((vae|moments|pair)(_[0-9]{1,9})+|stand_in)")


@final
@dataclass(frozen=True, slots=True)
class Allowed:
    """The code that may be imported and run, by its exact names; fedveil's own modules need no permission."""

    names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in self.names:
            require(_parts(name) is not None, "--module", 'be "package.file:function", as in an import', name)

    def permits(self, name: object) -> bool:
        """Return whether this name may be imported, or needs no import."""
        if not isinstance(name, str):
            return False
        return name in self.names or name in _functions or is_own(name)

    @contextmanager
    def granted(self) -> Iterator[None]:
        """Allow these names too, in this thread, for a while."""
        before = _allowed.get()
        _allowed.set(Allowed(before.names | self.names))
        try:
            yield
        finally:
            _allowed.set(before)


_NOTHING: Final = Allowed()
_allowed: ContextVar[Allowed] = ContextVar("allowed", default=_NOTHING)  # a new thread begins with nothing


def allowed_now() -> Allowed:
    """Return what is allowed here, for a value that uses it later."""
    return _allowed.get()


def allowing(*names: str) -> AbstractContextManager[None]:
    """Allow code that a study, a plan or a bundle names to be imported and run, inside a ``with`` block.

    Without it nothing is: whoever wrote the file would choose what runs here. A model that is loaded inside the block
    may run its code later, too.

    >>> with allowing("my_net:make"):
    ...     "my_net:make" in allowed_now().names
    True
    """
    return Allowed(frozenset(names)).granted()


@contextmanager
def _current_folder() -> Iterator[None]:
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

    >>> give("my_net:make")
    'my_net:make'
    """
    if isinstance(function, str):
        return function
    require(callable(function), "A given function", "be callable", type(function).__name__)
    word = getattr(function, "__name__", type(function).__name__)
    word = word if str(word).isidentifier() else "function"
    name = f"{_GIVEN}:{word}_{_code_hash(function)}"
    _functions[name] = function
    return name


def check_allowed(text: str, what: str) -> None:
    """Refuse a name that is none, or that nobody has allowed; nothing is imported. ``what``: the key that names it."""
    file, _, name = text.partition(":")
    if file == _GIVEN and text not in _functions:
        raise BadValue(
            f"{what} is {text!r}, a function that a program gave to its run: give the same one again "
            "(fedveil.give), or train with a function that can be imported by its name."
        )
    plain = file.removesuffix(".py").replace("/", ".")
    hint = f"Write {plain}:{name}, as in an import." if file.endswith(".py") else ""
    require(file == _GIVEN or _parts(text) is not None, what, _NAME, text, hint)
    if not _allowed.get().permits(text):
        raise BadValue(
            f"{what} names code, {text!r}, which would be imported and run here: if it is yours, or you trust it, "
            f"allow it with --module {text} (in Python: with fedveil.allowing({text!r}))."
        )


def named(text: str, what: str) -> Any:
    """Return the object that ``package.file:name`` names, also looking in the current folder.

    This is the only place that imports what a file names, and it imports only what is allowed.
    """
    check_allowed(text, what)
    if text in _functions:
        return _functions[text]
    file, _, name = text.partition(":")
    with own_path(text):
        try:
            result = getattr(import_module(file), name, None)
        except Exception as error:  # a user's file may fail in any way
            raise BadValue(f"{what} must {_NAME}, got {text!r}: {type(error).__name__}: {error}.") from error
    require(callable(result), what, f"name a function in {file}", text)
    return result


def own_path(text: str) -> AbstractContextManager[None]:
    """Have the current folder on Python's path while a user's code is imported or makes a module; never for ours."""
    return nullcontext() if is_own(text) else _current_folder()


def is_own(text: str) -> bool:
    """Return whether a name is that of a module that fedveil ships, with its sizes."""
    return _OWN.fullmatch(text) is not None


def _parts(text: str) -> tuple[str, str] | None:
    """Return the file and the function of a name that can be imported; None for any other text."""
    file, _, name = text.partition(":")
    right = file != _GIVEN and all(part.isidentifier() for part in file.split(".")) and name.isidentifier()
    return (file, name) if right else None


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
