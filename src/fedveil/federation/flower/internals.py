"""All that fedveil uses of Flower beyond its public interface, and why; no other file imports such parts.

Everything else is public: a ClientApp, a ServerApp, their messages and grid (apps.py), and Flower's commands
(network.py). The public interface lacks five things:

- An executor for an app of this installation. ``flower-superexec`` runs whatever app somebody uploaded, so a stranger's
  code would run beside a site's guard; and it starts a process for each message, which makes a round of an empty app
  last six seconds. The two executors below take tasks as ``flower-superexec`` does, but never look at an uploaded app.
- Several tasks in one process. Flower raises SIGINT in its process when a task has ended or its token is invalid, and a
  message takes its sender from an identity of the process. Here a task ends alone, and each thread has an identity.
- Short pauses. A SuperNode looks for a message every three seconds and for an answer every half second, which would be
  most of a round, and no option changes that.
- A sign that the link or a node is ready. Only their logs say so.
- A request that waits. The link answers at once, also if there is nothing, and its own messages cost some twenty
  requests a site and round; so the post box (post_box.py) stands in front of its application, in the same process.

Every function imports what it needs of Flower, so that a site's node does not load what only the relay needs.
"""

import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from logging import getLogger
from pathlib import Path
from typing import Any, Final, final

from fedveil.core.errors import NotAvailable

TRIED: Final = ("1.41.0", "1.42.0")  # the end-to-end tests passed with each of these
LINK_READY: Final = "Uvicorn running on"  # in the link's log
NODE_ADMITTED: Final = "SuperNode ID"  # in a node's log
GUARD: Final = "guard"  # the entry of a node's configuration that names the guard's socket
TOKEN_HEADER: Final = "flwr-task-token"  # noqa: S105  the name of the header that shows a task's token to the link

_HEARTBEAT: Final = 2.0  # seconds between two heartbeats of a task
_TRANSIENT: Final = frozenset({429, 502, 503, 504})  # status codes after which trying again may help
_LINK_PATIENCE: Final = 5.0  # seconds to wait for a link on this machine that does not answer
_FETCH: Final = 30.0  # seconds to fetch a message that lies in the node, on this machine
_IDLE: Final = 1.0  # seconds between looks for a task when none has come for long
_PROTECTED: Final = frozenset({"/flwr.proto.Runtime/AcquireTask"})  # what the executor's secret is needed for


def is_tried(version: str) -> bool:
    """Return whether this version of Flower, or another patch of it, was tried.

    >>> is_tried("1.42.0"), is_tried("1.42.3"), is_tried("1.4.0"), is_tried("1.43.0"), is_tried("2.41.0")
    (True, True, False, False, False)
    """
    return version.split(".")[:2] in [known.split(".")[:2] for known in TRIED]


def untried_warning(version: str) -> str:
    """Return a warning about a version of Flower that was not tried; an empty string if it was."""
    if is_tried(version):
        return ""
    return (
        f"Flower {version} was not tried with this fedveil ({' and '.join(TRIED)} were): it may fail, and nodes look"
        " for messages at Flower's own pace, every three seconds"
    )


@contextmanager
def _needed() -> Iterator[None]:
    """Say which versions of Flower have the parts that this one lacks."""
    try:
        yield
    except ImportError as error:
        raise NotAvailable(
            f"Flower {importlib.metadata.version('flwr')} lacks a part that fedveil uses ({error}); fedveil was tried"
            f" with Flower {' and '.join(TRIED)}. Install one of these with: pip install 'fedveil[flower]'."
        ) from error


def patient(again: Any, seconds: float | None, over: Callable[[], bool] = lambda: False) -> Any:
    """Set when Flower's way of trying again gives up: after so many seconds, when ``over`` says so, or at a clear no.

    ``seconds``: None for no limit of time; then ``over`` must say when the other side has gone for good. Flower's own
    rule interrupts the process at an invalid token.
    """
    import httpx

    def is_no(error: Exception) -> bool:
        return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in _TRANSIENT

    again.max_time = seconds
    again.should_giveup = lambda error: over() or is_no(error)
    return again


@contextmanager
def at_most(seconds: float, over: Callable[[], None]) -> Iterator[None]:
    """Call ``over`` if the block has not been left after so many seconds."""
    timer = threading.Timer(seconds, over)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def beating(client: Any, over: Callable[[], None]) -> Iterator[None]:
    """Send heartbeats of a task until the block is left; call ``over`` when the link says that the task has ended."""
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    left = threading.Event()

    def beat() -> None:
        while not left.wait(_HEARTBEAT):
            try:
                alive = bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
            except httpx.TransportError:
                continue  # tried again soon
            except (httpx.HTTPStatusError, RuntimeError):  # the link refuses, or the client is closed
                alive = False
            if not alive:
                over()
                return

    sender = threading.Thread(target=beat, daemon=True)
    sender.start()
    try:
        yield
    finally:
        left.set()
        sender.join()


