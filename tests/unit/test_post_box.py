"""The link's post box: questions wait for nodes and answers for the relay; nothing is lost with a cut connection."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.federation.deploy.certificates import make_node_key
from fedveil.federation.flower.channel import SIGNATURE_HEADER, TIME_HEADER, check_signed, key_of, node_headers
from fedveil.federation.flower.post_box import PostBox, Question

RUN, NODE = 7, 11


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def during(play: Callable[[PostBox, Clock], Awaitable[None]]) -> None:
    async def act() -> None:
        clock = Clock()
        await play(PostBox(clock), clock)

    asyncio.run(act())


def named(question: Question | None) -> str:
    assert question is not None
    return question.name


def test_a_question_reaches_a_node_that_waits_and_its_answer_a_relay_that_waits() -> None:
    async def play(box: PostBox, _: Clock) -> None:
        taking = asyncio.ensure_future(box.take(NODE, "", b"", 5.0))
        await asyncio.sleep(0)
        assert box.online() == [NODE]
        name = box.put(RUN, NODE, b"question", 60.0)
        question = await taking
        assert (named(question), question and question.envelope) == (name, b"question")
        collecting = asyncio.ensure_future(box.collect(RUN, [name], 100, 5.0))
        await asyncio.sleep(0)
        assert not collecting.done()
        assert await box.take(NODE, name, b"answer", 0.0) is None
        assert await collecting == [(name, b"answer")]

    during(play)


def test_a_node_that_asks_without_the_answer_gets_its_question_again() -> None:
    """Its connection was cut before the question came, or it was started again."""

    async def play(box: PostBox, _: Clock) -> None:
        first, second = (box.put(RUN, NODE, text, 60.0) for text in (b"one", b"two"))
        assert [named(await box.take(NODE, "", b"", 0.0)) for _ in range(2)] == [first, first]
        assert named(await box.take(NODE, first, b"a", 0.0)) == second
        assert named(await box.take(NODE, first, b"another", 0.0)) == second  # the first answer stands
        assert await box.collect(RUN, [first, second], 100, 0.0) == [(first, b"a")]

    during(play)


def test_only_the_latest_request_of_a_node_is_served() -> None:
    async def play(box: PostBox, _: Clock) -> None:
        old = asyncio.ensure_future(box.take(NODE, "", b"", 5.0))
        await asyncio.sleep(0)
        new = asyncio.ensure_future(box.take(NODE, "", b"", 5.0))
        assert await old is None
        name = box.put(RUN, NODE, b"question", 60.0)
        assert named(await new) == name

    during(play)


def test_who_has_left_is_not_online_and_who_works_is() -> None:
    async def play(box: PostBox, clock: Clock) -> None:
        name = box.put(RUN, NODE, b"question", 60.0)
        await box.take(NODE, "", b"", 0.0)
        for _ in range(10):
            clock.now += 3.0
            assert box.online() == [NODE]  # it works on the question, and says so
            box.sign(NODE)
        await box.take(NODE, name, b"", 0.0)
        assert box.online() == [NODE]
        older = asyncio.ensure_future(box.take(NODE, "", b"", 5.0))
        await asyncio.sleep(0)
        taking = asyncio.ensure_future(box.take(NODE, "", b"", 5.0))
        await asyncio.sleep(0)
        older.cancel()
        await asyncio.gather(older, return_exceptions=True)
        assert box.online() == [NODE]
        taking.cancel()  # it has closed its request
        await asyncio.gather(taking, return_exceptions=True)
        assert box.online() == []
        box.sign(NODE)
        assert box.online() == [NODE]

    during(play)


def test_a_question_at_a_node_that_falls_silent_has_failed_and_the_next_is_not_its_first() -> None:
    """Halted, cut off or without power: nobody closes its connection, so only its silence tells."""

    async def play(box: PostBox, clock: Clock) -> None:
        name, other = box.put(RUN, NODE, b"question", 600.0), box.put(RUN, NODE + 1, b"theirs", 600.0)
        assert named(await box.take(NODE, "", b"", 0.0)) == name
        clock.now += 4.0
        box.sign(NODE)
        clock.now += 4.0
        assert await box.collect(RUN, [name], 100, 0.0) == []
        collecting = asyncio.ensure_future(box.collect(RUN, [name], 100, 600.0))
        await asyncio.sleep(0)
        clock.now += 1.0
        assert await collecting == [(name, b"")]
        assert box.online() == []
        assert await box.collect(RUN, [other], 100, 0.0) == [(other, b"")]  # was never there to take it
        again = box.put(RUN, NODE, b"again", 600.0)
        assert named(await box.take(NODE, name, b"too late", 0.0)) == again
        assert await box.collect(RUN, [again], 100, 0.0) == []

    during(play)


def test_lost_questions_count_as_failures() -> None:
    """One that has expired, one that many newer ones have pushed out, one that was never asked, one of another run."""

    async def play(box: PostBox, clock: Clock) -> None:
        expired = box.put(RUN, NODE, b"old", 1.0)
        clock.now += 2.0
        pushed = [box.put(RUN, NODE, b"new", 60.0) for _ in range(9)]
        other = box.put(RUN + 1, NODE + 1, b"theirs", 60.0)
        lost = [expired, pushed[0], "never", other]
        assert await box.collect(RUN, lost, 100, 0.0) == [(name, b"") for name in lost]
        assert await box.collect(RUN, pushed[1:], 100, 0.0) == []
        await box.take(NODE, other, b"not mine to answer", 0.0)
        assert await box.collect(RUN + 1, [other], 100, 0.0) == []

    during(play)


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), most=st.integers(0, 60))
def test_answers_come_in_parts_that_fit_and_each_once(sizes: list[int], most: int) -> None:
    async def play(box: PostBox, _: Clock) -> None:
        names = [box.put(RUN, NODE + place, b"q", 60.0) for place in range(len(sizes))]
        for place, size in enumerate(sizes):
            await box.take(NODE + place, names[place], bytes(size), 0.0)
        seen: dict[str, bytes] = {}
        while left := [name for name in names if name not in seen]:
            part = dict(await box.collect(RUN, left, most, 0.0))
            assert part
            assert sum(map(len, part.values())) <= most
            seen |= part
        assert [len(seen[name]) for name in names] == [size if size <= most else 0 for size in sizes]

    during(play)


def test_a_request_is_signed_over_its_time_and_its_body(tmp_path: Path) -> None:
    pair = make_node_key()
    (tmp_path / "node.key").write_bytes(pair.private)
    headers = dict(node_headers(tmp_path / "node.key", lambda: 1000.0)(b"body"))
    check_signed(headers, b"body", 1100.0)
    assert key_of(headers).startswith(b"-----BEGIN PUBLIC KEY-----")
    changed: list[tuple[dict[str, Any], bytes, float]] = [
        (headers, b"another body", 1000.0),
        (headers, b"body", 1301.0),
        ({**headers, TIME_HEADER: "1200.000"}, b"body", 1200.0),
        ({**headers, SIGNATURE_HEADER: base64.b64encode(bytes(70)).decode()}, b"body", 1000.0),
        ({}, b"body", 1000.0),
    ]
    for shown, body, now in changed:
        with pytest.raises(ValueError, match=r"."):
            check_signed(shown, body, now)
