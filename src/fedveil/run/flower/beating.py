"""A sign of life for a task of Flower's, without Flower's habit of interrupting the whole process when a task is over.

Flower's own function raises SIGINT in the process that beats, as soon as the link says that the task has ended. A node
or a relay serves many tasks, and whoever can stop a run at the link must not stop them all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.runtime import RuntimeHttpClient


@contextmanager
def beating(client: RuntimeHttpClient, over: Callable[[], None]) -> Iterator[None]:
    """Beat until the block is left; ``over`` is called when the link says that the task has ended."""

    def beat() -> bool:
        try:
            alive = bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except httpx.TransportError:
            return False  # tried again soon
        except httpx.HTTPStatusError:
            alive = False
        if not alive:
            over()
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()
