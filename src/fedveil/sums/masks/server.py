"""The server of a masked sum as a state machine: it relays, adds up masked vectors, and removes the masks.

A message that is refused counts as never received; the round goes on without its sender while enough are left.
"""

from typing import Final, final

import numpy as np

from fedveil.sums.masks.graph import graph_of
from fedveil.sums.masks.keys import KEY_BYTES, check_public, check_signature
from fedveil.sums.masks.lists import (
    advert_statement,
    agree_statement,
    commitments_root,
    lists_digest,
    masked_statement,
    shared_digest,
)
from fedveil.sums.masks.messages import DIGEST_BYTES, Kind, Members, Packet, pack, sender_of, unpack
from fedveil.sums.masks.refusals import BadKey, BadShare, Duplicate, ListsDiffer, OtherParty, OutOfTurn, TooFew
from fedveil.sums.masks.sealed import COMMITMENT_BYTES, PAIR_KEY, SELF_MASK, commitment
from fedveil.sums.masks.setting import Setting
from fedveil.sums.masks.streams import WORD, Ring
from fedveil.sums.masks.unmask import Record, unmask
from fedveil.sums.seam import Summed

_STAGES: Final = (Kind.ADVERT, Kind.SHARES, Kind.MASKED, Kind.AGREE, Kind.REVEAL)
_PAIR: Final = 2 * COMMITMENT_BYTES


