"""The two apps that carry sealed envelopes, written against Flower's public interface.

The site's app hands a message to the guard on its machine and the guard's answer back. The relay's app carries out an
aggregator's orders: list nodes, push, pull. Neither can read an envelope, and neither holds a key or data.
"""

import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, final

import httpx
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedveil.core.errors import FedveilError
from fedveil.federation.carrying.guard_door import ENVELOPE, hand_to_guard
from fedveil.federation.carrying.orders import NODES, PUSH, Order, fitting, serve_orders
from fedveil.federation.flower.channel import RELAY_PATH, Channel, Link, NoPostBox
from fedveil.federation.flower.internals import GUARD, TOKEN_HEADER, token_of
from fedveil.wire import frames

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
        """Carry out the orders of one aggregator, until it leaves."""
        token = {TOKEN_HEADER: token_of(grid)}
        channel = Channel(link.host, link.port, link.authority, RELAY_PATH, lambda _: token)
        with suppress(OSError, FedveilError), closing(channel):
            serve_orders(connection, channel.exchange if _has_post_box(channel) else Orders(grid).carry_out)

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
        wanted = Order.read(order)
        if wanted.what == NODES:
            return self._nodes()
        return self._push(wanted) if wanted.what == PUSH else self._pull(wanted)

    def _nodes(self) -> frames.Blocks:
        """Return names and numbers of the nodes online; names only help to sort, because envelopes prove who is who."""
        nodes: Any = self.grid.get_nodes()
        return [(node.name, str(node.node_id).encode()) for node in nodes if node.status in ("", ONLINE)]

    def _push(self, order: Order) -> frames.Blocks:
        """Send envelopes by node and return the messages' names."""
        names: frames.Blocks = []
        for node, envelope in order.items:
            content = RecordDict({RECORD: ConfigRecord({ENVELOPE: envelope})})
            message = Message(content, dst_node_id=int(node), message_type=MessageType.QUERY, ttl=order.seconds)
            (name,) = self.grid.push_messages([message])
            self.sent.add(name or "")
            names.append((node, (name or "").encode()))
        return names

    def _pull(self, order: Order) -> frames.Blocks:
        """Return what came back for these messages: an envelope, or nothing if the relay reports a failure.

        What does not fit is kept for the next order.
        """
        end, wanted = time.monotonic() + order.seconds, order.names
        while not (answers := self._ready(order.most, wanted)) and wanted and time.monotonic() < end:
            time.sleep(_PAUSE)
        return answers

    def _ready(self, most: int, wanted: list[str]) -> frames.Blocks:
        """Return what has come back for these messages."""
        # A message of an earlier run was lost with its relay. Asked about it, the link would refuse the whole order.
        lost = {name: b"" for name in wanted if name not in self.sent}
        self._kept = lost | {name: envelope for name, envelope in self._kept.items() if name in wanted}
        missing = [name for name in wanted if name not in self._kept]
        for some in [[name] for name in missing] if self._singly else [missing] if missing else []:
            self._kept |= self._replies(some)
        return fitting(self._kept, [name for name in wanted if name in self._kept], most)

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
