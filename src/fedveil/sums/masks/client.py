"""A client of a masked sum as a state machine: messages in, messages out. It checks everything the server says.

The protocol follows [B17] and [B20]; docs/theory/secure-aggregation.md says what is promised against whom. Any refusal
ends the client's part in the round: it never answers again, and no share leaves it.

References:
    [B17] Bonawitz et al. Practical Secure Aggregation for Privacy-Preserving Machine Learning. CCS 2017.
    [B20] Bell et al. Secure Single-Server Aggregation with (Poly)Logarithmic Overhead. CCS 2020.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedveil.core.errors import require
from fedveil.sums.masks.keys import (
    COEFFICIENT_BYTES,
    COMMITMENT_BYTES,
    KEY_BYTES,
    SALT_BYTES,
    WORD,
    Draw,
    Held,
    add_masks,
    agreed,
    check_public,
    check_signature,
    commitments,
    deal,
    envelope_key,
    pair_mask_key,
    seal,
    self_mask_key,
    signed,
    unseal,
)
from fedveil.sums.masks.messages import DIGEST_BYTES, HEAD_BYTES, Kind, Members, Packet, head, pack, unpack
from fedveil.sums.masks.setting import (
    AliveAndGone,
    BadKey,
    BadList,
    BadSignature,
    Bounds,
    ListsDiffer,
    OtherRun,
    OutOfTurn,
    RoundReused,
    Setting,
    ShareSpent,
    TooFew,
    admit,
)
from fedveil.sums.seam import Whole

# The neighbour graph of a round: a ring in an order given by run and round, where each client is tied to the nearest.
#
# Every party computes the graph itself. See docs/theory/secure-aggregation.md.


@final
@dataclass(frozen=True, slots=True)
class Graph:
    """The clients in the order of the ring, and the place of each client in it."""

    ring: tuple[int, ...]
    place: dict[int, int]
    neighbours: int

    def hood(self, client: int) -> tuple[int, ...]:
        """Return a client and its neighbours in ascending order.

        They hold the shares of its secrets: share x belongs to the x-th of them.
        """
        size, at, half = len(self.ring), self.place[client], self.neighbours // 2
        near = {self.ring[(at + step) % size] for step in range(-half, half + 1)}
        if self.neighbours % 2:
            near.add(self.ring[(at + size // 2) % size])
        return tuple(sorted(near))

    def around(self, client: int) -> tuple[int, ...]:
        """Return the neighbours of a client in ascending order."""
        return tuple(other for other in self.hood(client) if other != client)


def graph_of(setting: Setting) -> Graph:
    """Return the graph of a round.

    The place of a client follows from a hash of run, round and its number, so the choice of other clients does not move
    it. Each client has exactly ``neighbours``; the graph stays connected if fewer than that many clients are removed.
    """
    address = b"fedveil graph" + setting.address()

    def rank(client: int) -> bytes:
        return hashlib.sha256(address + struct.pack("<I", client)).digest()

    ring = tuple(sorted(setting.clients, key=rank))
    return Graph(ring, {client: at for at, client in enumerate(ring)}, setting.neighbours)


# The lists that all clients must agree on before a share is revealed: who began, shared, is in the sum, was lost.


def _listed(members: Members) -> bytes:
    return struct.pack(f"<{len(members) + 1}I", len(members), *sorted(members))


def shared_digest(digest: bytes, root: bytes, began: Members, shared: Members) -> bytes:
    """Return the digest of the lists under which a client masks its values.

    ``digest``: of the setting; ``root``: of all commitments.
    """
    return hashlib.sha256(b"fedveil shared" + digest + root + _listed(began) + _listed(shared)).digest()


def lists_digest(before: bytes, alive: Members, gone: Members) -> bytes:
    """Return the digest that each client agrees to; ``before``: the ``shared_digest``."""
    return hashlib.sha256(b"fedveil lists" + before + _listed(alive) + _listed(gone)).digest()


def commitments_root(committed: Iterable[bytes]) -> bytes:
    """Return the hash of all commitments, in ascending order of the clients."""
    return hashlib.sha256(b"fedveil commitments" + b"".join(committed)).digest()


def advert_statement(digest: bytes, client: int, keys: bytes) -> bytes:
    """Return what a client signs with its two public keys."""
    return b"fedveil advert" + digest + struct.pack("<I", client) + keys


def masked_statement(before: bytes, client: int) -> bytes:
    """Return what a client signs with its masked values: whose masks are on them."""
    return b"fedveil masked" + before + struct.pack("<I", client)


def agree_statement(agreed: bytes, client: int) -> bytes:
    """Return what a client signs after it has seen the lists."""
    return b"fedveil agree" + agreed + struct.pack("<I", client)


def enough(setting: Setting, members: Members, hood: Iterable[int]) -> str:
    """Return why these members are too few, or an empty string: too few for the plan, or for one client's shares."""
    if len(members) < setting.least:
        return f"Only {len(members)} clients are left, and the plan promises {setting.least}."
    holders = sum(1 for client in hood if client in members)
    if holders < setting.threshold:
        return f"Only {holders} holders of a client's shares are left, and {setting.threshold} are needed to recover."
    return ""


