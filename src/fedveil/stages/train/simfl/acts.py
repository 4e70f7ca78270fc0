"""How SimFL is carried out: in this process, or between parties whose sealed messages the aggregator carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path
from typing import Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.files import write_atomically
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.models.loss import Loss
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.stages.adding import LARGEST_PART
from fedveil.stages.protocol import LOOSE, TAIL, Consortium
from fedveil.stages.train.acting import Acts, Asks, Relay, Session, Tick, Trained
from fedveil.stages.train.base import Training, expected
from fedveil.stages.train.optimiser import project
from fedveil.stages.train.simfl.method import SimFL
from fedveil.sums.exact import squared_norm
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Refused, seal, unseal
from fedveil.wire.keys import Card, Identity

# SimFL in this process: parties send noised sums to the leader of the round, which steps and sends the model on.


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A message from one party to another in a round: a noised gradient sum (in grid steps), or the model."""

    round: int
    sender: int
    receiver: int
    what: Literal["gradient", "model"]
    content: Vector


Wire = Callable[[Message], None]


@dataclass(frozen=True, slots=True, eq=False)
class Party:
    """The records of one party, and what it computes from them."""

    number: int
    loss: Loss
    features: Vector
    targets: Vector
    norms: Vector

    def noised_sum(self, method: SimFL, model: Vector, unit: float, entropy: Entropy, turn: int) -> tuple[Vector, int]:
        """Return the sum of the clipped gradients of the records that join, noised, in whole grid steps."""
        weights = None if method.rate == 1 else self.joining(method.rate, entropy, turn).astype(np.float64)
        total, dropped = self.loss.gradient(
            model, self.features, self.targets, clip=method.clip, weights=weights, norms=self.norms
        )
        source = entropy.stream(f"noise of party {self.number}", turn)
        noise = rounded_normal(source, method.noise_std / unit, model.size).astype(np.float64)
        return np.rint(total / unit) + noise, dropped

    def joining(self, rate: float, entropy: Entropy, turn: int) -> NDArray[np.bool_]:
        """Return which of its records join a round, by a coin each with a chance of at most ``rate``."""
        words = entropy.words(f"records of party {self.number}", turn, self.targets.size)
        return np.asarray(words < np.uint64(min(int(rate * 2**64), 2**64 - 1)))


def train_simfl(plan: Training, records: Records, entropy: Entropy, tick: Tick, *, wire: Wire | None = None) -> Trained:
    """Train and return the model after the last round; ``wire`` is called with every message."""
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    method, parties, unit = simfl_of(plan), parties_of(plan, records), 2.0**plan.grid
    send = wire or (lambda message: None)
    model, speed, dropped = np.zeros(plan.dimension), np.zeros(plan.dimension), 0
    for turn in range(method.rounds):
        leader = method.leader(turn, len(parties))
        total = np.zeros(plan.dimension)
        for party in parties:
            noised, lost = party.noised_sum(method, model, unit, entropy, turn)
            if party.number != leader:
                send(Message(turn, party.number, leader, "gradient", noised))
            total += noised
            dropped += lost
        model, speed = step(plan, model, speed, total)
        for party in parties:
            if party.number != leader:
                send(Message(turn, leader, party.number, "model", model))
        tick(turn + 1)
    sent = method.rounds * (len(parties) - 1) * plan.dimension * 8
    return Trained(model=model, dropped=dropped, bytes_up=sent, bytes_down=sent)


def step(plan: Training, model: Vector, speed: Vector, total: Vector) -> tuple[Vector, Vector]:
    """Return the leader's next model and its speed, from the sum of a round (in grid steps)."""
    method, unit = simfl_of(plan), 2.0**plan.grid
    speed = method.momentum * speed + total * (unit / method.divisor(plan.data)) + plan.model.l2 * model
    return project(model - method.step_size * speed, plan.radius), speed


def parties_of(plan: Training, records: Records) -> list[Party]:
    """Return the parties, each with its own records."""
    order, starts = records.by_client()
    features, targets = records.features[order], records.targets[order]
    norms = np.sqrt(np.vecdot(features, features))
    cuts = [slice(int(starts[k]), int(starts[k + 1])) for k in range(records.clients)]
    return [Party(k, plan.model.loss, features[cut], targets[cut], norms[cut]) for k, cut in enumerate(cuts)]


def simfl_of(plan: Training) -> SimFL:
    """Return the plan's method, which must be SimFL."""
    return expected(SimFL, plan.method)


