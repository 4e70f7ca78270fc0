"""Identity keys of clients across sites: each site signs the keys of its own clients, and every site checks all.

A client's key is derived from its site's key, for one run. Sites know each other's public keys from the deployment, so
the aggregator, which carries the lists, can neither add a client nor replace a client's key by its own.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from fedveil.wire.keys import Card, Identity

_SIGNED: Final = b"fedveil enrolment 1\n"  # an envelope begins differently, so neither can be mistaken for the other
_KEY: Final = 32
_SIGNATURE: Final = 64


def signer_of(identity: Identity, run: str, client: int) -> bytes:
    """Return the private key of a client in a run."""
    told = f"{run} {client}".encode("ascii")
    return hashlib.blake2b(told, key=identity.sign, person=b"fedveil enrolled", digest_size=_KEY).digest()


def enrolment(identity: Identity, run: str, clients: Iterable[int]) -> bytes:
    """Return the public keys of a site's clients, signed by the site."""
    numbers = sorted(clients)
    keys = [Ed25519PrivateKey.from_private_bytes(signer_of(identity, run, client)) for client in numbers]
    body = Content(
        values={"site": identity.name, "run": run},
        rows={"clients": np.array(numbers, dtype=np.int64)},
        blocks={"keys": b"".join(key.public_key().public_bytes_raw() for key in keys)},
    ).write()
    return identity.signer.sign(_SIGNED + body) + body


def enrolled(signed: bytes, card: Card, run: str) -> dict[int, bytes]:
    """Return the keys of one site's clients, after checking that the site has signed them for this run."""
    signature, body = signed[:_SIGNATURE], signed[_SIGNATURE:]
    try:
        card.verifier.verify(signature, _SIGNED + body)
    except InvalidSignature as error:
        raise Refused("bad-signature") from error
    said = Content.read(body)
    numbers, keys = said.rows.get("clients"), said.blocks.get("keys", b"")
    if said.values != {"site": card.name, "run": run}:
        raise Refused("other-roster")
    if numbers is None or numbers.dtype != np.int64 or len(keys) != _KEY * numbers.size:
        raise Refused("malformed")
    return {int(client): keys[_KEY * at : _KEY * (at + 1)] for at, client in enumerate(numbers)}


def roster_of(signed: Mapping[str, bytes], cards: Mapping[str, Card], run: str, clients: int) -> dict[int, bytes]:
    """Return the key of every client of the study; refuse unless each client is enrolled by exactly one site."""
    if set(signed) != set(cards):
        raise Refused("unknown-peers")
    found: dict[int, bytes] = {}
    counted = 0
    for site in sorted(signed):
        mine = enrolled(signed[site], cards[site], run)
        counted += len(mine)
        found |= mine
    if counted != clients or set(found) != set(range(clients)):
        raise Refused("other-roster")
    return found
