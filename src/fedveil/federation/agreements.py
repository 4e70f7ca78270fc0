"""What an aggregator and its sites agree on, and check of each other: terms, turns, keys and consents."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidSignature

from fedveil.core.importing import Allowed
from fedveil.core.tables import read_tables
from fedveil.data.records import DataShape
from fedveil.engine.sums import Floors
from fedveil.federation.site.state import SiteState, load_state, save_state
from fedveil.models.spec import code_named
from fedveil.planning.plan import AnyPlan, read_any_plan
from fedveil.stages.stage import Stage
from fedveil.sums.homomorphic.messages import Parameters, parameters_for
from fedveil.sums.masks.amortised import MaskedPart, RoundSetting
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Opened, Refused, seal
from fedveil.wire.keys import Card, Identity

# The plans that sites carry out together: of training, or of any stage of noisy sums.

Carried = AnyPlan


# Consent to open an encrypted sum, if all sites hold the key: most sites must agree which sum of a round is opened.
#
# A site consents to one sum of a round, ever. Any two majorities share a site, so no two sums of a round can be opened,
# whichever sites the aggregator asks. A round needs no particular site, only most of them.

_SIGNED_CONSENT: Final = b"fedveil consent 1\n"  # no other signed text begins with this


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
    return _SIGNED_CONSENT + Content(values={"site": site, "run": run, "round": turn, "sum": digest}).write()


# The keys of masked sums: each site signs which clients it has and its public key for the run; every site gets all.
#
# Where the plan has identities, sites check the lists by the public keys that they know from the deployment. The
# aggregator, which carries the lists, can then neither add a client nor replace a site's key by its own.

_SIGNED_ENROLMENT: Final = (
    b"fedveil enrolment 2\n"  # an envelope begins differently, so neither can be mistaken for the other
)
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
    return identity.signer.sign(_SIGNED_ENROLMENT + body) + body


def enrolled(signed: bytes, site: str, card: Card | None, run: str) -> tuple[tuple[int, ...], bytes]:
    """Return the clients and the key of one site, after checking that it has signed them for this run.

    ``card``: None where sites do not know each other, and the aggregator is believed.
    """
    signature, body = signed[:_SIGNATURE], signed[_SIGNATURE:]
    try:
        if card is not None:
            card.verifier.verify(signature, _SIGNED_ENROLMENT + body)
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


# Checks whether a site may consider a proposal: a plan, for data like its own, that names no foreign code.
#
# A plan is a text from outside, and reading it must run nothing. A torch model is given as the name of a function, and
# any function that can be imported at a site could be named. So the names are checked before the plan is built.

_LONGEST: Final = 2**20  # bytes of a plan, which may list settings for every client


def plan_of(proposal: Content, modules: Collection[str]) -> Carried:
    """Return the plan in a proposal; its text must be in canonical form, and its hash must be the one stated.

    ``modules``: functions of the site's own installation that the operator allows a plan to name.
    """
    text = proposal.blocks.get("plan", b"")
    if len(text) > _LONGEST:
        raise Refused("malformed")
    try:
        plan, name = _plan_in(text, frozenset(modules))
        same = name is not None and name == proposal.values.get("plan")
    except Refused:
        raise
    except Exception as error:  # numbers of a wrong kind or size may fail in any way
        raise Refused("malformed") from error
    if not same:
        raise Refused("other-plan")
    late = plan.trust.patience is not None
    if plan.evaluation and (late or not all(stage.served for stage in plan.stages)):
        raise Refused("not-by-parts")  # there is no round for its sums
    if not carried_by_sites(plan):  # nor is a profile, or an evaluation by itself: those are made in one process
        raise Refused("not-by-parts")
    return plan


@lru_cache(maxsize=8)
def _plan_in(text: bytes, modules: frozenset[str]) -> tuple[Carried, str | None]:
    """Return the plan with this text, and its hash if the text is canonical; every message of a run asks for it."""
    tables = read_tables(text.decode("utf-8"), "The plan")
    if "tune" in tables:  # a site trains one run, and what it promises is that of a secret choice among several
        raise Refused("not-by-parts")
    _check_code(tables.get("model"), modules)
    plan = read_any_plan(text.decode("utf-8"))
    return plan, plan.hash if plan.text().encode() == text else None


def carried_by_sites(plan: Carried) -> bool:
    """Return whether sites can carry out the plan: each adds its clients' noise, or there is no server at all."""
    return plan.trust.shared or not all(stage.served for stage in plan.stages)


def _check_code(model: Any, modules: Collection[str]) -> None:
    """Refuse functions that the operator has not named, and models whose size could only be found by running code."""
    named = list(code_named(model).values())
    if not all(Allowed(frozenset(modules)).permits(name) for name in named):
        raise Refused("other-code")
    if named and type(model.get("parameters")) is not int:
        raise Refused("malformed")


