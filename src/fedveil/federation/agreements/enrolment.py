"""Identity keys of clients across sites: each site signs for its own, and every site checks all of them by itself.

A client's key follows from its site's own, for one run. Sites know each other's public keys from the deployment, so
the aggregator, who carries the lists, can neither add a client nor put its own key in one's place.
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

_SIGNED: Final = b"fedveil enrolment 1\n"  # an envelope begins otherwise: neither can be taken for the other
_KEY: Final = 32
_SIGNATURE: Final = 64


def signer_of(identity: Identity, run: str, client: int) -> bytes:
    """A client's private key in a run."""
    told = f"{run} {client}".encode("ascii")
    return hashlib.blake2b(told, key=identity.sign, person=b"fedveil enrolled", digest_size=_KEY).digest()


def enrolment(identity: Identity, run: str, clients: Iterable[int]) -> bytes:
    """A site's clients and their public keys, signed by the site."""
    numbers = sorted(clients)
    keys = [Ed25519PrivateKey.from_private_bytes(signer_of(identity, run, client)) for client in numbers]
    body = Content(
        values={"site": identity.name, "run": run},
        rows={"clients": np.array(numbers, dtype=np.int64)},
        blocks={"keys": b"".join(key.public_key().public_bytes_raw() for key in keys)},
    ).write()
    return identity.signer.sign(_SIGNED + body) + body


def enrolled(signed: bytes, card: Card, run: str) -> dict[int, bytes]:
    """The keys of one site's clients, if the site has signed them for this run."""
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
    """The key of every client of the study: each of one site, every site heard, nobody else."""
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