# A site's part of SimFL: its own noised sum, sealed for the leader of the round, and the leader's step in its turn.
#
# The parties are the sites, numbered by their names, so nobody chooses who leads. Whoever carries the messages can read
# none: sums are sealed for the leader, models for the others, by the public keys that sites have of each other.

# The aggregator's part of SimFL: it carries sealed messages from the parties to the leader and back, and reads none.
#
# What it carries is on its disk between rounds, so a restart continues with the same envelopes.


def check_parties(members: Consortium) -> None:
    """Refuse unless every site is one party and parties are numbered by their names, so that each knows who leads."""
    numbers = [members.members[site].clients.tolist() for site in sorted(members.members)]
    rule = "be one at each site for simfl, numbered in the order of the sites' names"
    require(numbers == [[k] for k in range(len(numbers))], "The clients", rule, numbers)


def relayed_model(plan: Training, sites: list[str], ask: Asks, log: Path, tick: Callable[[int], None]) -> Vector:
    """Relay all rounds and return the model that the last leader releases."""
    method, names = simfl_of(plan), sorted(sites)
    kept = Content.read(log.read_bytes()) if log.exists() else Content(values={"round": 0})
    for turn in range(int(kept.values["round"]), method.rounds):
        leader = names[method.leader(turn, len(names))]
        before = {site: {"model": kept.blocks[site]} if site in kept.blocks else {} for site in names}
        others = {site: Content(blocks=before[site]) for site in names if site != leader}
        sums = {site: said.blocks.get("sum", b"") for site, said in ask("party", turn, others, "sum").items()}
        led = ask("lead", turn, {leader: Content(blocks={**before[leader], **sums})}, "led")[leader]
        kept = Content(values={"round": turn + 1}, rows=led.rows, blocks=led.blocks)
        write_atomically(log, kept.write())
        tick(turn + 1)
    model = kept.rows.get("model")
    right = model is not None and model.shape == (plan.dimension,) and bool(np.all(np.isfinite(model)))
    require(right, "The last leader's model", f"be {plan.dimension} finite numbers", "something else")
    assert model is not None  # noqa: S101
    return model.astype(np.float64)


_SUM: Final = "party-sum"
_MODEL: Final = "party-model"


