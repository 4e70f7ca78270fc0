"""A site's part of masked rounds: one state machine for each of its clients, kept in memory for one round and one use.

With the same noise, two sums over different clients would reveal a single client's update. So a round that was begun
is never begun again: a guard that lost its machines is missing from the round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import final

import numpy as np

from fedveil.core.errors import BadValue
from fedveil.federation.agreements.carried import Carried
from fedveil.federation.agreements.enrolment import signer_of
from fedveil.federation.agreements.masked import STAGES, setting_of
from fedveil.sums.masks.client import ClientRound
from fedveil.sums.masks.refusals import Refused as Ended
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from fedveil.wire.keys import Identity


@final
@dataclass(slots=True)
class MaskedSite:
    """The machines of the last round, and the last answer, which is repeated if exactly the same question comes again.

    ``keys``: the identity key of every client of the study, if the plan uses them.
    """

    plan: Carried
    run: str
    random: Callable[[int], bytes]
    identity: Identity
    keys: Mapping[int, bytes]
    turn: int = -1
    machines: dict[int, ClientRound] = field(default_factory=dict)
    stage: int = 0
    said: tuple[str, Content] | None = None

    def repeated(self, turn: int, body: bytes) -> Content | None:
        """Return the last answer if the last question is asked again, otherwise None."""
        if self.said is not None and turn == self.turn and self.said[0] == sha256(body).hexdigest():
            return self.said[1]
        return None

    def begin(self, turn: int, asked: Content, body: bytes, parts: dict[int, Whole], cohort: int) -> Content:
        """Return the first messages of a new round, from all of the site's clients in it."""
        listed = asked.rows.get("cohort")
        whole = listed is not None and listed.dtype == np.int64
        clients: tuple[int, ...] = tuple(listed.tolist()) if listed is not None and whole else ()
        signed = self.plan.trust.identities is not None
        if len(clients) != cohort or not set(parts) <= set(clients) or (signed and not set(clients) <= set(self.keys)):
            raise Refused("other-cohort")
        try:
            setting = setting_of(self.plan, self.run, turn, clients, self.keys)
        except BadValue as error:  # a client named twice, or values that are not client numbers
            raise Refused("other-cohort") from error
        self.turn, self.stage, self.said = turn, 0, None
        self.machines = {
            client: ClientRound(
                setting,
                client,
                self.random(32),
                part,
                signer=signer_of(self.identity, self.run, client) if signed else b"",
            )
            for client, part in parts.items()
        }
        return self._kept(body, {client: machine.open() for client, machine in self.machines.items()})

    def go_on(self, turn: int, asked: Content, body: bytes) -> Content:
        """Return the next messages; a client that refuses what it is told has left the round."""
        if turn != self.turn or asked.values.get("stage") != STAGES[min(self.stage + 1, len(STAGES) - 1)]:
            raise Refused("out-of-turn")
        self.stage += 1
        found: dict[int, bytes] = {}
        for client, machine in self.machines.items():
            message = asked.blocks.get(str(client))
            if message is None:
                continue
            try:
                found[client] = machine.handle(message)
            except Ended:
                continue
        return self._kept(body, found)

    def _kept(self, body: bytes, found: dict[int, bytes]) -> Content:
        answer = Content(blocks={str(client): message for client, message in found.items()})
        self.said = (sha256(body).hexdigest(), answer)
        return answer