def fits(plan: Carried, mine: DataShape) -> None:
    """Refuse unless the plan was made for data like these."""
    said = plan.data
    same = (said.features, said.classes, said.bound) == (mine.features, mine.classes, mine.bound)
    within = said.smallest_client <= mine.smallest_client and mine.largest_client <= said.largest_client
    together = mine.clients <= plan.trust.hand
    if not (same and within and together and mine.clients <= said.clients and mine.records <= said.records):
        raise Refused("other-data")


# What a guard and a key holder have in common: a signed instruction in, a sealed answer out, one agreed plan.
#
# The number of an instruction is on the disk before it is looked at, so nothing is answered twice.

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


# The turns of a run across sites, counted on the wire through all stages of the plan.
#
# Both sides work this out from the plan. A turn is answered once, so no two stages may share a number: a stage begins
# after the last turn that the stage before it may have, also if that ends before.


@dataclass(frozen=True, slots=True)
class Span:
    """The turns of one stage: its place among the stages, and the number of its first turn."""

    place: int
    first: int
    stage: Stage

    @property
    def end(self) -> int:
        """The number of the first turn after it."""
        return self.first + self.stage.turns


@lru_cache(maxsize=16)
def spans(plan: Carried) -> tuple[Span, ...]:
    """Return the turns of every stage, in order."""
    result: list[Span] = []
    for place, stage in enumerate(plan.stages):
        result.append(Span(place, result[-1].end if result else 0, stage))
    return tuple(result)


def span_of(plan: Carried, turn: int) -> Span:
    """Return the stage that a turn belongs to; refuse a turn that the plan does not have."""
    result = next((span for span in spans(plan) if span.first <= turn < span.end), None)
    if result is None:
        raise Refused("no-such-round")
    return result


def length_of(plan: Carried, turn: int) -> int:
    """Return how many numbers the sum of a turn has."""
    span = span_of(plan, turn)
    return span.stage.size(turn - span.first)


def least_of(plan: Carried, turn: int) -> int:
    """Return how many clients must answer in a turn."""
    span = span_of(plan, turn)
    return max(plan.trust.least(span.stage.cohort(turn - span.first)), 1)


def all_floors(plan: Carried) -> Floors:
    """Return, for each sum of the run, how many clients take part in it and how many must answer."""
    sizes = [span.stage.cohort(turn) for span in spans(plan) for turn in range(span.stage.turns)]
    return [(size, max(1, plan.trust.least(size))) for size in sizes]


def server_of(plan: Carried, turn: int) -> str:
    """Return who adds up a turn: as the plan's trust says; nobody, where the algorithm has no server.

    Its other stages are then added up behind masks.
    """
    if all(span.stage.served for span in spans(plan)):
        return plan.trust.server
    return "secure-aggregation" if span_of(plan, turn).stage.served else ""


# What site and aggregator each compute for encrypted sums, from the plan and the names of the sites only.

KEY_FILE: Final = "sums.key"  # in a site's private folder during the run: the key that opens sums


def parameters_of(plan: Carried) -> Parameters:
    """Return the parameters for all rounds, chosen for the round with the most clients."""
    return parameters_for(max(most for most, _ in all_floors(plan)))


def maker_of(sites: Iterable[str]) -> str:
    """Return the site that makes the run's key: the first by name, so that nobody can choose it."""
    return min(sites)


# What site and aggregator each compute for a masked round, from the plan and the roster, without believing each other.
#
# A site adds up its own clients and masks the total: it knows all of them anyway, and counts as all of them where it is
# missing or colludes. Without identities of the sites the masks protect against a server that follows the protocol but
# is curious, not against one that poses as sites (docs/secure.md).

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


# The public key of a key holder, signed by it for one run and one plan.
#
# It is not secret, so it is not sealed. Sites know the holder's public keys from the deployment: the aggregator, which
# carries the key, can neither replace it by its own nor show the holder one plan and the sites another.

_SIGNED_KEY: Final = b"fedveil key of sums 1\n"  # no other signed text begins with this


def vouched(identity: Identity, run: str, plan: str, public: bytes) -> bytes:
    """Return the signed public key; ``plan``: the hash of the plan that the holder has agreed to."""
    values = {"holder": identity.name, "run": run, "plan": plan}
    body = Content(values=values, blocks={"public": public}).write()
    return identity.signer.sign(_SIGNED_KEY + body) + body


def public_of(signed: bytes, holder: Card, run: str, plan: str) -> bytes:
    """Return the public key, after checking that this holder has signed it for this run of this plan."""
    signature, body = signed[:_SIGNATURE], signed[_SIGNATURE:]
    try:
        holder.verifier.verify(signature, _SIGNED_KEY + body)
    except InvalidSignature as error:
        raise Refused("not-the-holders") from error
    said = Content.read(body)
    if said.values != {"holder": holder.name, "run": run, "plan": plan}:
        raise Refused("other-key")
    if set(said.blocks) != {"public"}:
        raise Refused("malformed")
    return said.blocks["public"]
