"""Conversation of an aggregator with its sites: sends envelopes and collects the answers.

The carrier is behind a Protocol, so nothing here depends on Flower.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from fedveil.federation.aggregator.trace import Trace
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Opened, Refused, seal, unseal
from fedveil.wire.keys import Card, Identity

PAUSE: Final = 0.2  # seconds between two looks where nothing is awaited, or a carrier does not wait by itself
HOLD: Final = 10.0  # seconds that a carrier waits for an answer at once
AGAIN: Final = 3.0  # seconds before a site that failed, but is needed, is asked again
SILENT: Final = 30.0  # seconds after which a question may have been lost on its way; doubled with every try


class Carrier(Protocol):
    """Carries envelopes; it is not trusted."""

    def online(self) -> Mapping[str, str]:
        """Return the sites that seem to be online, with their addresses."""

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        """Send an envelope; return the name under which its answer can be pulled."""

    def pull(self, names: list[str], seconds: float) -> Mapping[str, bytes]:
        """Return the answers that have come, by name, as soon as there is one; an empty answer reports a failure.

        ``seconds``: how long to wait for the first; a carrier that cannot wait returns at once.
        """


@dataclass(frozen=True, slots=True)
class Clock:
    """The time, given from outside; tests pass their own."""

    seconds: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a site, from an envelope that passed all checks."""

    kind: str
    content: Content


@dataclass(frozen=True, slots=True)
class Sent:
    """A question that was sent: the carrier's name for it, and the digest that its answer must name."""

    name: str
    site: str
    turn: int
    digest: str
    kind: str = ""
    at: float = 0.0


Watch = Callable[[str, str], None]  # called with a site and what happened to it


