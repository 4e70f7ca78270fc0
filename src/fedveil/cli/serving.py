"""What all commands share that serve until they are told to stop."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import Final, NoReturn

_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD of the C library
_LARGE: Final = 2**18  # bytes of an array that is given back to the system when it is freed


def interrupt_on_signals() -> None:
    """Treat a request to stop and a closed terminal like Ctrl-C, so that whatever was started is stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def give_memory_back() -> None:
    """Return large arrays to the system as soon as they are freed: a guard works a little and then waits for days."""
    with suppress(OSError, AttributeError):  # only the GNU C library has it
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def page_of(plan: str) -> str:
    """Return the page of a plan, by its text; for a fresh process, since a guard never loads this code."""
    from fedveil.cli.plan_page import page
    from fedveil.planning.plan import read_any_plan

    return page(read_any_plan(plan))


def go_on_as(module: str, *words: str) -> NoReturn:
    """Go on in this process as another module, without the command line: it needs no memory for it while it waits."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *words])  # noqa: S606  the words are our own
