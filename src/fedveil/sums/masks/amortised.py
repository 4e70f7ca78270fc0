"""Masked sums whose keys last for a run: parties agree on secrets once, and derive the masks of every round from them.

A round takes one exchange where nobody may be missing from it: pair masks cancel in the sum of all. Where parties may
be missing it takes a second one, in which those who are in the sum open its masks; docs/theory/amortised-masks.md says
why no protocol does with less, and proves what a server and its colluders learn over all rounds. In the manner of

    [M23] Ma, Woods, Angel, Polychroniadou, Rabin. Flamingo: Multi-Round Single-Server Secure Aggregation with
          Applications to Private Federated Learning. IEEE S&P 2023.

For one round and one owner a party gives away its share of the owner's self-mask, or the key of its pair mask with the
owner, and never both. Messages in, messages out: no sockets, clock, disk or randomness here, and the same round gives
the same bytes, so a party that was restarted repeats what it said.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedveil.core.errors import require
from fedveil.sums.masks.keys import (
    COEFFICIENT_BYTES,
    COMMITMENT_BYTES,
    KEY_BYTES,
    OPENING_BYTES,
    SALT_BYTES,
    SHARE_BYTES,
    TAG_BYTES,
    Ring,
    add_masks,
    agreed,
    deal,
    recover,
)
from fedveil.sums.masks.setting import (
    MOST_LENGTH,
    RUN_BYTES,
    AliveAndGone,
    BadEnvelope,
    BadKey,
    BadList,
    BadMessage,
    BadShare,
    Bounds,
    TooFew,
    admit,
)
from fedveil.sums.seam import Whole

DIGEST_BYTES: Final = 32
SEALED_BYTES: Final = COMMITMENT_BYTES + OPENING_BYTES + TAG_BYTES

Parties = frozenset[str]


@dataclass(frozen=True)
class RoundSetting:
    """Everything public about one round, the same for everybody; it is part of every key that the round uses.

    ``weights``: how many clients each party has in the round; ``least``: how many clients must be in its sum.
    ``colluders``: clients that may side with the server; a party that does sides with all of its clients. ``signed``:
    parties know each other's keys, so the server may do anything.
    """

    run: bytes
    round: int
    parties: tuple[str, ...]
    weights: tuple[int, ...]
    least: int
    length: int
    colluders: int = 0
    signed: bool = False

    def __post_init__(self) -> None:
        right = isinstance(self.run, bytes) and len(self.run) == RUN_BYTES
        require(right, "RoundSetting.run", f"be {RUN_BYTES} bytes", type(self.run).__name__)
        require(0 <= self.round < 2**63, "RoundSetting.round", "be a whole number, 0 or more", self.round)
        ascending = list(self.parties) == sorted(set(self.parties)) and bool(self.parties)
        require(ascending, "RoundSetting.parties", "be names in ascending order, each once", self.parties)
        counted = len(self.weights) == len(self.parties) and all(weight >= 1 for weight in self.weights)
        require(counted, "RoundSetting.weights", "be at least one client for each party", self.weights)
        clients = sum(self.weights)
        require(1 <= self.least <= clients, "RoundSetting.least", f"lie between 1 and {clients}", self.least)
        require(1 <= self.length <= MOST_LENGTH, "RoundSetting.length", f"lie between 1 and {MOST_LENGTH}", self.length)
        if self.tolerated:
            self._check_recovery()

    def _check_recovery(self) -> None:
        """Refuse a round whose dropouts could not be recovered, or that colluders could open by themselves."""
        floor = max(2, self.colluding + 1, self.quorum if self.agrees else 0)
        rule = f"leave at least {floor} of {len(self.parties)} sites if as many are missing as may be"
        hint = "Tolerate fewer dropouts or colluders; a site is missing with all of its clients."
        require(self.threshold >= floor, "trust.dropouts", rule, self.threshold, hint)

    @cached_property
    def tolerated(self) -> int:
        """How many parties may be missing at most."""
        return _most_within(self.weights, sum(self.weights) - self.least)

    @cached_property
    def colluding(self) -> int:
        """How many parties may side with the server at most."""
        return _most_within(self.weights, self.colluders)

    @property
    def threshold(self) -> int:
        """How many shares recover a self-mask: those of the fewest parties that may be left."""
        return len(self.parties) - self.tolerated

    @property
    def agrees(self) -> bool:
        """Whether parties must sign who is in the sum before they open it.

        If one may be missing and more than four are honest, each may open the sum alone: whatever lists a server tells
        them, one sum is learned at most, and it lacks no more than planned.
        """
        alone = self.tolerated == 1 and len(self.parties) - self.colluding > 4
        return self.signed and self.tolerated > 0 and not alone

    @property
    def quorum(self) -> int:
        """How many parties must sign the same list; two lists cannot both have so many, as only colluders sign both."""
        return (len(self.parties) + self.colluding) // 2 + 1

    @cached_property
    def digest(self) -> bytes:
        """A hash of the whole setting; fields of fixed length come first, so no two settings give the same bytes."""
        numbers = (self.round, self.least, self.length, self.colluders, int(self.signed), len(self.parties))
        names = [name.encode("utf-8") for name in self.parties]
        words = struct.pack("<6Q", *numbers) + struct.pack(f"<{len(self.weights)}Q", *self.weights)
        words += b"".join(struct.pack("<Q", len(name)) + name for name in names)
        return hashlib.sha256(b"fedveil amortised round" + self.run + words).digest()

    def weight(self, parties: Iterable[str]) -> int:
        """Return how many clients these parties have in the round."""
        return sum(self.weights[self.parties.index(party)] for party in parties)

    def check_alive(self, alive: Parties) -> Parties:
        """Return who is missing; refuse a list that is not of this round, or leaves too few in the sum."""
        if not alive <= set(self.parties):
            raise BadList("The server lists a site that has no part in this round.")
        if self.weight(alive) < self.least or len(alive) < self.threshold:
            raise TooFew(f"Only {self.weight(alive)} clients are left, and the plan promises {self.least}.")
        return frozenset(self.parties) - alive

    def statement(self, alive: Parties) -> bytes:
        """Return what a party signs: that these parties, and no others, are in the sum of this round."""
        names = b"".join(struct.pack("<Q", len(name)) + name.encode() for name in sorted(alive))
        return b"fedveil survivors" + self.digest + struct.pack("<Q", len(alive)) + names


def _most_within(weights: Iterable[int], most: int) -> int:
    """Return the largest number of parties whose clients together are at most ``most``."""
    total = count = 0
    for weight in sorted(weights):
        total += weight
        if total > most:
            break
        count += 1
    return count


@final
@dataclass(frozen=True, slots=True, eq=False)
class MaskedPart:
    """What a party sends: its masked values; where parties may be missing also the shares of its self-mask.

    ``check``: a hash of the self-mask's key; ``sealed``: for each other party a commitment to its share and the share,
    which it alone can read; ``own``: the commitment to the party's own share.
    """

    values: Whole
    check: bytes = b""
    own: bytes = b""
    sealed: Mapping[str, bytes] | None = None

    def check_form(self, setting: RoundSetting, party: str) -> None:
        """Refuse a part of another form than the round's."""
        right = self.values.dtype == np.int64 and self.values.shape == (setting.length,)
        if setting.tolerated:
            others = {other for other in setting.parties if other != party}
            sealed = self.sealed or {}
            right = right and len(self.check) == DIGEST_BYTES and len(self.own) == COMMITMENT_BYTES
            right = right and set(sealed) == others and all(len(one) == SEALED_BYTES for one in sealed.values())
        if not right:
            raise BadMessage(f"The masked values of {party} have another form than the round's.")