def self_mask_digest(seed: bytes, digest: bytes) -> bytes:
    """Return the digest of a self-mask's seed, which is published with the shares.

    It shows whether a recovered self-mask is the right one; the seed has 256 bits, so the digest does not reveal it.
    """
    return hashlib.sha256(b"fedveil self-mask" + digest + seed).digest()


_NEXT: Final = {Kind.ROSTER: Kind.RELAY, Kind.RELAY: Kind.SURVIVORS, Kind.SURVIVORS: Kind.PROOF}
_PAIR: Final = 2 * COMMITMENT_BYTES


@final
class ClientRound:
    """One client in one round. ``open`` returns its first message, ``handle`` the answer to each of the server's.

    ``seed``: 32 secret bytes of this client for this round; ``values``: its vector, noise included; ``signer``: the
    private key of its identity, needed if the setting has identities. ``shown``: whether it has revealed its shares.
    """

    def __init__(
        self,
        setting: Setting,
        client: int,
        seed: bytes,
        values: Whole,
        *,
        signer: bytes = b"",
        largest: int = 2**63 - 1,
    ) -> None:
        require(client in setting.clients, "client", "be one of the setting's clients", client)
        require(bool(signer) == bool(setting.identities), "signer", "be given where there are identities", len(signer))
        self._values = admit(values, Bounds(length=setting.length, largest=largest))
        self._setting, self._client, self._signer = setting, client, signer
        self._digest = setting.digest()
        self._hood = graph_of(setting).hood(client)
        draw = Draw(seed, setting, client)
        self._envelope_private = X25519PrivateKey.from_private_bytes(draw.take(KEY_BYTES))
        mask_private, self._self_seed = draw.take(KEY_BYTES), draw.take(KEY_BYTES)
        self._mask_private = X25519PrivateKey.from_private_bytes(mask_private)
        self._keys = b"".join(
            key.public_key().public_bytes_raw() for key in (self._envelope_private, self._mask_private)
        )
        self._dealt = self._deal(mask_private, draw)
        self._expected: Kind | None = None
        self._began: Members = frozenset()
        self._shared: Members = frozenset()
        self._alive: Members = frozenset()
        self._gone: Members = frozenset()
        self._before = self._agreed = b""
        self._theirs: dict[int, bytes] = {}  # public keys of the neighbours
        self._secrets: dict[int, bytes] = {}  # agreed with each neighbour, to encrypt envelopes
        self._held: dict[int, Held] = {}
        self.shown = False

    def _deal(self, mask_private: bytes, draw: Draw) -> dict[int, Held]:
        """Split both secrets into shares for all neighbours, whichever of them appear.

        Everything is derived from the seed.
        """
        threshold, holders = self._setting.threshold, len(self._hood)
        needed = COEFFICIENT_BYTES * (threshold - 1)
        first = deal(self._self_seed, threshold, holders, draw.take(needed))
        second = deal(mask_private, threshold, holders, draw.take(needed))
        return {
            holder: Held(mine + draw.take(SALT_BYTES), other + draw.take(SALT_BYTES))
            for holder, mine, other in zip(self._hood, first, second, strict=True)
        }

    @property
    def _neighbours(self) -> tuple[int, ...]:
        return tuple(other for other in self._hood if other != self._client)

    def open(self) -> bytes:
        """Return the first message: two public keys, signed if there are identities."""
        if self._expected is not None or self.shown:
            raise OutOfTurn(f"Client {self._client} has opened this round already.")
        self._expected = Kind.ROSTER
        statement = advert_statement(self._digest, self._client, self._keys)
        signature = signed(self._signer, statement) if self._signer else b""
        return pack(Kind.ADVERT, self._setting, self._client, fixed=self._keys + signature)

    def handle(self, message: bytes) -> bytes:
        """Return the answer to the server's next message; after a refusal the client never answers again."""
        expected, self._expected = self._expected, None
        if self.shown:
            raise ShareSpent(f"Client {self._client} has given its shares of round {self._setting.round} already.")
        if expected is None:
            raise OutOfTurn(f"Client {self._client} has not opened this round, or has left it.")
        answers = {
            Kind.ROSTER: self._share,
            Kind.RELAY: self._mask,
            Kind.SURVIVORS: self._agree,
            Kind.PROOF: self._reveal,
        }
        packet = unpack(expected, self._setting, message, self._client, lambda lists: self._about(expected, lists))
        answer = answers[expected](packet)
        self._expected = _NEXT.get(expected)
        return answer

    def _about(self, kind: Kind, lists: tuple[Members, ...]) -> list[int]:
        if kind is Kind.PROOF:
            return list(lists[2])
        if kind is Kind.SURVIVORS:
            return list(lists[0])
        return [other for other in self._neighbours if other in lists[0]]

    def _check_members(self, members: Members, before: Members) -> None:
        if not members <= before:
            raise BadList(f"The server lists client {min(members - before)}, who was not there before.")
        if self._client not in members:
            raise BadList(f"The server's list leaves out client {self._client}, whom it asks.")
        problem = enough(self._setting, members, self._hood)
        if problem:
            raise TooFew(problem)

    def _share(self, packet: Packet) -> bytes:
        """Roster -> shares: commit to the shares of this client's secrets and seal them for its neighbours."""
        (self._began,) = packet.lists
        self._check_members(self._began, frozenset(self._setting.clients))
        self._theirs = {other: row[: 2 * KEY_BYTES] for other, row in packet.rows.items()}
        self._check_keys(packet)
        rows = {}
        for other, keys in self._theirs.items():
            self._secrets[other] = agreed(self._envelope_private, keys[:KEY_BYTES], other)
            committed = commitments(self._dealt[other], self._digest, self._client, other)
            key = envelope_key(self._secrets[other], self._setting, self._client, other)
            rows[other] = committed + seal(self._dealt[other], committed, key, self._digest, self._client, other)
        own = commitments(self._dealt[self._client], self._digest, self._client, self._client)
        fixed = self_mask_digest(self._self_seed, self._digest) + own
        return pack(Kind.SHARES, self._setting, self._client, fixed=fixed, rows=rows)

    def _check_keys(self, packet: Packet) -> None:
        each = [key for keys in (self._keys, *self._theirs.values()) for key in (keys[:KEY_BYTES], keys[KEY_BYTES:])]
        if len(set(each)) != len(each):
            raise BadKey("The server gives the same public key for two purposes or two clients.")
        for other, row in packet.rows.items():
            check_public(row[:KEY_BYTES], other)
            check_public(row[KEY_BYTES : 2 * KEY_BYTES], other)
            identity = self._setting.identity(other)
            if identity is not None:
                keys, signature = row[: 2 * KEY_BYTES], row[2 * KEY_BYTES :]
                check_signature(identity, signature, advert_statement(self._digest, other, keys), other)

    def _mask(self, packet: Packet) -> bytes:
        """Relay -> masked values: open and check all envelopes, then add the self-mask and the pair masks."""
        (self._shared,) = packet.lists
        self._check_members(self._shared, self._began)
        self._before = shared_digest(self._digest, bytes(packet.fixed), self._began, self._shared)
        masks = [(self_mask_key(self._self_seed, self._setting, self._client), False)]
        for other, row in packet.rows.items():
            key = envelope_key(self._secrets[other], self._setting, other, self._client)
            self._held[other] = unseal(row[_PAIR:], row[:_PAIR], key, self._digest, other, self._client)
            secret = agreed(self._mask_private, self._theirs[other][KEY_BYTES:], other)
            masks.append((pair_mask_key(secret, self._setting, self._client, other), other < self._client))
        statement = masked_statement(self._before, self._client)
        message = bytearray(head(Kind.MASKED, self._setting, self._client)) + bytes(8 * self._setting.length)
        message += signed(self._signer, statement) if self._signer else b""
        room = np.frombuffer(message, dtype=WORD, offset=HEAD_BYTES, count=self._setting.length)
        room[:] = self._values.view(np.uint64)
        add_masks(room, masks)
        return bytes(message)

    def _agree(self, packet: Packet) -> bytes:
        """Survivors -> the digest of all lists, signed if there are identities."""
        self._alive, self._gone = packet.lists
        both = self._alive & self._gone
        if both:
            raise AliveAndGone(f"The server says that client {min(both)} is both in the sum and lost.")
        if self._alive | self._gone != self._shared:
            raise BadList("The server's lists of survivors and lost are not together those who shared.")
        self._check_members(self._alive, self._shared)
        self._check_masked(packet)
        self._agreed = lists_digest(self._before, self._alive, self._gone)
        statement = agree_statement(self._agreed, self._client)
        signature = signed(self._signer, statement) if self._signer else b""
        return pack(Kind.AGREE, self._setting, self._client, fixed=self._agreed + signature)

    def _check_masked(self, packet: Packet) -> None:
        """Refuse unless everyone in the sum has masked with the same set of clients.

        Otherwise a server could leave out some of them.
        """
        for other, signature in packet.rows.items():
            identity = self._setting.identity(other)
            try:
                check_signature(identity or b"", signature, masked_statement(self._before, other), other)
            except BadSignature:
                raise ListsDiffer(
                    f"Client {other} has not masked its values under the lists this client knows."
                ) from None

    def _reveal(self, packet: Packet) -> bytes:
        """Proof -> shares, once: of the self-masks of clients in the sum, of the pair keys of clients lost."""
        alive, gone, agreeing = packet.lists
        if alive & gone:
            raise AliveAndGone(f"The server says that client {min(alive & gone)} is both in the sum and lost.")
        if (alive, gone) != (self._alive, self._gone):
            raise ListsDiffer("The server's lists of survivors and lost have changed since this client agreed to them.")
        if not agreeing <= alive or self._client not in agreeing:
            raise BadList("Those who agreed must be survivors, this client among them.")
        if len(agreeing) < self._setting.quorum:
            raise TooFew(f"Only {len(agreeing)} clients agree on the lists, and {self._setting.quorum} must.")
        for other, row in packet.rows.items():
            if row[:DIGEST_BYTES] != self._agreed:
                raise ListsDiffer(f"Client {other} was told other lists of participants.")
            identity = self._setting.identity(other)
            if identity is not None:
                check_signature(identity, row[DIGEST_BYTES:], agree_statement(self._agreed, other), other)
        self.shown = True
        held = self._held | {self._client: self._dealt[self._client]}
        rows = {other: each.self_mask if other in alive else each.pair_key for other, each in held.items()}
        self._forget()
        return pack(Kind.REVEAL, self._setting, self._client, rows=rows)

    def _forget(self) -> None:
        """Delete all secrets, which are not needed after the shares are revealed."""
        self._held, self._secrets, self._dealt, self._self_seed = {}, {}, {}, b""


@final
class Member:
    """A client through a run: it joins each round at most once, and never an earlier one.

    ``last``: the last round joined. Keep it where a crash does not lose it, and pass it again after one.
    """

    def __init__(self, client: int, run: bytes, *, signer: bytes = b"", last: int = -1) -> None:
        self._client, self._run, self._signer, self.last = client, run, signer, last

    def join(self, setting: Setting, seed: bytes, values: Whole, *, largest: int = 2**63 - 1) -> ClientRound:
        """Return the client's state machine for one round."""
        if setting.run != self._run:
            raise OtherRun("The setting is of another run.")
        if setting.round <= self.last:
            raise RoundReused(
                f"Client {self._client} has been in round {self.last}, and joins no round up to it again."
            )
        self.last = setting.round
        signer = self._signer if setting.identities else b""
        return ClientRound(setting, self._client, seed, values, signer=signer, largest=largest)
