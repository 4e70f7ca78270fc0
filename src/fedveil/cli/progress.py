"""How far a job is, on standard error: first what is being done, then a bar with rate, time left and charge."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from fedveil.cli.show import rounded_up
from fedveil.engine.system import Progress as Step

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no summary; errors only.")]
_FIRST, _BETWEEN = 2.0, 10.0  # seconds until the first line of a log, and between two


class ProgressLine:
    """Called with the progress after every round; ``stage`` tells what is done before the first one and after the last.

    A terminal shows a spinner and a bar, which disappear when they are over, so that a refusal stays one sentence.
    Elsewhere a line is written now and then, for work that takes longer than two seconds.
    """

    def __init__(self, quiet: bool, counted: str = "round") -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn(counted + " {task.completed} of {task.total}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[budget]}"),
        )
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()  # asked now: while something is shown, standard error is replaced
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("training", total=1, rate="", budget="")
        self._status: Status | None = None
        self._console = console
        self._lines, self._counted = Lines(), counted

    def stage(self, words: str) -> None:
        """Tell what is being done."""
        if self._quiet:
            return
        if not self._terminal:
            self._lines(words)
            return
        if self._status is not None:
            self._status.update(words)
            return
        self.close()
        self._status = self._console.status(words)
        self._status.start()

    def __call__(self, now: Step) -> None:
        """Show the progress after a round."""
        if self._quiet:
            return
        budget = f"charged: epsilon {rounded_up(now.epsilon)}" if now.epsilon < math.inf else "not private"
        if not self._terminal:
            left = f", about {(now.total - now.round) / now.rate:.0f} s left" if now.rate else ""
            self._lines(f"{self._counted} {now.round} of {now.total}{left} ({budget})")
            return
        if not self._bar.live.is_started:
            self.close()
            self._bar.start()
        rate = f"{now.rate:.3g}/s" if now.rate else ""
        self._bar.update(self._task, completed=now.round, total=now.total, rate=rate, budget=budget)

    def close(self) -> None:
        """Take everything off the screen."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._bar.live.is_started:
            self._bar.stop()


class Lines:
    """Writes how far a job is to a log: nothing in its first two seconds, then a line every ten at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next = clock, clock() + _FIRST

    def __call__(self, words: str) -> None:
        """Write the line, if it is time for one."""
        now = self._clock()
        if now >= self._next:
            self._next = now + _BETWEEN
            sys.stderr.write(f"fedveil: {words}\n")
            sys.stderr.flush()


@contextmanager
def progress(quiet: bool, counted: str = "round") -> Iterator[ProgressLine]:
    """Show how far a run is, until the block ends; ``counted``: what its parts are called."""
    shown = ProgressLine(quiet, counted)
    try:
        yield shown
    finally:
        shown.close()


Stage = Callable[[str], None]


@contextmanager
def waiting(what: str, *, quiet: bool = False) -> Iterator[Stage]:
    """Show ``what`` beside a spinner until the block ends; the value given changes the words.

    Where standard error is no terminal, a line is written once the work has taken two seconds.
    """
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        lines, words = Lines(), [what]
        timer = threading.Timer(_FIRST, lambda: lines(words[-1]))
        timer.daemon = True
        timer.start()
        try:
            yield words.append
        finally:
            timer.cancel()
        return
    with Console(stderr=True).status(what) as status:
        yield lambda words: status.update(words)


def report_sites(quiet: bool) -> Callable[[str, str], None]:
    """Return a function that reports on standard error which site was asked, has answered or has failed."""
    console = Console(stderr=True)

    def tell(site: str, state: str) -> None:
        if not quiet and state != "asked":
            console.print(f"{site} {state}", highlight=False)

    return tell
