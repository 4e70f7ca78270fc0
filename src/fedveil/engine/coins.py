"""The coins that decide which canaries are in: drawn once, kept privately for the audit, bound to the run by a hash.

The file is one line of JSON with 256 random bits of salt; its SHA-256 is in the run's charge. Without the salt the
hash reveals nothing about the coins, and no other file has the same hash.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import BadValue, require, why
from fedveil.core.strict_json import read_object
from fedveil.engine.files import write_atomically

Coins = NDArray[np.bool_]
NAME = "canaries"  # in the private folder
CHARGED = "canaries"  # name of the commitment in the charge
_SALT = 32


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The coins, and the commitment to them that the ledger holds."""

    coins: Coins
    commitment: str


def settle_coins(path: Path, count: int, random: Callable[[int], bytes], *, finished: bool) -> Kept:
    """Return the coins of this run: existing ones, or new ones that are on the disk when this returns."""
    if not path.exists():
        hint = "The coins of its canaries are gone, and with them the audit."
        require(not finished, "--resume", "name a run that is not finished", str(path.parent.parent), hint)
        bits = np.unpackbits(np.frombuffer(random(-(-count // 8)), dtype=np.uint8))[:count]
        content = {"coins": "".join(map(str, bits.tolist())), "format": 1, "salt": random(_SALT).hex()}
        write_atomically(path, json.dumps(content, sort_keys=True).encode() + b"\n")
    return read_coins(path, count)


def read_coins(path: Path, count: int) -> Kept:
    """Read the coins from a file; refuse if it is missing or was altered."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise BadValue(
            f"The coins of the canaries must be in {path}, and they are not: without them this run cannot be audited. "
            "Put the file back, or run again."
        ) from error
    except OSError as error:
        raise BadValue(f"The coins of the canaries, {path}, must be readable: {why(error)}.") from error
    try:
        text = read_object(data, path.name)["coins"]
        right = isinstance(text, str) and len(text) == count and set(text) <= {"0", "1"}
    except (ValueError, KeyError):
        right = False
    require(right, str(path), f"hold the coins of {count} canaries", "something else", "It was changed; put it back.")
    return Kept(np.array([sign == "1" for sign in text]), sha256(data).hexdigest())


def check_commitment(kept: Kept, charged: object) -> None:
    """Refuse coins other than those that were charged with the run."""
    hint = "The file was changed after the run began; put the right one back."
    require(
        kept.commitment == charged, "The coins of the canaries", f"have the digest {charged}", kept.commitment, hint
    )
