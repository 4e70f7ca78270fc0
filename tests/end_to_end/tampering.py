"""A carrier that tampers with answers: swaps, reflects, replays, changes, downgrades, forges and cuts them, once each.

What it returns in place of a site's answer to a round's first question; asked again, it carries the true one.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.federation.aggregator.post import Carrier
from fedveil.federation.deploy.files import Deployment
from fedveil.wire.content import Content
from fedveil.wire.envelope import MAGIC, Head, peek, seal
from fedveil.wire.keys import Identity

OLD = b"fedveil envelope 0\n"
SWAPPED = ("site-1", "site-2")  # their answers to the first round


@dataclass(slots=True)
class Tampering:
    """What was sent and what came back is kept, by site and round."""

    carrier: Carrier
    deployment: Deployment
    asked: dict[tuple[str, int], bytes] = field(default_factory=dict)
    answered: dict[tuple[str, int], bytes] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    _sent: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _held: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def online(self) -> Mapping[str, str]:
        """As the carrier says."""
        found = self.carrier.online()
        self._names |= {address: site for site, address in found.items()}
        return found

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        """On its way, and kept."""
        name = self.carrier.push(address, envelope, seconds)
        self._sent[name] = self._names[address], envelope
        return name

    def pull(self, names: list[str], seconds: float) -> Mapping[str, bytes]:
        """What came back, or what is made of it."""
        held = {name for name, _ in self._held.values()}
        back = self.carrier.pull([name for name in names if name not in held], seconds)
        found: dict[str, bytes] = {}
        for name, data in back.items():
            site, question = self._sent[name]
            head = peek(question)
            if head.kind != "step" or (site, head.round) in self.answered or not data:
                found[name] = data
                continue
            self.asked[site, head.round], self.answered[site, head.round] = question, data
            if head.round == 0 and site in SWAPPED:
                self._held[site] = name, data
            else:
                fault = FAULTS[head.round, site]
                self.done.append(fault.__name__)
                found[name] = fault(self, site, head, data)
        if len(self._held) == len(SWAPPED):
            one, other = (self._held.pop(site) for site in SWAPPED)
            found |= {one[0]: other[1], other[0]: one[1]}
            self.done += ["swapped"] * 2
        return found


def reflected(here: Tampering, site: str, head: Head, data: bytes) -> bytes:
    """The question comes back as its own answer."""
    return here.asked[site, head.round]


def replayed(here: Tampering, site: str, head: Head, data: bytes) -> bytes:
    """The site's own answer to the round before."""
    return here.answered[site, head.round - 1]


def flipped(here: Tampering, site: str, head: Head, data: bytes) -> bytes:
    """One bit of the sealed body."""
    return data[:-80] + bytes([data[-80] ^ 1]) + data[-79:]


def downgraded(here: Tampering, site: str, head: Head, data: bytes) -> bytes:
    """The form of an earlier version."""
    return OLD + data[len(MAGIC) :]


def forged(here: Tampering, site: str, head: Head, data: bytes) -> bytes:
    """An answer to the very question, for the right receiver, under the site's name and a key of our own."""
    return seal(peek(data), Content().write(), Identity.make(site, os.urandom(64)), aggregator(here), os.urandom(32))


def cut(here: Tampering, site: str, head: Head, data: bytes) -> bytes:
    """One byte is missing."""
    return data[:-1]


def emptied(here: Tampering, site: str, head: Head, data: bytes) -> bytes:
    """Nothing but the head."""
    return data[: len(MAGIC) + 2 + int.from_bytes(data[len(MAGIC) : len(MAGIC) + 2], "big")]


def aggregator(here: Tampering) -> Any:
    """The public key of the aggregator, which every site has."""
    return here.deployment.identity.card


Fault = Callable[[Tampering, str, Head, bytes], bytes]
FAULTS: dict[tuple[int, str], Fault] = {
    (0, "site-3"): reflected,
    (1, "site-1"): replayed,
    (1, "site-2"): flipped,
    (1, "site-3"): downgraded,
    (2, "site-1"): forged,
    (2, "site-2"): cut,
    (2, "site-3"): emptied,
}


def questions_that_are_not(here: Tampering, site: str, other: str) -> dict[str, bytes]:
    """What a guard may be told by whoever carries its messages: by kinds of tampering with true ones."""
    question, card = here.asked[site, 0], here.deployment.cards[site]
    head = peek(question)
    later = Head(run=head.run, sender=head.sender, receiver=site, kind="step", round=1, number=2**40)
    stranger = Identity.make(head.sender, os.urandom(64))
    return {
        "replayed": question,
        "swapped": here.asked[other, 0],
        "reflected": here.answered[site, 0],
        "flipped": flipped(here, site, head, question),
        "downgraded": downgraded(here, site, head, question),
        "cut": cut(here, site, head, question),
        "emptied": emptied(here, site, head, question),
        "forged": seal(later, Content().write(), stranger, card, os.urandom(32)),
        "nothing": b"",
    }