@final
class ClientAppExecutor:
    """Runs a site's own ``app`` for the messages of its node, one after another.

    ``over`` says whether the node has ended, or this process is to stop. As long as it says no, a node that does not
    answer is only slow, and is asked again. ``guard``: the path that the app finds in its context.
    """

    def __init__(self, app: Any, address: str, secret: bytes, guard: Path, over: Callable[[], bool]) -> None:
        with _needed():  # here and not at the first message, which would be lost
            from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output
        self.app, self.address, self.guard, self.over = app, address, guard, over
        self._pull, self._push, self._finish = pull_task_input, push_message, push_task_output
        self._pause = AdaptiveSleep()
        self._client = self._connect(_by_secret(secret))

    def serve(self) -> None:
        """Serve until it is over, or until a task could not be ended in order.

        Flower's node waits without limit for the reply to such a task and answers nothing more: it must be replaced.
        """
        _quiet()
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
        token = _acquire(self._client, "CLIENT_APP")
        if not token:
            self._pause.sleep(_IDLE)
            return True
        self._pause = AdaptiveSleep()
        try:
            with _needed():
                self._run(token)
        except NotAvailable:  # replacing the node would not help
            raise
        except Exception as error:
            # The node says no, has lost the message, or no longer takes the answer, mostly because the run has ended
            # meanwhile. Flower has a class of its own for each. The node is replaced; the site goes on.
            getLogger(__name__).info("A task was given up: %s", type(error).__name__)
            return False
        return True

    def _run(self, token: str) -> None:
        """Run the app for one message; report a failure of the app by its kind alone."""
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode, SubStatus
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

        client = self._connect(RuntimeTokenHttpInterceptor(token))
        context: Any = None
        status, details = SubStatus.COMPLETED, ""
        try:
            # Flower waits up to two hours for a message cut short by the end of its run; closing the client ends that.
            # So it does where the node itself has lost the message, as after a relay was killed with it: then the link
            # still counts the task as alive.
            with beating(client, over=client.close):
                with at_most(_FETCH, client.close):
                    message, context, _, _ = self._pull(client)
                context.node_config[GUARD] = str(self.guard)
                try:
                    reply = self.app(message, context)
                except Exception as error:
                    status, details = SubStatus.FAILED, type(error).__name__
                    reply = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=details), reply_to=message)
                self._push(client, reply, context)
        finally:
            try:
                self._finish(client, context, status, details)
            finally:
                client.close()

    def _connect(self, credentials: Any) -> Any:
        # without TLS: on the loopback interface, between two processes of one user
        return _connect(self.address, None, "flwr-clientapp", credentials, None, self.over)


@final
class ServerAppExecutor:
    """Runs a relay's own app with tasks of the link; ``secret``: what the link requires before it hands out a task."""

    def __init__(self, address: str, authority: bytes, secret: bytes) -> None:
        with _needed():
            from flwr.superlink.grid import HttpGrid
        self.address, self.authority, self._grid = address, authority, HttpGrid
        _quiet()
        self._client = _connect(address, authority, "SuperExec", _by_secret(secret), _LINK_PATIENCE)

    def run_next(self, app: Any, over: Callable[[], None]) -> bool:
        """Run the app with the next task; return False if there is none, or if its run has been stopped already.

        The link says when the task has ended; then ``over`` must make the app return.
        """
        import httpx
        from flwr.common.serde import context_from_proto, run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest

        token = _acquire(self._client, "SERVER_APP")
        if not token:
            return False
        grid, context = self._grid(self.address, root_certificates=self.authority, token=token), None
        patient(grid._retry_invoker, _LINK_PATIENCE)
        try:
            with beating(grid._runtime_client, over):
                try:
                    task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
                except httpx.HTTPStatusError:
                    return False
                context = context_from_proto(task.context)
                grid.set_run(run_from_proto(task.run))
                identify(run=task.run.run_id, task=task.task_id, node=context.node_id)
                app(grid, context)
        finally:
            self._end(grid, context)
        return True

    def close(self) -> None:
        """Close the connection to the link."""
        self._client.close()

    def _end(self, grid: Any, context: Any) -> None:
        """Tell the link that the task has ended; try it once."""
        import httpx
        from flwr.common.constant import SubStatus
        from flwr.common.serde import context_to_proto
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        grid._retry_invoker.max_tries = 1
        final_context = None if context is None else context_to_proto(context)
        with suppress(httpx.HTTPError):
            grid._runtime_client.PushTaskOutput(
                PushTaskOutputRequest(context=final_context, sub_status=SubStatus.COMPLETED, details="")
            )
        grid.close()