@dataclass(frozen=True, slots=True, eq=False)
class Stand:
    """What a party knows before round ``round``; there is only one model for a round."""

    round: int
    model: Vector
    speed: Vector

    def write(self) -> Content:
        """Return the state as content."""
        return Content(values={"round": self.round}, rows={"model": self.model, "speed": self.speed})

    @classmethod
    def read(cls, said: Content, size: int) -> Stand:
        """Read the state from content; refuse anything but finite rows of the right length."""
        turn, rows = said.values.get("round"), [said.rows.get(name) for name in ("model", "speed")]
        result = [row.astype(np.float64) for row in rows if row is not None and _vector(row, size)]
        if type(turn) is not int or len(result) != 2:
            raise Refused("malformed")
        return cls(turn, *result)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SimFLSite:
    """One run at one site; ``memory``: a private file for what must survive a restart; ``names``: all parties."""

    plan: Training
    run: str
    party: Party
    names: tuple[str, ...]
    identity: Identity
    peers: Mapping[str, Card]
    entropy: Entropy
    memory: Path
    random: Callable[[int], bytes]

    @classmethod
    def make(
        cls,
        plan: Training,
        run: str,
        records: Records,
        keys: tuple[Identity, Mapping[str, Card]],
        entropy: Entropy,
        memory: Path,
        random: Callable[[int], bytes],
    ) -> SimFLSite:
        """Set up the site; ``keys``: the site's own, and the public keys of the others."""
        identity, peers = keys
        names = tuple(sorted([identity.name, *peers]))
        (own,) = parties_of(plan, records)
        party = replace(own, number=names.index(identity.name))
        return cls(plan, run, party, names, identity, peers, entropy, memory, random)

    def contribute(self, turn: int, asked: Content) -> Content:
        """Return the noised sum of this round, sealed for its leader."""
        leader = self.leader(turn)
        if leader == self.identity.name:
            raise Refused("out-of-turn")
        stand = self._stand(turn, asked)
        return Content(blocks={"sum": self._sealed(leader, _SUM, turn, Content(rows={"sum": self._own(stand)}))})

    def lead(self, turn: int, asked: Content) -> Content:
        """Step if this site leads; return the new model sealed for each of the others, the last one for everybody."""
        if self.leader(turn) != self.identity.name:
            raise Refused("out-of-turn")
        kept = self._kept()
        if kept.round != turn + 1:  # otherwise the step is already done, and is only sent again
            stand = self._stand(turn, asked)
            total = np.zeros(self.plan.dimension)
            for name in self.names:  # in the order of the parties, as in one process
                total += self._own(stand) if name == self.identity.name else self._sum_of(name, turn, asked)
            kept = Stand(turn + 1, *step(self.plan, stand.model, stand.speed, total))
            write_atomically(self.memory, kept.write().write())
        said = {name: self._sealed(name, _MODEL, turn, kept.write()) for name in self.peers}
        last = turn + 1 == simfl_of(self.plan).rounds
        return Content(rows={"model": kept.model} if last else {}, blocks=said)

    def leader(self, turn: int) -> str:
        """Return who leads a round."""
        method = simfl_of(self.plan)
        if not 0 <= turn < method.rounds:
            raise Refused("no-such-round")
        return self.names[method.leader(turn, len(self.names))]

    def _stand(self, turn: int, asked: Content) -> Stand:
        """Return the state before a round.

        As remembered, or as the last leader says, which is then remembered first.
        """
        kept = self._kept()
        if kept.round == turn:
            return kept
        if kept.round != turn - 1:
            raise Refused("stale-round")
        found = self._opened(self.leader(turn - 1), _MODEL, turn - 1, asked.blocks.get("model", b""))
        stand = Stand.read(found, self.plan.dimension)
        if stand.round != turn:
            raise Refused("stale-round")
        write_atomically(self.memory, stand.write().write())
        return stand

    def _kept(self) -> Stand:
        if not self.memory.exists():
            return Stand(0, np.zeros(self.plan.dimension), np.zeros(self.plan.dimension))
        return Stand.read(Content.read(self.memory.read_bytes()), self.plan.dimension)

    def _own(self, stand: Stand) -> Vector:
        unit = 2.0**self.plan.grid
        return self.party.noised_sum(simfl_of(self.plan), stand.model, unit, self.entropy, stand.round)[0]

    def _sum_of(self, name: str, turn: int, asked: Content) -> Vector:
        """Return another party's sum; refuse one that no party's records and noise can give."""
        row = self._opened(name, _SUM, turn, asked.blocks.get(name, b"")).rows.get("sum")
        size, method, unit = self.plan.dimension, simfl_of(self.plan), 2.0**self.plan.grid
        if row is None or not _vector(row, size) or not bool(np.all(row == np.rint(row))):
            raise Refused("bad-sum")
        noise = method.noise_std / unit * (sqrt(size) + TAIL)
        limit = ceil((self.plan.data.largest_client * method.clip / unit + noise) * LOOSE + 2 * sqrt(size))
        if not (np.all(np.abs(row) <= LARGEST_PART) and squared_norm(row.astype(np.int64)) <= limit * limit):
            raise Refused("bad-sum")
        return row.astype(np.float64)

    def _sealed(self, receiver: str, kind: str, turn: int, content: Content) -> bytes:
        me = self.identity
        head = Head(run=self.run, sender=me.name, receiver=receiver, kind=kind, round=turn, number=0)
        return seal(head, content.write(), me, self.peers[receiver], self.random(32))

    def _opened(self, sender: str, kind: str, turn: int, envelope: bytes) -> Content:
        """Open what another site sealed for this one, in this run and this round."""
        opened = unseal(envelope, self.identity, self.peers[sender])
        if (opened.head.run, opened.head.kind, opened.head.round) != (self.run, kind, turn):
            raise Refused("stale-round")
        return Content.read(opened.body)


def check_party(plan: Training, proposal: Content, records: Records, me: str, peers: Mapping[str, Card]) -> None:
    """Refuse unless this site is one party, numbered by its place among the names."""
    names = sorted([me, *peers])
    if len(names) != plan.data.clients:
        raise Refused("unknown-peers")
    if records.clients != 1 or proposal.rows["numbers"].tolist() != [names.index(me)]:
        raise Refused("other-data")


def _vector(row: NDArray[np.float64] | NDArray[np.int64], size: int) -> bool:
    return bool(row.dtype == np.float64 and row.shape == (size,) and np.all(np.isfinite(row)))


def _train(plan: Training, records: Records, entropy: Entropy, session: Session) -> Trained:
    return train_simfl(plan, records, entropy, session.tick)


ACTS = Acts(
    own=lambda stage: _train,
    relay=Relay(check_parties=check_parties, model=relayed_model, check_party=check_party, party=SimFLSite.make),
)