@final
@dataclass(slots=True, kw_only=True)
class Post:
    """The conversation of one aggregator in one run; ``number`` rises with every envelope, also across restarts."""

    identity: Identity
    cards: Mapping[str, Card]
    run: str
    number: int
    carrier: Carrier
    clock: Clock
    random: Callable[[int], bytes]
    watch: Watch = lambda site, state: None
    ignored: dict[str, int] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)

    def ask(
        self,
        kind: str,
        turn: int,
        contents: Mapping[str, Content],
        timeout: float,
        right: Callable[[str, Answer], bool],
        enough: Callable[[Mapping[str, Answer]], bool],
    ) -> dict[str, Answer]:
        """Ask these sites the same kind of question and return the answers that came in time.

        ``right``: whether an answer is acceptable; others count as no answer. The call ends when no site is awaited and
        the answers are ``enough``; if they are not enough, the missing sites are asked again. A silent site is asked
        again too, more and more rarely: a node that was replaced has lost the question, and nobody reports that. A site
        works one question off after another, so when a later one comes back, the earlier ones are no longer awaited.
        """
        end, result = self.clock.seconds() + timeout, dict[str, Answer]()
        waiting: list[Sent] = []
        tried: dict[str, list[float]] = {}  # when each site was asked
        while True:
            now = self.clock.seconds()
            silent = {sent.site for sent in waiting}
            asked = [
                site
                for site in contents
                if site not in result and _is_due(now, tried.get(site, []), site in silent, enough(result))
            ]
            if asked:
                with self.trace.span("who is online", round=turn):
                    online = self.carrier.online()
                for site in asked:
                    if site in online:
                        tried.setdefault(site, []).append(now)
                        waiting.append(self.send(kind, turn, site, contents[site], online[site], max(end - now, 1.0)))
            back = self.collect(waiting, right, self._patience(end, contents, tried, waiting, result))
            for sent, answer in back:
                waiting = _without(waiting, sent)
                if answer is not None:
                    result[sent.site] = answer
            waiting = [sent for sent in waiting if sent.site not in result]
            if len(result) == len(contents) or (not waiting and tried and enough(result)):
                return result
            if self.clock.seconds() >= end:
                return result
            if not back and self.clock.seconds() - now < PAUSE:
                self.clock.sleep(PAUSE)

    def _patience(
        self,
        end: float,
        sites: Iterable[str],
        tried: Mapping[str, Sequence[float]],
        waiting: Sequence[Sent],
        found: Mapping[str, Answer],
    ) -> float:
        """Return how many seconds to wait for answers before a site is to be asked, or time is over."""
        now, silent = self.clock.seconds(), {sent.site for sent in waiting}
        due = [end, now + HOLD]
        for site in sites:
            if site not in found:
                times = tried.get(site, [])
                due.append(times[-1] + _pause_after(times, site in silent) if times else now + PAUSE)
        return max(0.0, min(due) - now)

    def send(self, kind: str, turn: int, site: str, content: Content, address: str, seconds: float) -> Sent:
        """Send one question; ``seconds``: how long an answer is of use."""
        with self.trace.span("seal", site=site, round=turn):
            envelope, digest = self._sealed(kind, turn, site, content)
        self.watch(site, "asked")
        with self.trace.span("push", site=site, round=turn):
            name = self.carrier.push(address, envelope, seconds)
        return Sent(name, site, turn, digest, kind, self.trace.now())

    def collect(
        self, waiting: Sequence[Sent], right: Callable[[str, Answer], bool], seconds: float
    ) -> list[tuple[Sent, Answer | None]]:
        """Return the questions that have come back, each with its answer; wait so many seconds for the first.

        None for a failure or an unacceptable answer.
        """
        back = self.carrier.pull(sorted(sent.name for sent in waiting), seconds) if waiting else {}
        result: list[tuple[Sent, Answer | None]] = []
        for sent in [sent for sent in waiting if sent.name in back]:
            self.trace.add(sent.kind, sent.at, site=sent.site, round=sent.turn)
            answer = self._opened(sent.site, sent.turn, sent.digest, back[sent.name])
            fine = answer is not None and right(sent.site, answer)
            if not fine:
                self.ignored[sent.site] = self.ignored.get(sent.site, 0) + 1
            self.watch(sent.site, "answered" if fine else "failed")
            result.append((sent, answer if fine else None))
        return result

    def _sealed(self, kind: str, turn: int, site: str, content: Content) -> tuple[bytes, str]:
        self.number += 1
        head = Head(run=self.run, sender=self.identity.name, receiver=site, kind=kind, round=turn, number=self.number)
        envelope = seal(head, content.write(), self.identity, self.cards[site], self.random(32))
        return envelope, _digest(envelope)

    def _opened(self, site: str, turn: int, digest: str, envelope: bytes) -> Answer | None:
        """Return the answer if it belongs to exactly this question, otherwise None."""
        try:
            opened: Opened = unseal(envelope, self.identity, self.cards[site])
            head = opened.head
            if (head.run, head.round, head.answers) != (self.run, turn, digest):
                return None
            return Answer(head.kind, Content.read(opened.body))
        except Refused:
            return None


def _without(waiting: Sequence[Sent], back: Sent) -> list[Sent]:
    """Return the questions, in the order of asking, without one that came back and the earlier ones to its site."""
    known = waiting.index(back) if back in waiting else -1
    return [sent for place, sent in enumerate(waiting) if sent.site != back.site or place > known]


def _is_due(now: float, tried: Sequence[float], silent: bool, enough: bool) -> bool:
    """Return whether a site without an answer is to be asked now.

    ``tried``: when it was asked; ``silent``: whether such a question is still on its way.
    """
    if not tried:
        return True
    return (silent or not enough) and now - tried[-1] >= _pause_after(tried, silent)


def _pause_after(tried: Sequence[float], silent: bool) -> float:
    """Return the seconds from the last question to a site until it is asked again."""
    return SILENT * 2.0 ** (len(tried) - 1) if silent else AGAIN


def _digest(envelope: bytes) -> str:
    return hashlib.sha256(envelope).hexdigest()