_identity: Final = threading.local()


def identify(*, run: int, task: int, node: int) -> None:
    """Let the messages that this thread creates belong to this task.

    Flower has one identity for the process, and several aggregators share a relay.
    """
    with _needed():
        from flwr.app.message.message import TaskIdentity  # noqa: F401  replaced below, so it must be there
    import_module("flwr.app.message.message").__dict__["TaskIdentity"] = _identity
    _identity.run_id, _identity.task_id, _identity.node_id = run, task, node


def _quiet() -> None:
    """Keep requests, which come ten times a second, out of the log."""
    for name in ("httpx", "httpcore"):
        getLogger(name).setLevel("WARNING")


def _by_secret(secret: bytes) -> Any:
    with _needed():
        from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
    return SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_PROTECTED)


def _connect(
    address: str,
    authority: bytes | None,
    component: str,
    credentials: Any,
    seconds: float | None,
    over: Callable[[], bool] = lambda: False,
) -> Any:
    """Return a client of the interface for tasks; ``component``: what it calls itself."""
    with _needed():
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.retry import make_simple_http_retry_invoker
        from flwr.supercore.runtime import RuntimeHttpClient
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=authority is None,
        root_certificates=authority,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), credentials],
        retry_invoker=patient(make_simple_http_retry_invoker(), seconds, over),
    )


def _acquire(client: Any, kind: str) -> str:
    """Take the next task of this kind; return its token, or an empty string if there is none."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType[kind]]))
    return str(answer.token) if answer.HasField("task") else ""


_SOON: Final = 0.1  # shortest pause in seconds
_SLOWER: Final = 1.05  # after 70 looks without a message, about a minute, the pause is three seconds again
_SHARE: Final = 5.0  # a pause, as a multiple of the time that the look before it took
_BUSY: Final = 0.5  # a pause of at most this length waits for an answer: a message has come


@final
@dataclass(slots=True)
class AdaptiveSleep:
    """Stands in for the module ``time`` in Flower's loop, and sleeps less than the loop asks for during a run.

    It wakes soon after a message, and more and more rarely while none comes, down to Flower's own pace. It sleeps
    several times as long as the last look took, so that many nodes do not keep their link busy.
    """

    clock: Any = time
    last: float = _SOON
    woke: float | None = None

    def sleep(self, seconds: float) -> None:
        """Sleep at most as long as asked for."""
        waits = seconds <= _BUSY
        self.last = _SOON if waits else min(self.last * _SLOWER, seconds)
        look = 0.0 if waits or self.woke is None else self.clock.monotonic() - self.woke
        self.clock.sleep(min(max(self.last, _SHARE * look), seconds))
        self.woke = None if waits else self.clock.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clock, name)


def shorten_pauses(loop: Any) -> bool:
    """Replace the sleeping of Flower's loop, a module; return False, and leave it alone, if it sleeps in another way.

    The slower pace costs time and nothing else.
    """
    if getattr(loop, "time", None) is not time:
        return False
    loop.__dict__["time"] = AdaptiveSleep()
    return True


def node_loop() -> Any:
    """Return Flower's module that looks for messages; None if it has moved."""
    try:
        return import_module("flwr.supernode.start_client_internal")
    except ImportError:
        return None


def wrap_link(wrap: Callable[[Any], Any]) -> bool:
    """Put an application in front of the link's own; return False, and leave it alone, if the link has changed."""
    try:
        module: Any = import_module("flwr.superlink.main")
        make = module.create_app
    except (ImportError, AttributeError):
        return False

    def create_app(*args: Any, **settings: Any) -> Any:
        return wrap(make(*args, **settings))

    module.__dict__["create_app"] = create_app
    return True


def known_node(app: Any, public: bytes) -> int | None:
    """Return the number of the node that is registered with this public key at the link; None if none is."""
    node: int | None = app.state.linkstate_factory.state().get_node_id_by_public_key(public)
    return node


def node_names(app: Any, nodes: list[int]) -> dict[int, str]:
    """Return the names under which these nodes were registered."""
    if not nodes:
        return {}
    return {
        int(one.node_id): str(one.name) for one in app.state.linkstate_factory.state().get_node_info(node_ids=nodes)
    }


def known_task(app: Any, token: str) -> int | None:
    """Return the run of the task that this token was given for; None if it has ended."""
    task = app.state.linkstate_factory.state().get_task_by_token(token) if token else None
    return None if task is None else int(task.run_id)


def token_of(grid: Any) -> str:
    """Return the token of the task that a grid works for."""
    return str(grid._token)
