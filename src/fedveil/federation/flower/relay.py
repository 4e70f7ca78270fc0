"""The aggregator's relay: a separate process that carries sealed envelopes between the aggregator and the link.

It takes the place of Flower's executor, which would install and run whatever app was uploaded with a run; the relay
never looks at an uploaded app. It takes a task of the link only while an aggregator is connected to its socket, and
only carries out that aggregator's orders. Its only key is the link's secret for tasks, and it shares nothing with the
aggregator but the socket.
"""

import select
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from logging import getLogger
from threading import BoundedSemaphore, Thread
from typing import Any, Final, final

import httpx
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, context_to_proto, run_from_proto
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid

from fedveil.federation.aggregator.relay import READY
from fedveil.federation.flower.beating import beating, patient
from fedveil.federation.flower.network import Link
from fedveil.federation.flower.orders import Orders
from fedveil.wire import frames

_LOOK: Final = 0.2  # seconds between polls for a task while an aggregator waits for one
_PATIENCE: Final = 5.0  # seconds to wait for a link on this machine that does not answer
_AT_ONCE: Final = 16  # aggregators served at the same time
_ACQUIRE: Final = frozenset({"/flwr.proto.Runtime/AcquireTask"})


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Relay:
    """Serves aggregators; ``secret``: what the link requires before it hands out a task."""

    link: Link
    secret: bytes
    tell: Callable[[str], None]

    def serve(self, door: socket.socket, stop: Callable[[], bool]) -> None:
        """Serve the aggregators that connect, several at a time, until told to stop."""
        for name in ("httpx", "httpcore"):
            getLogger(name).setLevel("WARNING")
        free = BoundedSemaphore(_AT_ONCE)
        door.settimeout(0.5)
        while not stop():
            try:
                connection, _ = door.accept()
            except TimeoutError:
                continue
            if not free.acquire(blocking=False):
                self.tell("too many aggregators at once; one was turned away")
                connection.close()
                continue
            Thread(target=self._one, args=(connection, free), daemon=True).start()

    def _one(self, connection: socket.socket, free: BoundedSemaphore) -> None:
        """Serve one aggregator until it leaves or the link is lost.

        A failure does not affect the rest of the process.
        """
        with connection:
            try:
                with closing(self._asking()) as client:
                    while not gone(connection) and not self._task(client, connection):
                        select.select([connection], [], [], _LOOK)
            except Exception as error:  # an aggregator whose connection is closed asks for another relay
                self.tell(f"an aggregator was let go ({type(error).__name__})")
            finally:
                free.release()

    def _task(self, client: RuntimeHttpClient, connection: socket.socket) -> bool:
        """Take a task, if there is one, and serve the aggregator with it.

        Return False if there was none or it had ended.
        """
        found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        if not (found.HasField("task") and found.token):
            return False
        token = str(found.token)
        grid = HttpGrid(self.link.address, root_certificates=self.link.authority.read_bytes(), token=token)
        patient(grid._retry_invoker, _PATIENCE)
        context: Any = None
        try:
            with beating(grid._runtime_client, lambda: shut(connection)):
                try:
                    given = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
                    context = context_from_proto(given.context)
                    grid.set_run(run_from_proto(given.run))
                except httpx.HTTPStatusError:
                    return False  # the run was stopped before it began
                obey(connection, Orders(grid, given.run.run_id, given.task_id, context.node_id))
        finally:
            self._ended(grid, context)
        return True

    def _asking(self) -> RuntimeHttpClient:
        """Return a client of the link that may ask for tasks."""
        return RuntimeHttpClient.from_server_address(
            server_address=self.link.address,
            insecure=False,
            root_certificates=self.link.authority.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=_ACQUIRE),
            ],
            retry_invoker=patient(make_simple_http_retry_invoker(), _PATIENCE),
        )

    def _ended(self, grid: HttpGrid, context: Any) -> None:
        grid._retry_invoker.max_tries = 1
        said = None if context is None else context_to_proto(context)
        with suppress(httpx.HTTPError):
            grid._runtime_client.PushTaskOutput(
                PushTaskOutputRequest(context=said, sub_status=SubStatus.COMPLETED, details="")
            )
        grid.close()


def obey(connection: socket.socket, orders: Orders) -> None:
    """Carry out orders until the aggregator leaves or sends something that is not an order."""
    connection.settimeout(None)
    with suppress(OSError, ValueError):
        frames.send(connection, [(READY, b"")])
        while True:
            (what, detail), *blocks = frames.receive(connection)
            frames.send(connection, orders.carry_out(what, detail, blocks))


def gone(connection: socket.socket) -> bool:
    """Return whether the other side has closed the connection."""
    try:
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def shut(connection: socket.socket) -> None:
    """Close the connection, which ends whatever waits for it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
