"""Remove the masks from a sum: recover secrets from shares, check each against its owner's word, then the streams."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedveil.sums.masks.keys import agreed, pair_mask_key, self_mask_key
from fedveil.sums.masks.lists import self_mask_digest
from fedveil.sums.masks.messages import Members
from fedveil.sums.masks.refusals import BadShare, TooFew
from fedveil.sums.masks.setting import Setting
from fedveil.sums.masks.shamir import SHARE_BYTES, recover
from fedveil.sums.masks.streams import Ring, add_masks


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
