"""The post box inside the link: sealed envelopes wait here for a node's next request, or are handed to one that waits.

Flower's own messages cost some twenty requests a site and round, and a node must look for them again and again. A node
that asks the post box keeps one request open: it brings the last answer and returns with the next question as soon as
there is one. All of this lives in the link's event loop, in memory. Whoever runs the link can read and drop what lies
here, as it could before: envelopes are sealed, and a lost one is asked for again.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, final

from fedveil.federation.carrying.orders import fitting
from fedveil.federation.flower.channel import LONGEST_HOLD

_GONE: Final = 5.0  # seconds without a word after which a node that does not wait for a question counts as gone
_MOST: Final = 8  # questions that wait for one node; older ones are dropped, and the aggregator asks again


@dataclass(slots=True, eq=False)
class Question:
    """An envelope for a node; ``put``: when it came; ``end``: when its answer is of no more use."""

    name: str
    run: int
    envelope: bytes
    put: float
    end: float


@dataclass(slots=True, eq=False)
class _Node:
    """What the post box knows of one node: its questions, and whether a request of it is open."""

    questions: list[Question] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    request: int = 0  # the number of its latest request; an older one that is still open returns empty
    waiting: bool = False
    left: bool = False  # closed its request, as one that is stopped or killed does; one whose line was cut comes back
    seen: float = float("-inf")


@dataclass(slots=True, eq=False)
class _Run:
    """The answers of one run that were not collected yet: the node's envelope, or nothing where it failed."""

    answers: dict[str, bytes] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)


@final
@dataclass(slots=True, eq=False)
class PostBox:
    """Questions by node and answers by run; ``clock``: monotonic seconds."""

    clock: Callable[[], float]
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _runs: dict[int, _Run] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)

    def put(self, run: int, node: int, envelope: bytes, seconds: float) -> str:
        """Leave a question for a node; return the name under which its answer is collected."""
        here = self._nodes.setdefault(node, _Node())
        now = self.clock()
        question = Question(f"{run:x}-{next(self._numbers):x}", run, envelope, now, now + seconds)
        here.questions = [*self._fresh(here), question][-_MOST:]
        here.news.set()
        return question.name

    async def take(self, node: int, name: str, answer: bytes, hold: float) -> Question | None:
        """Take a node's answer to the question ``name``, if it brings one, and return its next question.

        A question that was handed out stays first until it is answered: a node that asks without an answer to it has
        never received it, and gets it again. Cancelled: the node has closed its request.
        """
        here = self._nodes.setdefault(node, _Node())
        if name:
            self._answered(here, name, answer)
        here.request += 1
        mine, end = here.request, self.clock() + min(hold, LONGEST_HOLD)
        here.news.set()  # an older request of this node returns
        here.seen, here.waiting, here.left = self.clock(), True, False
        try:
            while True:
                here.questions = self._fresh(here)
                if here.request != mine:
                    return None
                if here.questions:
                    return here.questions[0]
                here.news.clear()
                if not await _happens(here.news, end - self.clock()):
                    return None
        except asyncio.CancelledError:
            here.left = here.request == mine
            raise
        finally:
            if here.request == mine:
                here.waiting, here.seen = False, self.clock()

    def sign(self, node: int) -> None:
        """Note that a node is there: it works on a question, or a long message of it arrives."""
        here = self._nodes.setdefault(node, _Node())
        here.seen, here.left = self.clock(), False

    async def collect(self, run: int, names: Sequence[str], most: int, hold: float) -> list[tuple[str, bytes]]:
        """Return the answers to these questions, as soon as there is one, up to ``most`` bytes at once.

        An answer is empty if the node failed or is gone, and for a question that was dropped, has expired or was never
        asked.
        """
        here, end = self._runs.setdefault(run, _Run()), self.clock() + min(hold, LONGEST_HOLD)
        while True:
            self._forget_lost(run, here, names)
            ready = [name for name in names if name in here.answers]
            if ready:
                return fitting(here.answers, ready, most)
            here.news.clear()
            left = min([end, *self._silences(names)]) - self.clock()
            if not await _happens(here.news, left) and self.clock() >= end:
                return []

    def online(self) -> list[int]:
        """Return the nodes that wait for a question, or were heard of a moment ago and have not left."""
        now = self.clock()
        return [
            number
            for number, here in self._nodes.items()
            if here.waiting or (not here.left and now - here.seen < _GONE)
        ]

    def _silences(self, names: Iterable[str]) -> Iterator[float]:
        """Yield when the nodes that have these questions will count as gone, if nothing is heard of them before."""
        wanted = set(names)
        for here in self._nodes.values():
            for question in here.questions:
                if question.name in wanted:
                    yield self._gone_at(here, question)

    def _gone_at(self, here: _Node, question: Question) -> float:
        return (self.clock() if here.waiting else max(here.seen, question.put)) + _GONE

    def _answered(self, here: _Node, name: str, answer: bytes) -> None:
        for question in here.questions:
            if question.name == name:
                run = self._runs.setdefault(question.run, _Run())
                run.answers[name] = answer
                run.news.set()
        here.questions = [question for question in here.questions if question.name != name]

    def _fresh(self, here: _Node) -> list[Question]:
        now = self.clock()
        return [question for question in here.questions if question.end > now]

    def _forget_lost(self, run: int, here: _Run, names: Iterable[str]) -> None:
        """Count questions as failed that nobody holds, or a node that is gone; drop answers that nobody asks for."""
        now = self.clock()
        for node in self._nodes.values():
            node.questions = [one for one in self._fresh(node) if now < self._gone_at(node, one)]
        held = {one.name for node in self._nodes.values() for one in self._fresh(node) if one.run == run}
        here.answers = {name: here.answers.get(name, b"") for name in names if name in here.answers or name not in held}


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; return False if it did not happen in time."""
    if seconds <= 0:
        return False
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
