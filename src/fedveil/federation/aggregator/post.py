"""How an aggregator reaches its sites: envelopes out, envelopes back, in its own time.

Whoever carries them is behind a Protocol; nothing here depends on Flower.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Opened, Refused, seal, unseal
from fedveil.wire.keys import Card, Identity

PAUSE: Final = 0.2  # seconds between looks
AGAIN: Final = 3.0  # seconds before a site that failed, and is needed, is asked again


class Carrier(Protocol):
    """Carries envelopes; it is not trusted."""

    def online(self) -> Mapping[str, str]:
        """Sites that seem to be there, and the address of each."""

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        """Send one; the name under which its answer is asked for."""

    def pull(self, names: list[str]) -> Mapping[str, bytes]:
        """Answers that have come; empty where the carrier reports a failure."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time from outside; trials give their own."""

    seconds: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a site said, in an envelope that was in order."""

    kind: str
    content: Content


@dataclass(frozen=True, slots=True)
class Sent:
    """A question on its way: the carrier's name for it, and what its answer must name."""

    name: str
    site: str
    turn: int
    digest: str


Watch = Callable[[str, str], None]  # a site and what became of it


@final
@dataclass(slots=True, kw_only=True)
class Post:
    """One aggregator's conversation in one run; ``number`` rises with every envelope, also over restarts."""

    identity: Identity
    cards: Mapping[str, Card]
    run: str
    number: int
    carrier: Carrier
    clock: Clock
    random: Callable[[int], bytes]
    watch: Watch = lambda site, state: None
    ignored: dict[str, int] = field(default_factory=dict)

    def ask(
        self,
        kind: str,
        turn: int,
        contents: Mapping[str, Content],
        timeout: float,
        right: Callable[[str, Answer], bool],
        enough: Callable[[Mapping[str, Answer]], bool],
    ) -> dict[str, Answer]:
        """Ask these sites the same kind of thing; what they answered in time.

        ``right``: whether an answer is what it should be; one that is not counts as none. When nobody is awaited any
        more and the answers are ``enough``, that is all; when they are not, those missing are asked again.
        """
        end, found = self.clock.seconds() + timeout, dict[str, Answer]()
        waiting: list[Sent] = []
        tried: dict[str, float] = {}
        while True:
            now = self.clock.seconds()
            missing = set(contents) - set(found) - {sent.site for sent in waiting}
            ready = [site for site in contents if site in missing and now - tried.get(site, -AGAIN) >= AGAIN]
            if ready and (not enough(found) or any(site not in tried for site in ready)):
                online = self.carrier.online()
                for site in ready:
                    if site in online:
                        tried[site] = now
                        waiting.append(self.send(kind, turn, site, contents[site], online[site], max(end - now, 1.0)))
            for sent, answer in self.collect(waiting, right):
                waiting.remove(sent)
                if answer is not None:
                    found[sent.site] = answer
            if len(found) == len(contents) or (not waiting and tried and enough(found)):
                return found
            if self.clock.seconds() >= end:
                return found
            self.clock.sleep(PAUSE)

    def send(self, kind: str, turn: int, site: str, content: Content, address: str, seconds: float) -> Sent:
        """One question on its way; ``seconds``: how long an answer is of use."""
        envelope, digest = self._sealed(kind, turn, site, content)
        name = self.carrier.push(address, envelope, seconds)
        self.watch(site, "asked")
        return Sent(name, site, turn, digest)

    def collect(
        self, waiting: Sequence[Sent], right: Callable[[str, Answer], bool]
    ) -> list[tuple[Sent, Answer | None]]:
        """The questions that have come back; None: with a failure, or with an answer that is not right."""
        back = self.carrier.pull(sorted(sent.name for sent in waiting)) if waiting else {}
        found: list[tuple[Sent, Answer | None]] = []
        for sent in [sent for sent in waiting if sent.name in back]:
            answer = self._opened(sent.site, sent.turn, sent.digest, back[sent.name])
            fine = answer is not None and right(sent.site, answer)
            if not fine:
                self.ignored[sent.site] = self.ignored.get(sent.site, 0) + 1
            self.watch(sent.site, "answered" if fine else "failed")
            found.append((sent, answer if fine else None))
        return found

    def _sealed(self, kind: str, turn: int, site: str, content: Content) -> tuple[bytes, str]:
        self.number += 1
        head = Head(run=self.run, sender=self.identity.name, receiver=site, kind=kind, round=turn, number=self.number)
        envelope = seal(head, content.write(), self.identity, self.cards[site], self.random(32))
        return envelope, _digest(envelope)

    def _opened(self, site: str, turn: int, digest: str, envelope: bytes) -> Answer | None:
        """The answer to this very question, or None."""
        try:
            opened: Opened = unseal(envelope, self.identity, self.cards[site])
            head = opened.head
            if (head.run, head.round, head.answers) != (self.run, turn, digest):
                return None
            return Answer(head.kind, Content.read(opened.body))
        except Refused:
            return None


def _digest(envelope: bytes) -> str:
    return hashlib.sha256(envelope).hexdigest()
