"""The server of a masked sum as a state machine: it relays, adds up masked vectors, and removes the masks.

A message that is refused counts as never received; the round goes on without its sender while enough are left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedveil.sums.masks.client import (
    advert_statement,
    agree_statement,
    commitments_root,
    graph_of,
    lists_digest,
    masked_statement,
    self_mask_digest,
    shared_digest,
)
from fedveil.sums.masks.keys import (
    COMMITMENT_BYTES,
    KEY_BYTES,
    PAIR_KEY,
    SELF_MASK,
    SHARE_BYTES,
    WORD,
    Ring,
    add_masks,
    agreed,
    check_public,
    check_signature,
    commitment,
    pair_mask_key,
    recover,
    self_mask_key,
)
from fedveil.sums.masks.messages import DIGEST_BYTES, Kind, Members, Packet, pack, sender_of, unpack
from fedveil.sums.masks.setting import BadKey, BadShare, Duplicate, ListsDiffer, OtherParty, OutOfTurn, Setting, TooFew
from fedveil.sums.seam import Summed

# Remove the masks from a sum: recover secrets from shares, check each against its owner's word, then the streams.


@final
@dataclass(frozen=True, slots=True)
class Record:
    """What the server knows of one client: digest of its self-mask, public key, holders, commitments, shares."""

    digest: bytes
    public: bytes
    hood: tuple[int, ...]
    committed: dict[int, bytes]
    opened: dict[int, bytes] = field(default_factory=dict)


def secret_of(owner: int, record: Record, threshold: int) -> bytes:
    """Return a client's secret from the first ``threshold`` shares, each of which already fits its commitment."""
    if len(record.opened) < threshold:
        raise TooFew(f"Only {len(record.opened)} shares of client {owner} came back, and {threshold} are needed.")
    numbered = [(at, record.opened[holder]) for at, holder in enumerate(record.hood, 1) if holder in record.opened]
    secret = recover({at: opening[:SHARE_BYTES] for at, opening in numbered[:threshold]})
    if secret is None:
        raise BadShare(f"Client {owner} dealt shares that are not of one secret.")
    return secret


def unmask(setting: Setting, total: Ring, records: Mapping[int, Record], alive: Members) -> None:
    """Remove, in place, the self-masks of clients in the sum, and what their pair masks with lost clients have left."""
    digest = setting.digest()
    masks = []
    for owner in sorted(alive):
        seed = secret_of(owner, records[owner], setting.threshold)
        if self_mask_digest(seed, digest) != records[owner].digest:
            raise BadShare(f"Client {owner} dealt shares that are not of its self-mask.")
        masks.append((self_mask_key(seed, setting, owner), True))
    for owner in sorted(records.keys() - alive):
        near = [other for other in records[owner].hood if other in alive]
        if near:  # otherwise nobody in the sum shares a mask with it
            private = X25519PrivateKey.from_private_bytes(secret_of(owner, records[owner], setting.threshold))
            if private.public_key().public_bytes_raw() != records[owner].public:
                raise BadShare(f"Client {owner} dealt shares that are not of its mask key.")
            for other in near:
                secret = agreed(private, records[other].public, other)
                # ``other`` subtracted the mask if the lost client's number is lower, and added it otherwise.
                masks.append((pair_mask_key(secret, setting, owner, other), owner > other))
    add_masks(total, masks)


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
