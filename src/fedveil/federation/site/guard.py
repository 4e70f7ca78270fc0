"""The guard of a site: owns the data, the noise and the ledger; answers what the plan names, and nothing else.

The site starts it from its own installation. Whatever carries messages to it is not trusted: an instruction must be
signed by the aggregator, be new, and belong to a plan that the site's operator has agreed to.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from fedveil.core.errors import BadValue, FedveilError, require
from fedveil.core.files import owners_folder
from fedveil.core.importing import Allowed, allowing
from fedveil.data.records import Records
from fedveil.engine.files import private_folder, write_atomically
from fedveil.federation.agreements import (
    ANY,
    KEY_FILE,
    MASK,
    MASK_KEY,
    Carried,
    Roster,
    agreed_to,
    answered,
    enrolment,
    is_masked,
    plan_of,
    roster_of,
    server_of,
)
from fedveil.federation.site.checks import check_proposed
from fedveil.federation.site.data import SiteData
from fedveil.federation.site.encrypted import EncryptedSite
from fedveil.federation.site.masked import MaskedSite, draw_mask_key, masked_state
from fedveil.federation.site.record import KeptAnswer, Record, World
from fedveil.federation.site.stages import MEMORY, SiteStages
from fedveil.federation.site.state import SiteState, save_state
from fedveil.ledger.budget import Cap, CapExceeded
from fedveil.ledger.costs import covered
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Neighbours, Unit
from fedveil.stages.train.acting import acts_of
from fedveil.sums.masks.amortised import public_of
from fedveil.sums.seam import Whole
from fedveil.version import __version__
from fedveil.wire.content import Content
from fedveil.wire.envelope import Opened, Refused, unseal
from fedveil.wire.keys import Card, Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the operator allows: plans by their hash, or any that fits the caps; trials without privacy, or none.

    A plan that is named is accepted for one run; with caps, for as many as fit. ``unit`` and ``neighbours``: what the
    caps count, which the plan must not decide. ``modules``: functions of this installation that a plan may name.
    """

    accept: frozenset[str] = frozenset()
    caps: tuple[tuple[Any, float, float], ...] = ()
    trials: bool = False
    unit: Unit = "record"
    neighbours: Neighbours = "replace-one"
    modules: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        bounded = ANY not in self.accept or self.caps or self.trials
        if not bounded:
            raise BadValue("A guard that accepts any plan must have a cap; give one, or name the plan by its hash.")
        _ = self.limits  # refuses bad caps
        Allowed(self.modules)  # refuses what names no code

    @property
    def limits(self) -> tuple[Cap, ...]:
        """The caps in the form that the ledger keeps."""
        return tuple(
            Cap(adversary=who, unit=self.unit, neighbours=self.neighbours, epsilon=epsilon, delta=delta)
            for who, epsilon, delta in self.caps
        )

    @property
    def once(self) -> bool:
        """True if a plan is accepted for one run only: it was named, and no cap limits how often."""
        return ANY not in self.accept and not self.caps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """The identity of a site, its folder and its data; ``peers``: the other sites' public keys, as given to this site.

    ``holder``: the third party that may hold the key of encrypted sums, as given to this site.
    """

    identity: Identity
    aggregator: Card
    data: SiteData
    folder: Path
    peers: Mapping[str, Card] = field(default_factory=dict)
    holder: Card | None = None

    def __post_init__(self) -> None:
        others = {card.verify for card in (self.aggregator, self.identity.card, *self.peers.values())}
        apart = self.holder is None or self.holder.verify not in others
        hint = "Ask the key holder itself for its public key."
        require(apart, "key-holder.pub", "be the key of neither a site nor the aggregator", "one of theirs", hint)

    @property
    def records(self) -> Records:
        """The records of the site."""
        return self.data.records


