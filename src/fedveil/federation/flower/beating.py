"""Heartbeats and requests of a task, without Flower's interruption of the process when a task ends.

Flower raises SIGINT in the process as soon as the link says that a task has ended, or that its token is invalid, and
then sleeps. A node or a relay serves many tasks, and the end of one must not end the others.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, Timer
from typing import Any, Final

import httpx
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
from flwr.supercore.runtime import RuntimeHttpClient

_OFTEN: Final = 2.0  # seconds between two heartbeats
_LATER: Final = frozenset({429, 502, 503, 504})  # status codes after which trying again may help


def patient(again: Any, seconds: float | None, over: Callable[[], bool] = lambda: False) -> Any:
    """Set when Flower's way of trying again gives up: after so many seconds, when ``over`` says so, or at a plain no.

    ``seconds``: None for no limit of time; then ``over`` must say when the other side has gone for good.
    """
    again.max_time = seconds
    again.should_giveup = lambda error: over() or _is_no(error)
    return again


def _is_no(error: Exception) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in _LATER


@contextmanager
def at_most(seconds: float, over: Callable[[], None]) -> Iterator[None]:
    """Call ``over`` if the block has not been left after so many seconds."""
    timer = Timer(seconds, over)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def beating(client: RuntimeHttpClient, over: Callable[[], None]) -> Iterator[None]:
    """Send heartbeats until the block is left; ``over`` is called when the link says that the task has ended."""

    ended = Event()

    def beat() -> None:
        while not ended.wait(_OFTEN):
            try:
                alive = bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
            except httpx.TransportError:
                continue  # tried again soon
            except (httpx.HTTPStatusError, RuntimeError):  # the link refuses, or the client is closed
                alive = False
            if not alive:
                over()
                return

    sender = Thread(target=beat, daemon=True)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()
