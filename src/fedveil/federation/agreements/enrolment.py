"""The keys of masked sums: each site signs which clients it has and its public key for the run; every site gets all.

Where the plan has identities, sites check the lists by the public keys that they know from the deployment. The
aggregator, which carries the lists, can then neither add a client nor replace a site's key by its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidSignature

from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from fedveil.wire.keys import Card, Identity

_SIGNED: Final = b"fedveil enrolment 2\n"  # an envelope begins differently, so neither can be mistaken for the other
_KEY: Final = 32
_SIGNATURE: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """The clients of each site, and its public key for the masks of one run."""

    clients: Mapping[str, tuple[int, ...]]
    keys: Mapping[str, bytes]


def enrolment(identity: Identity, run: str, clients: Iterable[int], public: bytes) -> bytes:
    """Return the clients of a site and its public key for the masks of a run, signed by the site."""
    body = Content(
        values={"site": identity.name, "run": run},
        rows={"clients": np.array(sorted(clients), dtype=np.int64)},
        blocks={"key": public},
    ).write()
    return identity.signer.sign(_SIGNED + body) + body


def enrolled(signed: bytes, site: str, card: Card | None, run: str) -> tuple[tuple[int, ...], bytes]:
    """Return the clients and the key of one site, after checking that it has signed them for this run.

    ``card``: None where sites do not know each other, and the aggregator is believed.
    """
    signature, body = signed[:_SIGNATURE], signed[_SIGNATURE:]
    try:
        if card is not None:
            card.verifier.verify(signature, _SIGNED + body)
    except InvalidSignature as error:
        raise Refused("bad-signature") from error
    content = Content.read(body)
    numbers, key = content.rows.get("clients"), content.blocks.get("key", b"")
    if content.values != {"site": site, "run": run}:
        raise Refused("other-roster")
    if numbers is None or numbers.dtype != np.int64 or numbers.size == 0 or len(key) != _KEY:
        raise Refused("malformed")
    return tuple(numbers.tolist()), key


def roster_of(signed: Mapping[str, bytes], cards: Mapping[str, Card] | None, run: str, clients: int) -> Roster:
    """Return the roster of a run; refuse unless each client of the study is enrolled by exactly one site.

    ``cards``: of all sites; None where they do not know each other.
    """
    if cards is not None and set(signed) != set(cards):
        raise Refused("unknown-peers")
    each = {site: enrolled(signed[site], site, None if cards is None else cards[site], run) for site in sorted(signed)}
    numbers = [client for mine, _ in each.values() for client in mine]
    if sorted(numbers) != list(range(clients)) or len({key for _, key in each.values()}) != len(each):
        raise Refused("other-roster")
    return Roster({site: mine for site, (mine, _) in each.items()}, {site: key for site, (_, key) in each.items()})
