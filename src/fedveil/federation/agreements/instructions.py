"""What a guard and a key holder have in common: a signed instruction in, a sealed answer out, one agreed plan.

The number of an instruction is on the disk before it is looked at, so nothing is answered twice.
"""

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from fedveil.federation.agreements.carried import Carried
from fedveil.federation.agreements.terms import plan_of
from fedveil.federation.site.state import SiteState, load_state, save_state
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Opened, Refused, seal
from fedveil.wire.keys import Card, Identity

ANY: Final = "any"  # the operator accepts any plan
Respond = Callable[[SiteState], tuple[str, Content]]


def answered(opened: Opened, state: Path, me: Identity, aggregator: Card, once: bytes, respond: Respond) -> bytes:
    """Return the sealed answer to a new instruction.

    Raise :class:`Refused`, and send nothing, if the instruction is not new.
    """
    asked, found = opened.head, load_state(state).numbered(opened.head.number)
    save_state(state, found)
    try:
        kind, content = respond(found)
    except Refused as refusal:
        kind, content = "refused", Content(values={"code": refusal.code})
    head = Head(
        run=asked.run,
        sender=me.name,
        receiver=asked.sender,
        kind=kind,
        round=asked.round,
        number=asked.number,
        answers=opened.digest,
    )
    return seal(head, content.write(), me, aggregator, once)


def agreed_to(path: Path, state: SiteState, modules: Collection[str]) -> tuple[Carried, Content]:
    """Return the proposal that was agreed to; refuse any other."""
    body = path.read_bytes()
    if hashlib.sha256(body).hexdigest() != state.proposal:
        raise Refused("other-plan")
    proposal = Content.read(body)
    plan = plan_of(proposal, modules)
    if plan.hash != state.plan:
        raise Refused("other-plan")
    return plan, proposal
