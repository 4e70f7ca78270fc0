"""What all commands share that serve until they are told to stop; it loads nothing, for those that carry messages."""

import ctypes
import signal
import sys
from contextlib import suppress
from typing import Final

from fedveil.federation.carrying.processes import end_with_parent

_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD of the C library
_LARGE: Final = 2**18  # bytes of an array that is given back to the system when it is freed


def stop_requests() -> list[int]:
    """Return a list that gets an entry when this process is asked to stop."""
    stopped: list[int] = []
    end_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda signum, _: stopped.append(signum))
    return stopped


def say(text: str) -> None:
    """Tell the operator, on standard error; standard output is for results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


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