@final
class ServerRound:
    """One round. ``handle`` takes a client's message; ``advance`` ends a stage and returns what to send to whom.

    After the fifth stage ``advance`` returns nothing to send, and ``result`` is the sum.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting, self._digest = setting, setting.digest()
        graph = graph_of(setting)
        self._hoods = {client: graph.hood(client) for client in setting.clients}
        self._stage = 0
        self._answered: set[int] = set()
        self._lists: list[Members] = [frozenset(setting.clients)]  # who is left after each stage
        self._adverts: dict[int, bytes] = {}
        self._records: dict[int, Record] = {}
        self._envelopes: dict[int, dict[int, bytes]] = {}  # receiver, sender: commitments and envelope
        self._agrees: dict[int, bytes] = {}
        self._before = self._agreed = b""
        self._masked_by: dict[int, bytes] = {}
        self._known_keys: set[bytes] = set()
        self._sum: Ring = np.zeros(setting.length, dtype=np.uint64)
        self._result: Summed | None = None

    @property
    def expected(self) -> Kind | None:
        """The kind of message that clients send now; None when the round is over."""
        return _STAGES[self._stage] if self._stage < len(_STAGES) else None

    @property
    def result(self) -> Summed:
        """The sum, and the clients in it."""
        if self._result is None:
            raise OutOfTurn("The round has not ended with a sum.")
        return self._result

    def handle(self, message: bytes, sender: int | None = None) -> None:
        """Take a client's message, or refuse it. ``sender``: who it is from, if the connection tells."""
        if self.expected is None:
            raise OutOfTurn("The round is over.")
        who = sender_of(message) if sender is None else sender
        about = [other for other in self._hoods.get(who, ()) if other in self._lists[-1] and other != who]
        if self.expected is Kind.REVEAL:
            about = [other for other in self._hoods.get(who, ()) if other in self._lists[2]]
        packet = unpack(self.expected, self._setting, message, sender, lambda _: about)
        if packet.party not in self._lists[-1]:
            raise OtherParty(f"Client {packet.party} has left the round at an earlier stage.")
        if packet.party in self._answered:
            raise Duplicate(f"Client {packet.party} has answered at this stage already; its first answer stands.")
        takes = {
            Kind.ADVERT: self._take_advert,
            Kind.SHARES: self._take_shares,
            Kind.MASKED: self._take_masked,
            Kind.AGREE: self._take_agree,
            Kind.REVEAL: self._take_reveal,
        }
        takes[self.expected](packet)
        self._answered.add(packet.party)

    def advance(self) -> dict[int, bytes]:
        """End the stage with the clients that have answered; return the messages that begin the next one."""
        if self.expected is None:
            raise OutOfTurn("The round is over.")
        left, ended = frozenset(self._answered), self.expected
        floor = self._setting.least if ended in (Kind.ADVERT, Kind.SHARES, Kind.MASKED) else self._setting.quorum
        if ended is not Kind.REVEAL and len(left) < floor:
            raise TooFew(f"Only {len(left)} clients are left after {ended.name.lower()}, and {floor} are needed.")
        self._lists.append(left)
        self._answered = set()
        self._stage += 1
        sends = {
            Kind.ADVERT: self._send_roster,
            Kind.SHARES: self._send_relay,
            Kind.MASKED: self._send_survivors,
            Kind.AGREE: self._send_proof,
            Kind.REVEAL: self._finish,
        }
        return sends[ended]()

    def _take_advert(self, packet: Packet) -> None:
        row, client = bytes(packet.fixed), packet.party
        keys = row[: 2 * KEY_BYTES]
        both = {keys[:KEY_BYTES], keys[KEY_BYTES:]}
        for key in both:
            check_public(key, client)
        if len(both) < 2 or both & self._known_keys:
            raise BadKey(f"Client {client} gave a public key that is in use already.")
        identity = self._setting.identity(client)
        if identity is not None:
            check_signature(identity, row[2 * KEY_BYTES :], advert_statement(self._digest, client, keys), client)
        self._known_keys |= both
        self._adverts[client] = row

    def _send_roster(self) -> dict[int, bytes]:
        began = self._lists[1]
        return {
            client: pack(
                Kind.ROSTER,
                self._setting,
                client,
                lists=(began,),
                rows={
                    other: self._adverts[other] for other in self._hoods[client] if other in began and other != client
                },
            )
            for client in began
        }

    def _take_shares(self, packet: Packet) -> None:
        owner, fixed = packet.party, bytes(packet.fixed)
        committed = {other: row[:_PAIR] for other, row in packet.rows.items()} | {owner: fixed[DIGEST_BYTES:]}
        public = self._adverts[owner][KEY_BYTES : 2 * KEY_BYTES]
        self._records[owner] = Record(fixed[:DIGEST_BYTES], public, self._hoods[owner], committed)
        for other, row in packet.rows.items():
            self._envelopes.setdefault(other, {})[owner] = row

    def _send_relay(self) -> dict[int, bytes]:
        began, shared = self._lists[1:3]
        every = (row for client in sorted(shared) for _, row in sorted(self._records[client].committed.items()))
        root = commitments_root(every)
        self._before = shared_digest(self._digest, root, began, shared)
        sent = {}
        for client in shared:
            rows = {other: row for other, row in self._envelopes.get(client, {}).items() if other in shared}
            sent[client] = pack(Kind.RELAY, self._setting, client, lists=(shared,), fixed=root, rows=rows)
        self._envelopes = {}
        return sent

    def _take_masked(self, packet: Packet) -> None:
        client, size = packet.party, self._setting.length
        identity = self._setting.identity(client)
        if identity is not None:
            self._masked_by[client] = bytes(packet.fixed[8 * size :])
            check_signature(identity, self._masked_by[client], masked_statement(self._before, client), client)
        np.add(self._sum, np.frombuffer(packet.fixed, dtype=WORD, count=size), out=self._sum)

    def _send_survivors(self) -> dict[int, bytes]:
        shared, alive = self._lists[2:4]
        gone, rows = shared - alive, {client: self._masked_by[client] for client in alive if client in self._masked_by}
        self._agreed = lists_digest(self._before, alive, gone)
        return {client: pack(Kind.SURVIVORS, self._setting, client, lists=(alive, gone), rows=rows) for client in alive}

    def _take_agree(self, packet: Packet) -> None:
        client, row = packet.party, bytes(packet.fixed)
        if row[:DIGEST_BYTES] != self._agreed:
            raise ListsDiffer(f"Client {client} agrees to other lists of participants than it was sent.")
        identity = self._setting.identity(client)
        if identity is not None:
            check_signature(identity, row[DIGEST_BYTES:], agree_statement(self._agreed, client), client)
        self._agrees[client] = row

    def _send_proof(self) -> dict[int, bytes]:
        shared, alive, agreeing = self._lists[2:5]
        lists, rows = (alive, shared - alive, agreeing), self._agrees
        return {client: pack(Kind.PROOF, self._setting, client, lists=lists, rows=rows) for client in agreeing}

    def _take_reveal(self, packet: Packet) -> None:
        holder, alive = packet.party, self._lists[3]
        for owner, opening in packet.rows.items():
            at, kind = (0, SELF_MASK) if owner in alive else (COMMITMENT_BYTES, PAIR_KEY)
            committed = self._records[owner].committed[holder][at : at + COMMITMENT_BYTES]
            if commitment(opening, kind, self._digest, owner, holder) != committed:
                raise BadShare(f"Client {holder} gave a share of client {owner} that does not fit its commitment.")
        for owner, opening in packet.rows.items():
            self._records[owner].opened[holder] = opening

    def _finish(self) -> dict[int, bytes]:
        unmask(self._setting, self._sum, self._records, alive=self._lists[3])
        self._result = Summed(self._sum.view(np.int64), tuple(sorted(self._lists[3])))
        return {}
