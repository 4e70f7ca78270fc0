"""Consent to open an encrypted sum, if all sites hold the key: most sites must agree which sum of a round is opened.

A site consents to one sum of a round, ever. Any two majorities share a site, so no two sums of a round can be opened,
whichever sites the aggregator asks. A round needs no particular site, only most of them.
"""

from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidSignature

from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from fedveil.wire.keys import Card, Identity

_SIGNED: Final = b"fedveil consent 1\n"  # no other signed text begins with this


def majority(sites: int) -> int:
    """Return the smallest number that is more than half of the sites.

    >>> [majority(sites) for sites in (1, 2, 3, 4)]
    [1, 2, 2, 3]
    """
    return sites // 2 + 1


def consent(identity: Identity, run: str, turn: int, digest: str) -> bytes:
    """Return a site's signed consent that this sum of a round may be opened.

    The caller must make sure that it is given for one sum only.
    """
    return identity.signer.sign(_told(identity.name, run, turn, digest))


def check_consents(
    given: Mapping[str, bytes], mine: str, peers: Mapping[str, Card], run: str, turn: int, digest: str
) -> None:
    """Refuse unless most sites, including the one that checks, have consented to this sum."""
    count = 1
    for site, signature in given.items():
        if site == mine:
            continue
        if site not in peers:
            raise Refused("unknown-peers")
        try:
            peers[site].verifier.verify(signature, _told(site, run, turn, digest))
        except InvalidSignature as error:
            raise Refused("no-consent") from error
        count += 1
    if not count >= majority(1 + len(peers)):
        raise Refused("no-consent")


def _told(site: str, run: str, turn: int, digest: str) -> bytes:
    return _SIGNED + Content(values={"site": site, "run": run, "round": turn, "sum": digest}).write()