@final
@dataclass(slots=True, kw_only=True)
class Guard:
    """Handles one envelope at a time and returns the sealed answer.

    ``show`` displays a page to the operator; ``finished`` is called with the folder of a run that has ended; ``note``
    tells the operator what nobody else may know of the site's own records. ``idle`` is called before the guard waits
    for the next message.
    """

    site: Site
    terms: Terms
    world: World
    show: Callable[[Carried], None]
    finished: Callable[[Path], None]
    note: Callable[[str], None] = lambda text: None
    idle: Callable[[], None] = lambda: None
    _works: dict[str, SiteStages] = field(default_factory=dict)
    _masks: dict[str, MaskedSite] = field(default_factory=dict)
    _kept: KeptAnswer = field(default_factory=KeptAnswer)

    def handle(self, data: bytes) -> bytes:
        """Return the sealed answer.

        Raise :class:`Refused`, and send nothing, if the envelope itself is not in order.
        """
        opened = unseal(data, self.site.identity, self.site.aggregator)
        record = self._record(opened.head.run)
        me, aggregator, once = self.site.identity, self.site.aggregator, self.world.random(32)
        path = record.private / "state"
        try:
            with allowing(*self.terms.modules):
                return answered(opened, path, me, aggregator, once, lambda state: self._answer(opened, record, state))
        finally:
            self.idle()

    def _answer(self, opened: Opened, record: Record, state: SiteState) -> tuple[str, Content]:
        asked = Content.read(opened.body)
        match opened.head.kind:
            case "hello":
                description = self.site.data.description()
                return "here", replace(description, values={**description.values, "version": __version__})
            case "propose":
                return self._propose(asked, opened.body, record, state)
            case "step":
                return self._step(asked, opened, record, state)
            case "masked":
                return self._masked(asked, opened, record, state)
            case "make-key" | "take-key" | "encrypt" | "consent" | "open":
                return self._encrypted(asked, opened, record, state)
            case "roster":
                return self._told(opened.body, asked, record, state)
            case "learned":
                return self._learned(asked, record, state)
            case "party" | "lead":
                return self._party(asked, opened, record, state)
            case "finish":
                return self._finish(asked, record, state)
            case _:
                raise Refused("unknown-kind")

    def _propose(self, asked: Content, body: bytes, record: Record, state: SiteState) -> tuple[str, Content]:
        """Check a proposed plan, show it to the operator and charge it, or refuse with a code."""
        plan = plan_of(asked, self.terms.modules)
        check_proposed(plan, asked, self.site.data, self.site.identity.name, self.site.peers)
        if plan.trust.key_holder == "third-party" and self.site.holder is None:
            raise Refused("no-holder")
        if isinstance(plan, Plan) and self.site.identity.name in plan.forgetting.away:
            raise Refused("other-data")
        agreed = state.agreed(plan.hash, hashlib.sha256(body).hexdigest())
        if state.finished:
            raise Refused("finished")
        self._show(plan)
        if not (plan.hash in self.terms.accept or ANY in self.terms.accept):
            raise Refused("not-accepted")
        if not covered(plan) and not self.terms.trials:
            raise Refused("not-private")
        self._charge(plan, record, state, agreed)
        write_atomically(record.private / "proposal", body)
        if not (state.plan or plan.seeded):
            # drawn before the first answer and never again, so that the noise of a round is drawn once
            record.draw_key()
        save_state(record.private / "state", agreed)
        own = {"list": self._enrolment(plan, asked, record)} if is_masked(plan) else {}
        return "accepted", Content(values={"plan": plan.hash}, blocks=own)

    def _charge(self, plan: Carried, record: Record, state: SiteState, agreed: SiteState) -> None:
        """Charge the run to the site's budget.

        The intention is on the disk first. A charge without it belongs to a run whose memory was lost, so that nobody
        knows what was sent for it.
        """
        path = record.private / "state"
        try:
            record.check_books(plan, self.site.data, known=state.proposal != "", alone=self.terms.once)
            save_state(path, replace(state, proposal=agreed.proposal))
            record.charge(plan, self.site.data, self.terms.limits)
        except CapExceeded as error:
            save_state(path, state)  # undo: nothing was charged
            raise Refused("over-cap") from error
        except Refused:
            raise
        except FedveilError as error:
            raise self._cannot_charge(error) from error

    def _show(self, plan: Carried) -> None:
        """Show a plan, with what it costs each observer, to the operator."""
        try:
            self.show(plan)
        except FedveilError as error:
            raise self._cannot_charge(error) from error

    def _cannot_charge(self, error: FedveilError) -> Refused:
        """Tell the operator why no cost was worked out; the other side learns only that there is none."""
        self.note(str(error))
        return Refused("cannot-charge")

    def _step(self, asked: Content, opened: Opened, record: Record, state: SiteState) -> tuple[str, Content]:
        if not state.plan:
            raise Refused("not-accepted")
        turn = opened.head.round
        if self._server(record, state, turn) != "trusted":
            raise Refused("not-in-the-open")
        stepped = state.stepped(turn, hashlib.sha256(opened.body).hexdigest())
        if (again := self._kept.to(opened)) is not None:
            return again
        parts = self._parts(record, state, turn, asked, stepped)
        total = np.zeros_like(next(iter(parts.values())))
        for part in parts.values():
            total += part
        return self._kept.keep(opened, "update", Content(values={"clients": sorted(parts)}, rows={"total": total}))

    def _parts(self, record: Record, state: SiteState, turn: int, asked: Content, used: SiteState) -> dict[int, Whole]:
        """Return the clients' parts of a round; that the round is ``used`` up is on the disk before anything leaves.

        With them is a hash of the parts: a guard that was started again, with other code or on another machine, must
        not answer a round with other numbers under the same noise and masks, not even by a rounding.
        """
        parts = self._work(record, state).parts(turn, asked)
        if not parts:
            raise Refused("nothing-to-send")
        digest = hashlib.sha256()
        for client in sorted(parts):
            digest.update(client.to_bytes(8, "little") + len(parts[client]).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(parts[client]).data)
        save_state(record.private / "state", used.answering(state, digest.hexdigest()))
        return parts

    def _masked(self, asked: Content, opened: Opened, record: Record, state: SiteState) -> tuple[str, Content]:
        """Answer a masked round: its masked numbers, and in a second exchange what opens the sum, leave the site."""
        if not state.plan:
            raise Refused("not-accepted")
        turn = opened.head.round
        if self._server(record, state, turn) != "secure-aggregation":
            raise Refused("unknown-kind")
        site = self._masked_site(record, state)
        setting, mine = site.setting(turn, asked)
        if asked.values.get("stage") != MASK:
            after, content = site.open(setting, asked, state)
            save_state(record.private / "state", after)
            return "masked", content
        stepped = masked_state(state.stepped(turn, hashlib.sha256(opened.body).hexdigest()), setting)
        if (again := self._kept.to(opened)) is not None:
            return again
        parts = self._parts(record, state, turn, asked, stepped)
        return self._kept.keep(opened, "masked", site.mask(setting, mine, parts))

    def _masked_site(self, record: Record, state: SiteState) -> MaskedSite:
        """Return the masked rounds of a run, set up once in a process."""
        if record.run not in self._masks:
            plan, _ = self._agreed(record, state)
            roster = self._roster(record, plan)
            self._masks[record.run] = MaskedSite(
                plan, record.run, self.site.identity, roster, self._cards(plan), record.private
            )
        return self._masks[record.run]

    def _enrolment(self, plan: Carried, proposal: Content, record: Record) -> bytes:
        """Return the site's clients and its key for the run's masks, signed; the key is drawn once in a run."""
        private = record.private
        if (private / "roster").exists() and not (private / MASK_KEY).exists():
            raise Refused("lost-key")  # the other sites have the public key of the one that was lost
        public = public_of(draw_mask_key(private, self.world.random))
        return enrolment(self.site.identity, record.run, proposal.rows["numbers"].tolist(), public)

    def _told(self, body: bytes, asked: Content, record: Record, state: SiteState) -> tuple[str, Content]:
        """Keep the lists of all sites, once in a run, after checking them."""
        if not state.plan:
            raise Refused("not-accepted")
        plan, proposal = self._agreed(record, state)
        if not is_masked(plan):
            raise Refused("unknown-kind")
        roster_of(asked.blocks, self._known_cards(plan), record.run, plan.data.clients)
        path = record.private / "roster"
        mine = asked.blocks.get(self.site.identity.name) == self._enrolment(plan, proposal, record)
        if not mine or (path.exists() and path.read_bytes() != body):
            raise Refused("other-roster")
        write_atomically(path, body)
        return "known", Content()

    def _roster(self, record: Record, plan: Carried) -> Roster:
        """Return the sites' clients and keys, checked again as they are read."""
        path = record.private / "roster"
        if not path.exists():
            raise Refused("no-roster")
        blocks = Content.read(path.read_bytes()).blocks
        return roster_of(blocks, self._known_cards(plan), record.run, plan.data.clients)

    def _known_cards(self, plan: Carried) -> dict[str, Card] | None:
        """Return the public keys of all sites, where the plan has them check each other."""
        return None if plan.trust.identities is None else self._cards(plan)

    def _cards(self, plan: Carried) -> dict[str, Card]:
        return {**self._peers(plan), self.site.identity.name: self.site.identity.card}

    def _peers(self, plan: Carried) -> dict[str, Card]:
        """Return the other sites' public keys, without those that the agreed plan says have left."""
        away = plan.forgetting.away if isinstance(plan, Plan) else ()
        return {name: card for name, card in self.site.peers.items() if name not in away}

    def _encrypted(self, asked: Content, opened: Opened, record: Record, state: SiteState) -> tuple[str, Content]:
        """Answer for encrypted sums: the run's key, the clients' updates, and the opening of one sum of a round."""
        if not state.plan:
            raise Refused("not-accepted")
        plan, _ = self._agreed(record, state)
        if plan.trust.server != "homomorphic":
            raise Refused("unknown-kind")
        site, turn, path = self.site, opened.head.round, record.private / "state"
        place, random = record.private / KEY_FILE, self.world.random
        sums = EncryptedSite(plan, record.run, site.identity, self._peers(plan), site.holder, place, random)
        if opened.head.kind != "encrypt":
            kind = opened.head.kind
            return sums.answer(kind, turn, asked, lambda digest: save_state(path, state.opening(turn, digest)))
        stepped = state.stepped(turn, hashlib.sha256(opened.body).hexdigest())
        if (again := self._kept.to(opened)) is not None:
            return again
        parts = self._parts(record, state, turn, asked, stepped)
        return self._kept.keep(opened, "encrypted", sums.encrypt(turn, parts))

    def _party(self, asked: Content, opened: Opened, record: Record, state: SiteState) -> tuple[str, Content]:
        """Answer in a run without a server.

        A noised sum for the leader, or the leader's step, sealed for other sites.
        """
        if not state.plan:
            raise Refused("not-accepted")
        plan, _ = self._agreed(record, state)
        if not isinstance(plan, Plan) or (relay := acts_of(plan.method.kind).relay) is None:
            raise Refused("unknown-kind")
        turn = opened.head.round
        work = self._work(record, state)
        keys, memory = (self.site.identity, self.site.peers), record.private / MEMORY
        party = relay.party(plan, record.run, work.records, keys, work.entropy, memory, self.world.random)
        if opened.head.kind == "lead":
            return "led", party.lead(turn, asked)
        return "sum", party.contribute(turn, asked)

    def _learned(self, asked: Content, record: Record, state: SiteState) -> tuple[str, Content]:
        """Keep what the sums of the preparation were, and tell the operator what follows for the site's own records."""
        if not state.plan:
            raise Refused("not-accepted")
        notes = self._work(record, state).keep_learned(asked)
        for text in [] if notes is None else record.keep_notes(notes):
            self.note(text)
        return "prepared", Content()

    def _server(self, record: Record, state: SiteState, turn: int) -> str:
        plan, _ = self._agreed(record, state)
        return server_of(plan, turn)

    def _entropy(self, record: Record, plan: Carried, proposal: Content) -> Entropy:
        return record.entropy(plan, self.site.data, proposal.values.get("seed") if plan.seeded else None)

    def _finish(self, asked: Content, record: Record, state: SiteState) -> tuple[str, Content]:
        if not state.plan:
            raise Refused("not-accepted")
        model = asked.blocks.get("model", b"")
        if not state.finished:
            plan, _ = self._agreed(record, state)
            record.release(plan, self.site.data, model, asked.blocks.get("preparation"))
            save_state(record.private / "state", replace(state, finished=True))
        elif not record.released(model):
            raise Refused("finished")
        record.destroy_secrets()  # last, because a round that could still be asked for would get other noise
        self._works.pop(record.run, None)
        self._masks.pop(record.run, None)
        self.finished(record.folder)
        return "recorded", Content()

    def _work(self, record: Record, state: SiteState) -> SiteStages:
        """Return the work that was agreed, set up once in a process."""
        if record.run not in self._works:
            plan, proposal = self._agreed(record, state)
            entropy = self._entropy(record, plan, proposal)
            self._works[record.run] = SiteStages(plan, self.site.data, proposal, entropy, record.private)
        return self._works[record.run]

    def _agreed(self, record: Record, state: SiteState) -> tuple[Carried, Content]:
        """Return the proposal that was agreed to; refuse any other."""
        if state.finished:
            raise Refused("finished")
        return agreed_to(record.private / "proposal", state, self.terms.modules)

    def _record(self, run: str) -> Record:
        folder = self.site.folder / "runs" / run
        owners_folder(folder)
        private_folder(folder / "private")
        return Record(folder, self.site.folder / "ledger.sqlite", run, self.world)
