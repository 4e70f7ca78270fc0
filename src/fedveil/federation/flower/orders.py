"""The orders that an aggregator may give its relay: list nodes, push, pull. The relay sees sealed envelopes only."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, final

import httpx
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedveil.federation.flower.client_app import ENVELOPE, RECORD
from fedveil.wire import frames

ONLINE: Final = "online"
_IDENTITY: Final = Lock()  # Flower keeps one task identity per process, but several tasks share this process


@final
@dataclass(slots=True)
class Orders:
    """Carries out the orders of one aggregator in one Flower run, identified by ``run``, ``task`` and ``node``."""

    grid: Grid
    run: int
    task: int
    node: int
    _kept: dict[str, bytes] = field(default_factory=dict)  # replies that did not fit into the last answer
    _singly: bool = False

    def carry_out(self, what: str, detail: bytes, blocks: frames.Blocks) -> frames.Blocks:
        """Answer one order; raise ``ValueError`` for an unknown one."""
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
        listed: Any = self.grid.get_nodes()
        return [(node.name, str(node.node_id).encode()) for node in listed if node.status in ("", ONLINE)]

    def _push(self, detail: bytes, blocks: frames.Blocks) -> frames.Blocks:
        """Send envelopes by node and return the messages' names; ``detail``: seconds for which an answer is useful."""
        found: frames.Blocks = []
        for node, envelope in blocks:
            content = RecordDict({RECORD: ConfigRecord({ENVELOPE: envelope})})
            with _IDENTITY:
                TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run, self.task, self.node
                message = Message(content, dst_node_id=int(node), message_type=MessageType.QUERY, ttl=float(detail))
                (name,) = self.grid.push_messages([message])
            found.append((node, (name or "").encode()))
        return found

    def _pull(self, detail: bytes, blocks: frames.Blocks) -> frames.Blocks:
        """Return what came back for these messages: an envelope, or nothing if the relay reports a failure.

        ``detail``: how many bytes of envelopes the aggregator accepts at once. What does not fit is kept for the next
        order; an envelope that can never fit is reported as a failure.
        """
        most, wanted = int(detail), [name for name, _ in blocks]
        self._kept = {name: envelope for name, envelope in self._kept.items() if name in wanted}
        missing = [name for name in wanted if name not in self._kept]
        for some in [[name] for name in missing] if self._singly else [missing] if missing else []:
            for name, envelope in self._replies(some).items():
                self._kept[name] = envelope if len(envelope) <= most else b""
        found: frames.Blocks = []
        for name in [name for name in wanted if name in self._kept]:
            if len(self._kept[name]) <= most:
                most -= len(self._kept[name])
                found.append((name, self._kept.pop(name)))
        return found

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
        found: Any = b"" if reply.has_error() else reply.content[RECORD][ENVELOPE]
    except (KeyError, TypeError, ValueError):
        return b""
    return found if isinstance(found, bytes) else b""
