"""What all share that serve until they are told to stop; it loads nothing, for those that carry messages."""

import signal
import sys

from fedveil.federation.carrying.processes import end_with_parent


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
