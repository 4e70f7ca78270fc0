"""The messages of the simulated network: enough to replay the server without a client."""

from dataclasses import dataclass, field

from fedveil.core.values import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """An update on its way to the server. ``arrives_at``: None if it was lost; ``window``: the one that applied it."""

    client: int
    round: int
    sent_at: float
    arrives_at: float | None
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """A copy of a global model on its way to a client; ``version`` is the window that made it."""

    version: int
    client: int
    sent_at: float
    arrives_at: float | None


@dataclass(slots=True, eq=False)
class Journal:
    """Everything sent, in order of sending; with ``keep`` also the updates by (client, round) and the models.

    ``before``: how many messages and broadcasts were sent before a run was resumed; they are not listed.
    """

    keep: bool = False
    messages: list[Message] = field(default_factory=list)
    broadcasts: list[Broadcast] = field(default_factory=list)
    updates: dict[tuple[int, int], Vector] = field(default_factory=dict)
    models: dict[int, Vector] = field(default_factory=dict)
    windows: dict[tuple[int, int], int] = field(default_factory=dict)
    before: tuple[int, int] = (0, 0)

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of messages and of broadcasts sent in the whole run."""
        return self.before[0] + len(self.messages), self.before[1] + len(self.broadcasts)

    def sent(self, message: Message, update: Vector) -> None:
        """Record an update that a client has sent."""
        self.messages.append(message)
        if self.keep:
            self.updates[message.client, message.round] = update

    def finish(self) -> list[Message]:
        """Return all messages, each with the window that applied it."""
        return [
            Message(
                client=m.client,
                round=m.round,
                sent_at=m.sent_at,
                arrives_at=m.arrives_at,
                window=self.windows.get((m.client, m.round)),
            )
            for m in self.messages
        ]
