"""The two apps that carry sealed envelopes, written against Flower's public interface.

The site's app hands a message to the guard on its machine and the guard's answer back. The relay's app carries out an
aggregator's orders: list nodes, push, pull. Neither can read an envelope, and neither holds a key or data.
"""

import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import httpx
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedveil.core.errors import FedveilError
from fedveil.federation.aggregator.relay import READY
from fedveil.federation.flower.channel import Channel, NoPostBox
from fedveil.federation.flower.internals import GUARD, TOKEN_HEADER, token_of
from fedveil.federation.flower.network import Link
from fedveil.federation.flower.post_box import RELAY_PATH
from fedveil.wire import frames

# A node's way to the guard on its machine: one envelope and its answer over the guard's socket.

ENVELOPE: Final = "envelope"
_PATIENCE: Final = 3600.0  # seconds; the aggregator's own timeout is shorter


def hand_to_guard(path: Path | str, question: bytes) -> bytes:
    """Return the guard's answer; raise ``OSError`` if it closes without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(path))
        frames.send(connection, [(ENVELOPE, question)])
        ((_, answer),) = frames.receive(connection)
    return answer


RECORD: Final = "fedveil"
ONLINE: Final = "online"
_PAUSE: Final = 0.1  # seconds between looks for answers at a link without a post box

client_app = ClientApp()


@client_app.query()
def ask_guard(message: Message, context: Context) -> Message:
    """Hand the envelope to the guard on this machine and return its answer."""
    envelope: Any = message.content[RECORD][ENVELOPE]
    answer = hand_to_guard(str(context.node_config[GUARD]), envelope)
    return Message(RecordDict({RECORD: ConfigRecord({ENVELOPE: answer})}), reply_to=message)


def server_app(connection: socket.socket, link: Link) -> ServerApp:
    """Return the relay's app for the aggregator at the other end of this connection."""
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        """Carry out orders until the aggregator leaves or sends something that is not an order."""
        connection.settimeout(None)
        token = {TOKEN_HEADER: token_of(grid)}
        channel = Channel(link.host, link.port, link.authority, RELAY_PATH, lambda _: token)
        orders = Orders(grid)
        with suppress(OSError, ValueError, FedveilError), closing(channel):
            carry_out = channel.exchange if _has_post_box(channel) else orders.carry_out
            frames.send(connection, [(READY, b"")])
            while True:
                frames.send(connection, carry_out(frames.receive(connection)))

    return app


def _has_post_box(channel: Channel) -> bool:
    """Return whether the link has a post box; then orders are passed on as they are."""
    try:
        channel.exchange([("nodes", b"")])
    except NoPostBox:
        return False
    return True


@final
@dataclass(slots=True)
class Orders:
    """Carries out the orders of one aggregator in one Flower run; ``sent``: the messages of this run by name."""

    grid: Grid
    sent: set[str] = field(default_factory=set)
    _kept: dict[str, bytes] = field(default_factory=dict)  # replies that did not fit into the last answer
    _singly: bool = False

    def carry_out(self, order: frames.Blocks) -> frames.Blocks:
        """Answer one order; raise ``ValueError`` for an unknown one."""
        (what, detail), *blocks = order
        known: dict[str, Callable[[bytes, frames.Blocks], frames.Blocks]] = {
            "nodes": self._nodes,
            "push": self._push,
            "pull": self._pull,
        }
        if what not in known:
            raise ValueError("an order must be one of nodes, push, pull")
        return known[what](detail, blocks)

    def _nodes(self, _: bytes, __: frames.Blocks) -> frames.Blocks:
        """Return names and numbers of the nodes online; names only help to sort, because envelopes prove who is who."""
        nodes: Any = self.grid.get_nodes()
        return [(node.name, str(node.node_id).encode()) for node in nodes if node.status in ("", ONLINE)]

    def _push(self, detail: bytes, blocks: frames.Blocks) -> frames.Blocks:
        """Send envelopes by node and return the messages' names; ``detail``: seconds for which an answer is useful."""
        names: frames.Blocks = []
        for node, envelope in blocks:
            content = RecordDict({RECORD: ConfigRecord({ENVELOPE: envelope})})
            message = Message(content, dst_node_id=int(node), message_type=MessageType.QUERY, ttl=float(detail))
            (name,) = self.grid.push_messages([message])
            self.sent.add(name or "")
            names.append((node, (name or "").encode()))
        return names

    def _pull(self, detail: bytes, blocks: frames.Blocks) -> frames.Blocks:
        """Return what came back for these messages: an envelope, or nothing if the relay reports a failure.

        ``detail``: how many bytes of envelopes the aggregator accepts at once, and how many seconds it waits. What does
        not fit is kept for the next order; an envelope that can never fit is reported as a failure.
        """
        most, seconds = detail.split()
        end, wanted = time.monotonic() + float(seconds), [name for name, _ in blocks]
        while not (answers := self._ready(int(most), wanted)) and wanted and time.monotonic() < end:
            time.sleep(_PAUSE)
        return answers

    def _ready(self, most: int, wanted: list[str]) -> frames.Blocks:
        """Return what has come back for these messages."""
        # A message of an earlier run was lost with its relay. Asked about it, the link would refuse the whole order.
        lost = {name: b"" for name in wanted if name not in self.sent}
        self._kept = lost | {name: envelope for name, envelope in self._kept.items() if name in wanted}
        missing = [name for name in wanted if name not in self._kept]
        for some in [[name] for name in missing] if self._singly else [missing] if missing else []:
            for name, envelope in self._replies(some).items():
                self._kept[name] = envelope if len(envelope) <= most else b""
        answers: frames.Blocks = []
        for name in [name for name in wanted if name in self._kept]:
            if len(self._kept[name]) <= most:
                most -= len(self._kept[name])
                answers.append((name, self._kept.pop(name)))
        return answers

    def _replies(self, names: list[str]) -> dict[str, bytes]:
        """Return the envelopes that came back.

        Flower unpacks what a site's node has packed. If it cannot, all of these messages are lost, and from then on
        each is fetched separately, so that a site that packs badly affects only its own messages.
        """
        try:
            return {reply.metadata.reply_to_message_id: envelope_of(reply) for reply in self.grid.pull_messages(names)}
        except httpx.HTTPError:  # the link cannot be reached
            raise
        except Exception:
            self._singly = True
            return dict.fromkeys(names, b"")


def envelope_of(reply: Message) -> bytes:
    """Return the envelope in a reply; nothing if it reports a failure or holds something else."""
    try:
        envelope: Any = b"" if reply.has_error() else reply.content[RECORD][ENVELOPE]
    except (KeyError, TypeError, ValueError):
        return b""
    return envelope if isinstance(envelope, bytes) else b""
