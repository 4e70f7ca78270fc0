"""What is being done, on standard error, while there is nothing else to show: a spinner in a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Stage = Callable[[str], None]


@contextmanager
def waiting(what: str, *, quiet: bool = False) -> Iterator[Stage]:
    """Show ``what`` beside a spinner until the block ends; the value given changes the words.

    Nothing is shown where standard error is no terminal, so that logs stay clean.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True).status(what) as status:
        yield lambda words: status.update(words)
