"""The public key of a key holder, signed by it for one run and one plan.

It is not secret, so it is not sealed. Sites know the holder's public keys from the deployment: the aggregator, which
carries the key, can neither replace it by its own nor show the holder one plan and the sites another.
"""

from typing import Final

from cryptography.exceptions import InvalidSignature

from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from fedveil.wire.keys import Card, Identity

_SIGNED: Final = b"fedveil key of sums 1\n"  # no other signed text begins with this
_SIGNATURE: Final = 64


def vouched(identity: Identity, run: str, plan: str, public: bytes) -> bytes:
    """Return the signed public key; ``plan``: the hash of the plan that the holder has agreed to."""
    values = {"holder": identity.name, "run": run, "plan": plan}
    body = Content(values=values, blocks={"public": public}).write()
    return identity.signer.sign(_SIGNED + body) + body


def public_of(signed: bytes, holder: Card, run: str, plan: str) -> bytes:
    """Return the public key, after checking that this holder has signed it for this run of this plan."""
    signature, body = signed[:_SIGNATURE], signed[_SIGNATURE:]
    try:
        holder.verifier.verify(signature, _SIGNED + body)
    except InvalidSignature as error:
        raise Refused("not-the-holders") from error
    said = Content.read(body)
    if said.values != {"holder": holder.name, "run": run, "plan": plan}:
        raise Refused("other-key")
    if set(said.blocks) != {"public"}:
        raise Refused("malformed")
    return said.blocks["public"]
