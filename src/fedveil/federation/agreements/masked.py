"""What site and aggregator each compute for a masked round, from the plan and the roster, without believing each other.

A site adds up its own clients and masks the total: it knows all of them anyway, and counts as all of them where it is
missing or colludes. Without identities of the sites the masks protect against a server that follows the protocol but is
curious, not against one that poses as sites (docs/secure.md).
"""

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from fedveil.federation.agreements.carried import Carried
from fedveil.federation.agreements.enrolment import Roster
from fedveil.federation.agreements.turns import length_of, server_of, span_of, spans
from fedveil.sums.masks.amortised import MaskedPart, RoundSetting
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

MASK, AGREE, REVEAL = "mask", "agree", "reveal"
MASK_KEY = "masks.key"  # in a site's private folder during the run: the secret from which all its masks follow


def is_masked(plan: Carried) -> bool:
    """Return whether some stage of the plan is added up behind masks."""
    return any(server_of(plan, span.first) == "secure-aggregation" for span in spans(plan))


def run_bytes(plan: Carried, run: str) -> bytes:
    """Return the public bytes that name a run of a plan in every key of its masks."""
    return sha256(f"fedveil masked run {plan.hash} {run}".encode()).digest()


def setting_of(plan: Carried, run: str, turn: int, clients: Collection[int], roster: Roster) -> RoundSetting:
    """Return the setting of a round of these clients."""
    members = {site: len(set(mine) & set(clients)) for site, mine in roster.clients.items()}
    parties = tuple(sorted(site for site, count in members.items() if count))
    return RoundSetting(
        run=run_bytes(plan, run),
        round=turn,
        parties=parties,
        weights=tuple(members[site] for site in parties),
        least=max(1, plan.trust.least(len(clients))),
        length=length_of(plan, turn),
        colluders=plan.trust.colluders,
        signed=plan.trust.identities is not None,
    )


def cohort_in(plan: Carried, turn: int, asked: Content, roster: Roster) -> frozenset[int]:
    """Return the clients that a question names for a round; refuse any others than the plan may have in it."""
    row: Any = asked.rows.get("cohort")
    clients = frozenset(row.tolist()) if row is not None and row.dtype == np.int64 else frozenset()
    span = span_of(plan, turn)
    known = {client for mine in roster.clients.values() for client in mine}
    if row is None or row.size != len(clients) or len(clients) != span.stage.cohort(turn - span.first):
        raise Refused("other-cohort")
    if not clients <= known:
        raise Refused("other-cohort")
    return clients


def part_content(part: MaskedPart) -> Content:
    """Return a masked part in the form in which it travels."""
    blocks = {f"for {holder}": sealed for holder, sealed in (part.sealed or {}).items()}
    blocks |= {"check": part.check, "own": part.own} if part.check else {}
    return Content(rows={"masked": part.values}, blocks=blocks)


def part_in(content: Content) -> MaskedPart:
    """Return the masked part in an answer; its form is not checked yet."""
    values = content.rows.get("masked")
    if values is None or values.dtype != np.int64:
        raise Refused("malformed")
    blocks = dict(content.blocks)
    check, own = blocks.pop("check", b""), blocks.pop("own", b"")
    return MaskedPart(values.astype(np.int64), check, own, _named(blocks, "for "))


def reveal_question(asked: Mapping[str, Any], row: Any, blocks: Mapping[str, bytes]) -> Content:
    """Return a question of the second exchange."""
    return Content(values=dict(asked), rows={"cohort": row}, blocks=dict(blocks))


def named_blocks(content: Content, prefix: str) -> dict[str, bytes]:
    """Return the blocks whose names begin with a word, by the rest of their names."""
    return _named(content.blocks, prefix, strict=False)


def _named(blocks: Mapping[str, bytes], prefix: str, strict: bool = True) -> dict[str, bytes]:
    if strict and not all(name.startswith(prefix) for name in blocks):
        raise Refused("malformed")
    return {name.removeprefix(prefix): data for name, data in blocks.items() if name.startswith(prefix)}
