"""A server that has the aggregator's keys, stops a run between two exchanges of a masked round, and asks as it likes.

What it has: every signature that it needs for a question, all that passed, its own disk. What it meets: the guards.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flower_trials import knock

from fedveil.federation.aggregator.post import Answer, Carrier
from fedveil.federation.agreements import part_in
from fedveil.federation.deploy.own_keys import read_site
from fedveil.federation.flower.local import LocalNetwork
from fedveil.sums.masks.amortised import MaskedPart
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, peek, seal, unseal


class Stopped(Exception):
    """The server has what it wants."""


@dataclass(slots=True)
class Stopping:
    """A carrier that ends the aggregator before the first question of a round's stage leaves; keeps all that passed.

    ``meanwhile`` is called before it ends, while it is still connected.
    """

    carrier: Carrier
    network: LocalNetwork
    turn: int
    stage: str
    meanwhile: Callable[[], None] = lambda: None
    sent: list[tuple[str, int, Content]] = field(default_factory=list)
    number: int = 0
    _names: dict[str, str] = field(default_factory=dict)

    def online(self) -> Mapping[str, str]:
        """As the carrier says."""
        found = self.carrier.online()
        self._names |= {address: site for site, address in found.items()}
        return found

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        """On its way, unless it is the one to stop at."""
        head, site = peek(envelope), self._names[address]
        self.number = head.number
        if head.kind == "masked":
            self.sent.append((site, head.round, question_in(self.network, site, envelope)))
            if head.round == self.turn and self.sent[-1][2].values["stage"] == self.stage:
                self.meanwhile()
                raise Stopped
        return self.carrier.push(address, envelope, seconds)

    def pull(self, names: list[str], seconds: float) -> Mapping[str, bytes]:
        """As the carrier brings it."""
        return self.carrier.pull(names, seconds)

    def asked(self, site: str, turn: int, stage: str) -> Content:
        """What a site was asked at a stage of a round."""
        return next(c for name, at, c in self.sent if (name, at, c.values["stage"]) == (site, turn, stage))


def question_in(network: LocalNetwork, site: str, envelope: bytes) -> Content:
    """A question as its site reads it."""
    own, aggregator = read_site(network.place(site) / "identity.key")
    return Content.read(unseal(envelope, own, aggregator).body)


@dataclass(slots=True)
class Server:
    """Asks live guards with the aggregator's own keys, at their doors; ``number``: of its last envelope."""

    network: LocalNetwork
    run: str
    number: int

    def ask(self, site: str, turn: int, content: Content) -> Answer:
        """What the guard answers."""
        self.number += 1
        deployment = self.network.deployment
        head = Head(run=self.run, sender="aggregator", receiver=site, kind="masked", round=turn, number=self.number)
        card = deployment.cards[site]
        envelope = seal(head, content.write(), deployment.identity, card, self.number.to_bytes(32, "big"))
        answer = knock(self.network.door(site), envelope)
        assert answer is not None
        opened = unseal(answer, deployment.identity, card)
        return Answer(opened.head.kind, Content.read(opened.body))


def changed(content: Content, alive: list[str], stage: str, signatures: Mapping[str, bytes] | None = None) -> Content:
    """The question with another list of those in the sum, and other signatures."""
    blocks = {name: block for name, block in content.blocks.items() if name.removeprefix("from ") in alive}
    return Content(values={"stage": stage, "alive": alive}, rows=content.rows, blocks=blocks | dict(signatures or {}))


def run_of(out: Path) -> str:
    """The name of the run in a folder."""
    return (out / "private" / "aggregator").read_bytes()[:16].hex()


def masked_parts(out: Path) -> dict[str, MaskedPart]:
    """The masked parts of the round at hand, which the aggregator has on its disk."""
    log = Content.read((out / "private" / "masked").read_bytes())
    return {site: part_in(Content.read(block)) for site, block in log.blocks.items()}


def sealed_for(parts: Mapping[str, Any], site: str) -> dict[str, bytes]:
    """What the others have sealed for a site."""
    return {f"from {owner}": (part.sealed or {})[site] for owner, part in parts.items() if owner != site}


def code(answer: Answer) -> str:
    """The word with which a guard refuses."""
    assert answer.kind == "refused", answer.kind
    return str(answer.content.values["code"])
