"""The aggregator's relay: does what the aggregator's process asks over a socket: who is there, push, pull.

It sees sealed envelopes only. The run's configuration names the socket, which only the aggregator's user can open.
"""

import socket
from collections.abc import Callable
from typing import Any, Final

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedveil.run.flower.client_app import ENVELOPE, RECORD
from fedveil.wire import frames

ONLINE: Final = "online"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the aggregator until it says stop or goes away."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(context.run_config["socket"]))
        while True:
            try:
                (what, detail), *blocks = frames.receive(connection)
            except (frames.Closed, ValueError):
                return
            if what not in _ORDERS:
                return
            frames.send(connection, _ORDERS[what](grid, detail, blocks))


def _nodes(grid: Grid, _: bytes, __: frames.Blocks) -> frames.Blocks:
    """Names and numbers of the nodes that are there; the names only help to sort, envelopes prove who is who."""
    listed: Any = grid.get_nodes()
    return [(node.name, str(node.node_id).encode()) for node in listed if node.status in ("", ONLINE)]


def _push(grid: Grid, detail: bytes, blocks: frames.Blocks) -> frames.Blocks:
    """Envelopes by node; ``detail`` is how many seconds they are worth answering. The messages' names come back."""
    found: frames.Blocks = []
    for node, envelope in blocks:
        content = RecordDict({RECORD: ConfigRecord({ENVELOPE: envelope})})
        message = Message(content, dst_node_id=int(node), message_type=MessageType.QUERY, ttl=float(detail))
        (name,) = grid.push_messages([message])
        found.append((node, (name or "").encode()))
    return found


def _pull(grid: Grid, _: bytes, blocks: frames.Blocks) -> frames.Blocks:
    """What came back for these messages: an envelope, or nothing where the relay reports a failure."""
    found: frames.Blocks = []
    for reply in grid.pull_messages([name for name, _ in blocks]):
        answered: Any = reply.metadata.reply_to_message_id
        envelope: Any = b"" if reply.has_error() else reply.content[RECORD][ENVELOPE]
        found.append((answered, envelope))
    return found


_ORDERS: Final[dict[str, Callable[[Grid, bytes, frames.Blocks], frames.Blocks]]] = {
    "nodes": _nodes,
    "push": _push,
    "pull": _pull,
}