def public_of(private: bytes) -> bytes:
    """Return the public key that a party enrols for a run."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@final
class RunKeys:
    """The secrets of one party for a run, and the public keys of all; ``private``: 32 secret random bytes."""

    def __init__(self, run: bytes, party: str, private: bytes, publics: Mapping[str, bytes]) -> None:
        right = isinstance(private, bytes) and len(private) == KEY_BYTES
        require(right, "private", f"be {KEY_BYTES} bytes", type(private).__name__)  # the message must not show the key
        self.party = party
        self._run, self._private = run, X25519PrivateKey.from_private_bytes(private)
        self._own = _derived(private, b"own", run, party)
        if publics.get(party) != self.public:
            raise BadKey(f"The public key that is said to be of {party} is not.")
        if len(set(publics.values())) != len(publics):
            raise BadKey("Two sites have the same public key.")
        self._publics = publics
        self._roots: dict[str, bytes] = {}

    @property
    def public(self) -> bytes:
        """The public key."""
        return self._private.public_key().public_bytes_raw()

    def mask(self, setting: RoundSetting, values: Whole) -> MaskedPart:
        """Return the party's values behind its masks of the round."""
        room = admit(values, Bounds(length=setting.length)).view(np.uint64).copy()
        others = [other for other in setting.parties if other != self.party]
        masks = [(self._pair(setting, other), other < self.party) for other in others]
        if not setting.tolerated:
            add_masks(room, masks)
            return MaskedPart(room.view(np.int64))
        key = _derived(self._own, b"self mask", setting.digest)
        add_masks(room, [(key, False), *masks])
        openings = self._openings(setting, key)
        sealed = {other: self._seal(setting, other, openings[other]) for other in others}
        own = commitment(setting, self.party, self.party, openings[self.party])
        return MaskedPart(room.view(np.int64), mask_check(setting, self.party, key), own, sealed)

    def reveal(self, setting: RoundSetting, alive: Parties, sealed: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return what opens the sum over ``alive``: for each of them a share of its self-mask, for each who is missing
        the key of this party's pair mask with it, of this round alone.

        ``sealed``: what those in the sum have sealed for this party. Whoever calls this must never do so for another
        list of the same round.
        """
        missing = setting.check_alive(alive)
        if self.party in missing:
            raise AliveAndGone(f"The server's list leaves out {self.party}, whom it asks.")
        if set(sealed) != alive - {self.party}:
            raise BadList("The server must bring the shares of all others in the sum, and of nobody else.")
        key = _derived(self._own, b"self mask", setting.digest)
        shares = {owner: self._unseal(setting, owner, one) for owner, one in sealed.items()}
        shares[self.party] = self._openings(setting, key)[self.party]
        return shares | {other: self._pair(setting, other) for other in missing}

    def _root(self, other: str) -> bytes:
        """Return the secret that this party and another share for the run."""
        if other not in self._roots:
            if other not in self._publics:
                raise BadKey(f"There is no public key of {other}.")
            shared = agreed(self._private, self._publics[other], 0)
            self._roots[other] = _derived(shared, b"pair", self._run, *sorted((self.party, other)))
        return self._roots[other]

    def _pair(self, setting: RoundSetting, other: str) -> bytes:
        return _derived(self._root(other), b"pair mask", setting.digest)

    def _openings(self, setting: RoundSetting, key: bytes) -> dict[str, bytes]:
        """Split the key of the self-mask into shares, one for each party, each with a salt of its own."""
        count = COEFFICIENT_BYTES * (setting.threshold - 1)
        stream = Cipher(
            algorithms.AES(_derived(self._own, b"shares", setting.digest)), modes.CTR(bytes(16))
        ).encryptor()
        random = stream.update(bytes(count + SALT_BYTES * len(setting.parties)))
        shares = deal(key, setting.threshold, len(setting.parties), random[:count])
        salts = (random[at : at + SALT_BYTES] for at in range(count, len(random), SALT_BYTES))
        return {party: share + salt for party, share, salt in zip(setting.parties, shares, salts, strict=True)}

    def _seal(self, setting: RoundSetting, holder: str, opening: bytes) -> bytes:
        known = commitment(setting, self.party, holder, opening)
        key = _derived(self._root(holder), b"share", setting.digest, self.party, holder)
        # The key is used for one message, so the nonce may be constant.
        return known + ChaCha20Poly1305(key).encrypt(bytes(12), opening, setting.digest + known)

    def _unseal(self, setting: RoundSetting, owner: str, sealed: bytes) -> bytes:
        known, body = sealed[:COMMITMENT_BYTES], sealed[COMMITMENT_BYTES:]
        key = _derived(self._root(owner), b"share", setting.digest, owner, self.party)
        try:
            opening = ChaCha20Poly1305(key).decrypt(bytes(12), body, setting.digest + known)
        except InvalidTag:
            raise BadEnvelope(f"The share from {owner} is not of this round, or was changed on the way.") from None
        if commitment(setting, owner, self.party, opening) != known:
            raise BadEnvelope(f"The share from {owner} is not the one it committed to.")
        return opening


def open_sum(
    setting: RoundSetting, parts: Mapping[str, MaskedPart], reveals: Mapping[str, Mapping[str, bytes]]
) -> Whole:
    """Return the sum of the parties whose parts are given, without masks.

    ``reveals``: what each party gave in the second exchange; none where nobody may be missing.
    """
    alive = frozenset(parts)
    missing = setting.check_alive(alive)
    total: Ring = np.zeros(setting.length, dtype=np.uint64)
    for party in sorted(alive):
        total += parts[party].values.view(np.uint64)
    if not setting.tolerated:
        return total.view(np.int64)
    masks = [(_self_mask(setting, parts, reveals, owner), True) for owner in sorted(alive)]
    for gone in sorted(missing):
        for party in sorted(alive):
            key = reveals.get(party, {}).get(gone, b"")
            if len(key) != KEY_BYTES:
                raise TooFew(f"{party} is in the sum, and without it the masks of {gone} cannot be taken off.")
            masks.append((key, gone > party))  # ``party`` has added this mask if its name comes first
    add_masks(total, masks)
    return total.view(np.int64)


def check_reveal(
    setting: RoundSetting, parts: Mapping[str, MaskedPart], holder: str, given: Mapping[str, bytes]
) -> None:
    """Refuse what a party gave in the second exchange unless it fits what the owners committed to."""
    if set(given) != set(setting.parties):
        raise BadMessage(f"{holder} must open one secret for each site of the round.")
    for owner, opening in given.items():
        if owner not in parts:
            if len(opening) != KEY_BYTES:
                raise BadShare(f"{holder} gave no key of its mask with {owner}.")
        elif commitment(setting, owner, holder, opening) != _committed(parts[owner], owner, holder):
            raise BadShare(f"{holder} gave a share of {owner} that does not fit its commitment.")


def _committed(part: MaskedPart, owner: str, holder: str) -> bytes:
    return part.own if owner == holder else (part.sealed or {})[holder][:COMMITMENT_BYTES]


def _self_mask(
    setting: RoundSetting,
    parts: Mapping[str, MaskedPart],
    reveals: Mapping[str, Mapping[str, bytes]],
    owner: str,
) -> bytes:
    """Return the key of a self-mask from its shares."""
    numbered = {
        place: reveals[holder][owner][:SHARE_BYTES]
        for place, holder in enumerate(setting.parties, 1)
        if holder in reveals
    }
    if len(numbered) < setting.threshold:
        raise TooFew(f"Only {len(numbered)} shares of {owner} came back, and {setting.threshold} are needed.")
    key = recover(dict(list(numbered.items())[: setting.threshold]))
    if key is None or mask_check(setting, owner, key) != parts[owner].check:
        raise BadShare(f"{owner} dealt shares that are not of its self-mask.")
    return key


def commitment(setting: RoundSetting, owner: str, holder: str, opening: bytes) -> bytes:
    """Return a hash that binds a share to the round, its owner and its holder; the salt keeps the share secret."""
    names = b"".join(struct.pack("<Q", len(name)) + name.encode() for name in (owner, holder))
    return hashlib.sha256(b"fedveil amortised share" + setting.digest + names + opening).digest()


def mask_check(setting: RoundSetting, owner: str, key: bytes) -> bytes:
    """Return a hash that shows whether a recovered self-mask is the right one; the key has 256 bits."""
    return hashlib.sha256(b"fedveil amortised self-mask" + setting.digest + owner.encode() + key).digest()


def _derived(secret: bytes, label: bytes, context: bytes, *names: str) -> bytes:
    """Return a key for one purpose (HKDF-SHA256): purpose, context and names are part of its info."""
    info = b"fedveil amortised " + label + b":" + context
    info += b"".join(struct.pack("<Q", len(name)) + name.encode() for name in names)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)
