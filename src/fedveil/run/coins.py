"""The coins of a run's canaries: drawn once, kept privately for the audit, bound to the run by a commitment.

The file is one line of JSON with 256 random bits of salt; its SHA-256 is in the run's charge. With the salt unknown the
digest tells nothing about the coins, and no other file has it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.run.files import write_atomically
from fedveil.strict_json import read_object

Coins = NDArray[np.bool_]
NAME = "canaries"  # in the private folder
CHARGED = "canaries"  # the commitment's name in the charge
_SALT = 32


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The coins, and what the ledger holds of them."""

    coins: Coins
    commitment: str


def settle_coins(path: Path, count: int, random: Callable[[int], bytes], *, finished: bool) -> Kept:
    """The coins of this run: those that were drawn, else new ones, on the disk when this returns."""
    if not path.exists():
        hint = "The coins of its canaries are gone, and with them the audit."
        require(not finished, "--resume", "name a run that is not finished", str(path.parent.parent), hint)
        bits = np.unpackbits(np.frombuffer(random(-(-count // 8)), dtype=np.uint8))[:count]
        content = {"coins": "".join(map(str, bits.tolist())), "format": 1, "salt": random(_SALT).hex()}
        write_atomically(path, json.dumps(content, sort_keys=True).encode() + b"\n")
    return read_coins(path, count)


def read_coins(path: Path, count: int) -> Kept:
    """The coins in a file; a refusal if it is not there or not what was written."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise BadValue(
            f"The coins of the canaries must be in {path}, and they are not: without them this run cannot be audited. "
            "Put the file back, or run again."
        ) from error
    except OSError as error:
        raise BadValue(f"The coins of the canaries, {path}, must be readable: {error}.") from error
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
