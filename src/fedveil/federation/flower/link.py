"""The link: Flower's SuperLink with the post box beside its own interface, in one process and on one port.

``python -m fedveil.federation.flower.link`` takes the arguments of ``flower-superlink``. Nodes are those that are
registered there, and the relay those that hold a task's token. Everything else is Flower's, unchanged.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from logging import Filter, LogRecord, getLogger
from typing import Any, Final, final

from fedveil.core.limits import ENVELOPE, FRAME
from fedveil.federation.carrying.orders import NODES, PUSH, Order, seconds_of
from fedveil.federation.carrying.processes import end_with_parent
from fedveil.federation.flower.channel import NODE_PATH, RELAY_PATH, SIGN, check_signed, key_of
from fedveil.federation.flower.internals import TOKEN_HEADER, known_node, known_task, node_names, wrap_link
from fedveil.federation.flower.network import run_command
from fedveil.federation.flower.post_box import PostBox
from fedveil.wire import frames

_AROUND: Final = 2**16  # bytes of a node's request besides its envelope
_LARGEST: Final = {NODE_PATH: ENVELOPE + _AROUND, RELAY_PATH: FRAME}  # bytes of a request


class _Refuse(Exception):
    """A request is answered with this status and word."""

    def __init__(self, status: int, word: str) -> None:
        super().__init__(word)
        self.status = status


@final
@dataclass(slots=True)
class PostBoxRoutes:
    """An ASGI application in front of Flower's: it answers the two paths of the post box and passes on all others."""

    app: Any
    box: PostBox

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] not in _LARGEST:
            await self.app(scope, receive, send)
            return
        try:
            blocks = await self._answer(scope, receive)
        except _Refuse as no:
            await _respond(send, no.status, str(no).encode())
            return
        except (frames.Closed, ValueError):
            await _respond(send, 400, b"malformed")
            return
        if blocks is not None:
            await _respond(send, 200, frames.encode(blocks))

    async def _answer(self, scope: Any, receive: Any) -> frames.Blocks | None:
        """Return what is sent back; None if the other side has left."""
        if scope["method"] != "POST":
            raise _Refuse(405, "post only")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["path"] == RELAY_PATH:
            return await self._relay(headers, receive)
        return await self._node(headers, receive)

    async def _node(self, headers: Mapping[str, str], receive: Any) -> frames.Blocks | None:
        """Take a node's answer, and keep its request open until there is a question for it."""
        node = known_node(self.app, key_of(headers))  # before the body is read, which may be large
        if node is None:
            raise _Refuse(401, "this node is not registered")
        body = await _body(receive, _LARGEST[NODE_PATH])
        try:
            check_signed(headers, body, time.time())
        except ValueError as error:
            raise _Refuse(401, f"this request is {error}") from error
        ((name, answer), (what, hold)) = frames.decode(body, most=2)
        if what == SIGN:
            self.box.sign(node)
            return []
        taking = asyncio.ensure_future(self.box.take(node, name, answer, seconds_of(hold)))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({taking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                taking.cancel()
                return None
            question = taking.result()
            return [] if question is None else [(question.name, question.envelope)]
        finally:
            leaving.cancel()

    async def _relay(self, headers: Mapping[str, str], receive: Any) -> frames.Blocks:
        """Carry out an order of the aggregator, which the relay passes on."""
        run = known_task(self.app, headers.get(TOKEN_HEADER, ""))
        if run is None:
            raise _Refuse(401, "this task has ended")
        order = Order.read(frames.decode(await _body(receive, _LARGEST[RELAY_PATH])))
        if order.what == NODES:
            return [(name, str(node).encode()) for node, name in node_names(self.app, self.box.online()).items()]
        if order.what == PUSH:
            return [
                (node, self.box.put(run, int(node), envelope, order.seconds).encode()) for node, envelope in order.items
            ]
        return await self.box.collect(run, order.names, order.most, order.seconds)


async def _body(receive: Any, most: int) -> bytes:
    parts, size = list[bytes](), 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise _Refuse(400, "cut short")
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _Refuse(413, "too large")
        if not event.get("more_body"):
            return b"".join(parts)


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _respond(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@final
class _Quiet(Filter):
    """Keeps the requests of the post box, several a second, out of the log."""

    def filter(self, record: LogRecord) -> bool:
        return not any(path in record.getMessage() for path in _LARGEST)


def main() -> None:
    """Run ``flower-superlink`` with this process's arguments and the post box."""
    end_with_parent(signal.SIGKILL)  # it has nothing to put in order, and would wait for open requests
    getLogger("uvicorn.access").addFilter(_Quiet())
    if not wrap_link(lambda app: PostBoxRoutes(app, PostBox(time.monotonic))):
        sys.stderr.write("Flower's link has changed; messages go at Flower's own pace\n")
    run_command("flower-superlink", sys.argv[1:])


if __name__ == "__main__":
    main()
