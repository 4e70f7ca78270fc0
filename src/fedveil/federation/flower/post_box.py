"""The post box inside the link: sealed envelopes wait here for a node's next request, or are handed to one that waits.

Flower's own messages cost some twenty requests a site and round, and a node must look for them again and again. A node
that asks the post box keeps one request open: it brings the last answer and returns with the next question as soon as
there is one. All of this lives in the link's event loop, in memory. Whoever runs the link can read and drop what lies
here, as it could before: envelopes are sealed, and a lost one is asked for again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, final

from fedveil.federation.carrying.orders import fitting
from fedveil.federation.flower.channel import LONGEST_HOLD

_GONE: Final = 3.0  # seconds after which a node that neither asks nor works counts as gone
_MOST: Final = 8  # questions that wait for one node; older ones are dropped, and the aggregator asks again


@dataclass(slots=True, eq=False)
class Question:
    """An envelope for a node; ``end``: when its answer is of no more use; ``taken``: handed to the node once."""

    name: str
    run: int
    envelope: bytes
    end: float
    taken: bool = False


@dataclass(slots=True, eq=False)
class _Node:
    """What the post box knows of one node: its questions, and whether a request of it is open."""

    questions: list[Question] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    request: int = 0  # the number of its latest request; an older one that is still open returns empty
    waiting: bool = False
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
        question = Question(f"{run:x}-{next(self._numbers):x}", run, envelope, self.clock() + seconds)
        here.questions = [*self._fresh(here), question][-_MOST:]
        here.news.set()
        return question.name

    async def take(self, node: int, name: str, answer: bytes, hold: float) -> Question | None:
        """Take a node's answer to the question ``name``, if it brings one, and return its next question.

        A question that was handed out stays first until it is answered: a node that asks without an answer to it has
        never received it, and gets it again.
        """
        here = self._nodes.setdefault(node, _Node())
        if name:
            self._answered(here, name, answer)
        here.request += 1
        mine, end = here.request, self.clock() + min(hold, LONGEST_HOLD)
        here.news.set()  # an older request of this node returns
        here.seen, here.waiting = self.clock(), True
        try:
            while True:
                here.questions = self._fresh(here)
                if here.request != mine:
                    return None
                if here.questions:
                    here.questions[0].taken = True
                    return here.questions[0]
                here.news.clear()
                if not await _happens(here.news, end - self.clock()):
                    return None
        finally:
            if here.request == mine:
                here.waiting, here.seen = False, self.clock()

    def leave(self, node: int) -> None:
        """Note that a node has closed its request, as one that is stopped or killed does."""
        here = self._nodes.get(node)
        if here is not None:
            here.seen = float("-inf")

    async def collect(self, run: int, names: Sequence[str], most: int, hold: float) -> list[tuple[str, bytes]]:
        """Return the answers to these questions, as soon as there is one, up to ``most`` bytes at once.

        An answer is empty if the node failed, and for a question that was dropped, has expired or was never asked.
        """
        here, end = self._runs.setdefault(run, _Run()), self.clock() + min(hold, LONGEST_HOLD)
        while True:
            self._forget_lost(run, here, names)
            ready = [name for name in names if name in here.answers]
            if ready:
                return fitting(here.answers, ready, most)
            here.news.clear()
            if not await _happens(here.news, end - self.clock()):
                return []

    def online(self) -> list[int]:
        """Return the nodes that wait for a question, work on one, or did so a moment ago."""
        now = self.clock()
        return [
            number
            for number, here in self._nodes.items()
            if here.waiting or now - here.seen < _GONE or any(one.taken for one in self._fresh(here))
        ]

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
        """Count questions that nobody holds any more as failed, and drop answers that are no longer asked for."""
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
