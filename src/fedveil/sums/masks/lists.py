"""The lists that all clients must agree on before a share is revealed: who began, shared, is in the sum, was lost."""

import hashlib
import struct
from collections.abc import Iterable

from fedveil.sums.masks.messages import Members
from fedveil.sums.masks.setting import Setting


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
