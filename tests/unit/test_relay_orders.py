"""What the relay makes of a link's messages: in pieces that the aggregator takes, and a bad one spoils no other."""

from typing import Any

import pytest

pytest.importorskip("flwr")
import httpx
from flwr.app import ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict
from flwr.app.message import make_message

from fedveil.federation.flower.apps import Orders


def reply(name: str, content: RecordDict | None = None, error: Error | None = None) -> Message:
    """What a node has sent back for a message."""
    metadata = Metadata(
        run_id=1,
        message_id=f"to {name}",
        src_node_id=2,
        dst_node_id=1,
        reply_to_message_id=name,
        group_id="",
        created_at=0.0,
        ttl=1.0,
        message_type="query",
    )
    return make_message(metadata=metadata, content=content, error=error)


def sealed(size: int) -> RecordDict:
    return RecordDict({"fedveil": ConfigRecord({"envelope": bytes(size)})})


class Link:
    """Flower's grid: gives every reply once, and fails at what cannot be unpacked."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies, self.calls = replies, list[list[str]]()

    def pull_messages(self, names: list[str]) -> list[Message]:
        self.calls.append(list(names))
        found = [self.replies.pop(name) for name in names if name in self.replies]
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found


def pull(orders: Orders, most: int, *names: str) -> dict[str, bytes]:
    return dict(orders.carry_out([("pull", f"{most} 0".encode()), *((name, b"") for name in names)]))


def test_what_does_not_fit_comes_later_and_what_never_fits_is_a_failure() -> None:
    link: Any = Link({name: reply(name, sealed(size)) for name, size in (("a", 60), ("b", 70), ("c", 101))})
    orders = Orders(link, {"a", "b", "c", "d"})
    first = pull(orders, 100, "a", "b", "c")
    assert first == {"a": bytes(60), "c": b""}
    assert pull(orders, 100, "b", "d") == {"b": bytes(70)}
    assert pull(orders, 100, "d") == {}


def test_what_is_no_envelope_is_a_failure_of_that_message() -> None:
    replies = {
        "fine": reply("fine", sealed(5)),
        "error": reply("error", error=Error(code=0)),
        "empty": reply("empty", RecordDict()),
        "other": reply("other", RecordDict({"fedveil": MetricRecord({"envelope": 1.0})})),
        "text": reply("text", RecordDict({"fedveil": ConfigRecord({"envelope": "text"})})),
    }
    orders: Any = Orders(Link(dict(replies)), set(replies))
    assert pull(orders, 100, *replies) == {**dict.fromkeys(replies, b""), "fine": bytes(5)}


def test_what_cannot_be_unpacked_spoils_the_others_once() -> None:
    link: Any = Link({"a": reply("a", sealed(5)), "bad": ValueError("no object"), "b": reply("b", sealed(6))})
    orders = Orders(link, {"a", "bad", "b", "c", "worse", "d"})
    assert pull(orders, 100, "a", "bad", "b") == {"a": b"", "bad": b"", "b": b""}
    link.replies |= {"c": reply("c", sealed(5)), "worse": KeyError("no object"), "d": reply("d", sealed(6))}
    assert pull(orders, 100, "c", "worse", "d") == {"c": bytes(5), "worse": b"", "d": bytes(6)}


def test_a_link_that_is_away_is_no_failure_of_a_message() -> None:
    orders: Any = Orders(Link({"a": httpx.ConnectError("away")}), {"a"})
    with pytest.raises(httpx.ConnectError):
        pull(orders, 100, "a")
    with pytest.raises(ValueError, match="an order must be one of"):
        orders.carry_out([("run", b"")])


def test_a_message_of_an_earlier_run_is_lost_and_spoils_no_other() -> None:
    """It went with its relay. The link refuses to speak of it, and with it of all that stand in the same order."""
    link: Any = Link({"new": reply("new", sealed(5)), "old": httpx.HTTPError("not of this run")})
    assert pull(Orders(link, {"new"}), 100, "old", "new") == {"old": b"", "new": bytes(5)}
    assert link.calls == [["new"]]
