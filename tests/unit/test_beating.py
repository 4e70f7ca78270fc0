"""A task that the link calls over does not interrupt the process that serves it."""

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from fedveil.federation.flower.beating import beating


class Client:
    """Says, as the link's client would, that the task has ended."""

    def SendTaskHeartbeat(self, _: Any) -> Any:  # noqa: N802  Flower's name
        return SimpleNamespace(success=False)


def test_a_task_that_is_over_is_told_and_no_signal_is_raised() -> None:
    over, interrupted = threading.Event(), list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    try:
        with beating(Client(), over.set):
            assert over.wait(60.0)
        assert interrupted == []
        from flwr.supercore.heartbeat import make_task_heartbeat_fn_http

        make_task_heartbeat_fn_http(Client())()  # Flower's own does
        assert interrupted == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
