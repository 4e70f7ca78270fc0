"""A site's own executor: takes tasks from its node and relays them; uploaded code is never loaded.

Flower's executor would install the uploaded app and start a process for every message. This one belongs to the site's
installation, only relays, and keeps running. It uses the same parts of Flower 1.41 and 1.42 as Flower's own client
process.
"""

from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from typing import Any, Final, final

from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedveil.federation.flower.beating import at_most, beating, patient
from fedveil.federation.flower.client_app import relay
from fedveil.federation.flower.supernode import Naps

_LYING: Final = 30.0  # seconds to fetch a message that lies in the node, on this machine
_SELDOM: Final = 1.0  # seconds between looks for a task when none has come for long
_ACQUIRE: Final = frozenset({"/flwr.proto.Runtime/AcquireTask"})


@final
class Executor:
    """Takes tasks of one node, one after another.

    ``over`` says whether the node has ended, or this process is to stop. As long as it says no, a node that does not
    answer is only slow, and is asked again.
    """

    def __init__(self, address: str, secret: bytes, guard: Path, over: Callable[[], bool]) -> None:
        self.address, self.guard, self.over, self._naps = address, guard, over, Naps()
        self._client = self._connected(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE))

    def serve(self) -> None:
        """Serve until it is over, or until a task could not be ended in order.

        Flower's node waits without limit for the reply to such a task and answers nothing more: it must be replaced.
        """
        for name in ("httpx", "httpcore"):
            getLogger(name).setLevel("WARNING")
        try:
            while not self.over() and self._next():
                pass
        except Exception:
            if not self.over():
                raise
        finally:
            self._client.close()

    def _next(self) -> bool:
        """Take the next task, if there is one; return whether the node can go on."""
        found = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if found.HasField("task") and found.token:
            self._naps = Naps()
            try:
                self._one(found.token)
            except Exception as error:
                # The node says no, has lost the message, or no longer takes the answer, mostly because the run has
                # ended meanwhile. Flower has a class of its own for each. The node is replaced; the site goes on.
                getLogger(__name__).info("A task was given up: %s", type(error).__name__)
                return False
        else:
            self._naps.sleep(_SELDOM)
        return True

    def _one(self, token: str) -> None:
        """Pass one message to the guard and its answer back; a failure of the guard is reported by its kind alone."""
        client = self._connected(RuntimeTokenHttpInterceptor(token))
        context: Context | None = None
        status, details = SubStatus.COMPLETED, ""
        try:
            # Flower waits up to two hours for a message cut short by the end of its run; closing the client ends that.
            # So it does where the node itself has lost the message, as after a relay was killed with it: then the link
            # still counts the task as alive.
            with beating(client, over=client.close):
                with at_most(_LYING, client.close):
                    message, context, _, _ = pull_task_input(client)
                context.node_config["guard"] = str(self.guard)
                try:
                    reply = relay(message, context)
                except Exception as error:
                    status, details = SubStatus.FAILED, type(error).__name__
                    reply = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=details), reply_to=message)
                push_message(client, reply, context)
        finally:
            try:
                push_task_output(client, context, status, details)
            finally:
                client.close()

    def _connected(self, credentials: Any) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=True,  # on the loopback interface, between two processes of one user
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), credentials],
            retry_invoker=patient(make_simple_http_retry_invoker(), None, self.over),
        )
