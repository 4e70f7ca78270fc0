"""The two components of an NVFlare job that carry sealed envelopes; the only file that imports NVFlare.

At a site an executor hands each envelope to the guard's socket and the guard's answer back. At the server a controller
carries out an aggregator's orders. Neither can read an envelope, and neither holds a key or data: guard and aggregator
are processes of other users. Where their sockets are, each machine says for itself, in ``local/fedveil.json`` of its
startup kit; a job cannot choose them.

Envelopes travel as auxiliary messages, which the server sends at once; tasks wait until a client asks for one.
"""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Final, final

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedveil.federation.carrying.guard_door import ENVELOPE, hand_to_guard
from fedveil.federation.carrying.orders import NODES, PUSH, Order, fitting, serve_aggregators, serve_orders
from fedveil.federation.nvflare.job import PLACES
from fedveil.federation.site.socket import listening
from fedveil.wire import frames

JOIN: Final = "fedveil-join"  # the one task: a client that answers it can be sent envelopes
_TOPIC: Final = "fedveil.envelope"


def _place(fl_ctx: FLContext, name: str) -> str:
    """Return a path that this machine's operator has written into ``local/fedveil.json``."""
    workspace: Any = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
    places = json.loads((Path(workspace.get_site_config_dir()) / PLACES).read_text(encoding="utf-8"))
    return str(places.get(name, ""))


@final
class GuardExecutor(Executor):
    """Hands envelopes to the guard on this machine."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Listen for envelopes from the start of the job."""
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_aux_message_handler(_TOPIC, self.carry)

    def carry(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the guard's answer to one envelope; a failure if there is none."""
        try:
            answer = hand_to_guard(_place(fl_ctx, "guard"), request[ENVELOPE])
        except (OSError, ValueError, KeyError) as error:
            self.log_info(fl_ctx, f"the guard did not answer ({type(error).__name__})")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = make_reply(ReturnCode.OK)
        reply[ENVELOPE] = answer
        return reply

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Join; any other task is unknown here."""
        return make_reply(ReturnCode.OK if task_name == JOIN else ReturnCode.TASK_UNKNOWN)


@final
class RelayController(Controller):
    """Carries out the orders of aggregators at a socket of this machine.

    ``idle``: the job ends when no aggregator has been here for so many seconds.
    """

    def __init__(self, idle: float = 3600.0) -> None:
        super().__init__()
        self.idle = idle
        self._joined: set[str] = set()
        self._here = 0
        self._left = time.monotonic()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: :meth:`control_flow` begins."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: the socket is closed with :meth:`control_flow`."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Let the clients join, and serve aggregators until the job is aborted or nobody needs it."""
        self._left = time.monotonic()
        clients = fl_ctx.get_engine().get_clients()
        join = Task(name=JOIN, data=Shareable(), result_received_cb=self._note_joined)
        self.broadcast(join, fl_ctx, min_responses=len(clients))

        def over() -> bool:
            return abort_signal.triggered or (not self._here and time.monotonic() - self._left > self.idle)

        with listening(Path(_place(fl_ctx, "relay")), _place(fl_ctx, "group") or None) as door:
            self.log_info(fl_ctx, "listening for the aggregator")
            serve_aggregators(
                door, lambda connection: self._serve(connection, fl_ctx), over, lambda text: self.log_info(fl_ctx, text)
            )

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Ignore what nobody has asked for."""

    def _note_joined(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        self._joined.add(client_task.client.name)

    def _serve(self, connection: socket.socket, fl_ctx: FLContext) -> None:
        with self._present():
            serve_orders(connection, _Orders(self, fl_ctx.get_engine()).carry_out)

    @contextmanager
    def _present(self) -> Iterator[None]:
        self._here += 1
        try:
            yield
        finally:
            self._left = time.monotonic()
            self._here -= 1

    def online(self) -> list[str]:
        """Return the clients that have joined and are not known to be gone."""
        return sorted(name for name in self._joined if self.get_client_disconnect_time(name) is None)


@final
class _Orders:
    """The orders of one aggregator: each envelope is sent in a thread of its own, which waits for the answer."""

    def __init__(self, controller: RelayController, engine: Any) -> None:
        self.controller, self.engine = controller, engine
        self._numbers = count()
        self._waiting: set[str] = set()
        self._answers: dict[str, bytes] = {}
        self._news = Condition()

    def carry_out(self, blocks: frames.Blocks) -> frames.Blocks:
        """Answer one order; raise ``ValueError`` for an unknown one."""
        order = Order.read(blocks)
        if order.what == NODES:
            return [(name, name.encode()) for name in self.controller.online()]
        if order.what == PUSH:
            return [(node, self._push(node, envelope, order.seconds).encode()) for node, envelope in order.items]
        return self._pull(order)

    def _push(self, node: str, envelope: bytes, seconds: float) -> str:
        name = str(next(self._numbers))
        with self._news:
            self._waiting.add(name)
        Thread(target=self._send, args=(name, node, envelope, seconds), daemon=True).start()
        return name

    def _send(self, name: str, node: str, envelope: bytes, seconds: float) -> None:
        """Send one envelope and note the answer; an empty one for whatever goes wrong."""
        answer: Any = b""
        request = Shareable()
        request[ENVELOPE] = envelope
        try:
            with self.engine.new_context() as context:
                replies = self.engine.send_aux_request([node], _TOPIC, request, seconds, context, optional=True)
            answer = replies[node].get(ENVELOPE, b"")
        finally:
            with self._news:
                self._waiting.discard(name)
                self._answers[name] = answer if isinstance(answer, bytes) else b""
                self._news.notify_all()

    def _pull(self, order: Order) -> frames.Blocks:
        """Return answers as soon as there is one; a question that nobody works on has failed."""
        wanted = order.names
        with self._news:
            self._news.wait_for(lambda: not wanted or not self._waiting.issuperset(wanted), order.seconds)
            lost = {name: b"" for name in wanted if name not in self._waiting}
            self._answers = lost | {name: answer for name, answer in self._answers.items() if name in wanted}
            return fitting(self._answers, [name for name in wanted if name in self._answers], order.most)
