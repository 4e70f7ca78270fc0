"""What everybody must agree on before a share is shown: who began, who shared, who is in the sum and who was lost."""

import hashlib
import struct
from collections.abc import Iterable

from fedveil.secure.messages import Members
from fedveil.secure.setting import Setting


def _listed(members: Members) -> bytes:
    return struct.pack(f"<{len(members) + 1}I", len(members), *sorted(members))


def lists_digest(digest: bytes, root: bytes, began: Members, shared: Members, alive: Members, gone: Members) -> bytes:
    """The hash that each client signs; ``digest``: of the setting; ``root``: of all commitments."""
    lists = b"".join(_listed(members) for members in (began, shared, alive, gone))
    return hashlib.sha256(b"fedveil lists" + digest + root + lists).digest()


def commitments_root(committed: Iterable[bytes]) -> bytes:
    """The hash of all commitments, client after client in ascending order."""
    return hashlib.sha256(b"fedveil commitments" + b"".join(committed)).digest()


def advert_statement(digest: bytes, client: int, keys: bytes) -> bytes:
    """What a client signs with its two public keys."""
    return b"fedveil advert" + digest + struct.pack("<I", client) + keys


def agree_statement(agreed: bytes, client: int) -> bytes:
    """What a client signs when it has seen the lists."""
    return b"fedveil agree" + agreed + struct.pack("<I", client)


def enough(setting: Setting, members: Members, hood: Iterable[int]) -> str:
    """Why these members are too few, or nothing: the floor of the plan, and the holders of one client's shares."""
    if len(members) < setting.least:
        return f"Only {len(members)} clients are left, and the plan promises {setting.least}."
    holders = sum(1 for client in hood if client in members)
    if holders < setting.threshold:
        return f"Only {holders} holders of a client's shares are left, and {setting.threshold} are needed to recover."
    return ""


def self_mask_digest(seed: bytes, digest: bytes) -> bytes:
    """Published with the shares: tells whether a recovered self-mask is the one that was dealt. 256 bits hide it."""
    return hashlib.sha256(b"fedveil self-mask" + digest + seed).digest()
