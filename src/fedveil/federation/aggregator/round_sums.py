"""One round across sites: how its sum is computed for each kind of server, and the keys that this needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from fedveil.core.errors import TooFewSurvivors
from fedveil.core.values import Vector
from fedveil.engine.files import write_atomically
from fedveil.federation.aggregator import encrypted as encrypted_server
from fedveil.federation.aggregator import masked as masked_server
from fedveil.federation.aggregator.post import Answer, Post
from fedveil.federation.aggregator.trace import Trace
from fedveil.federation.aggregator.turn import SiteRefused, Turn, ask_all, count, never, reason
from fedveil.federation.agreements import MASK, Carried, Roster, is_masked, maker_of, public_of, roster_of, server_of
from fedveil.privacy.trust import Trust
from fedveil.sums.homomorphic.roles import Adder
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.keys import Card


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSums:
    """What the rounds of one run share: who is asked, by whom, and where keys and logs are kept.

    ``holder``: the third party that holds the key of encrypted sums, if the plan has one.
    """

    plan: Carried
    run: str
    private: Path
    cards: Mapping[str, Card]
    post: Post
    holder: Card | None = None
    _known: list[Roster] = field(default_factory=list)

    @property
    def trust(self) -> Trust:
        """Whom the sites trust with what."""
        return self.plan.trust

    @property
    def trace(self) -> Trace:
        """Where the time goes."""
        return self.post.trace

    def prepare(self, lists: Mapping[str, bytes]) -> None:
        """Make the keys for encrypted sums and for masks, once in a run; ``lists``: what each site has enrolled."""
        if self.trust.key_holder == "third-party":
            self._spread_key()
        elif self.trust.server == "homomorphic":
            self._share_key()
        if is_masked(self.plan):
            self._spread_lists(lists)

    def sum(self, turn: Turn) -> Whole:
        """Return the sum of a turn over those who answered in time."""
        match server_of(self.plan, turn.number):
            case "secure-aggregation":
                return self._masked(turn)
            case "homomorphic":
                return self._encrypted(turn)
            case _:
                return self._open(turn)

    def tell(self, place: int, sums: Vector, clients: Mapping[str, int]) -> None:
        """Tell every site what the sums of a stage were; as many clients as a turn needs must know them.

        ``place``: of the stage among all; ``clients``: how many each site has.
        """
        said = self.post.ask(
            "learned",
            place,
            {site: Content(rows={"sums": sums}) for site in self.cards},
            self.trust.timeout,
            lambda _, answer: answer.kind in ("prepared", "refused"),
            never,
        )
        refused = {site: answer for site, answer in said.items() if answer.kind == "refused"}
        for site in sorted(refused):
            raise SiteRefused(f"Site {site} refuses: {reason(refused[site])}. Go on with --resume.")
        known, needed = sum(clients[site] for site in said), max(self.trust.least(sum(clients.values())), 1)
        if not known >= needed:
            raise TooFewSurvivors(
                f"The sites of {known} clients know what the {self.plan.stages[place].name} has learned, and {needed}"
                " must. What was charged stays charged; go on with --resume when the sites are back."
            )

    def _open(self, turn: Turn) -> Whole:
        answers = self.post.ask(
            "step",
            turn.number,
            turn.questions,
            self.trust.timeout,
            turn.right,
            lambda answers: count(answers) >= turn.least,
        )
        return turn.summed(answers)

    def _masked(self, turn: Turn) -> Whole:
        """Return the sum of a masked turn; the aggregator learns the sum only."""

        def ask(
            questions: Mapping[str, Content], right: masked_server.Right, enough: masked_server.Enough, /
        ) -> dict[str, Answer]:
            def taken(site: str, answer: Answer) -> bool:
                # asking again would not help where a site refuses to open a sum
                refused = answer.kind == "refused" and questions[site].values["stage"] != MASK
                return refused or (answer.kind == "masked" and right(site, answer.content))

            def is_enough(answers: Mapping[str, Answer]) -> bool:
                return enough(frozenset(site for site, answer in answers.items() if answer.kind == "masked"))

            return self.post.ask("masked", turn.number, questions, self.trust.timeout, taken, is_enough)

        log = self.private / "masked"
        return masked_server.masked_sum(self.plan, self.run, turn, ask, log, self._roster(), self.cards)

    def _roster(self) -> Roster:
        """Return the sites' clients and keys; read once in a process."""
        if not self._known:
            lists = Content.read((self.private / "roster").read_bytes()).blocks
            self._known.append(roster_of(lists, self.cards, self.run, self.plan.data.clients))
        return self._known[0]

    def _encrypted(self, turn: Turn) -> Whole:
        """Return the sum of an encrypted turn: the aggregator adds, and the key holder opens only the sum."""
        sites = sorted(self.cards)

        def ask(kind: str, questions: Mapping[str, Content], needed: int, empty: Adder, /) -> dict[str, Answer]:
            def enough(answers: Mapping[str, Answer]) -> bool:
                return sum(encrypted_server.weight(answer) for answer in answers.values()) >= needed

            def taken(site: str, answer: Answer) -> bool:
                no = kind != "encrypt" and answer.kind == "refused"  # asking again would not help
                return no or encrypted_server.right(turn, site, answer, empty)

            return self.post.ask(kind, turn.number, questions, self.trust.timeout, taken, enough)

        public = (self.private / "sums.public").read_bytes()
        kept = encrypted_server.encrypted_sum(self.plan, turn, public, ask, self.private / "encrypted")
        empty = encrypted_server.adder_of(self.plan, public, turn.number)
        if self.trust.key_holder == "third-party":
            return encrypted_server.opened_outside(turn.number, kept, ask, self._holder.name, empty)
        return encrypted_server.opened_by_most(turn.number, kept, ask, sites, empty)

    @property
    def _holder(self) -> Card:
        assert self.holder is not None  # noqa: S101  such plans are refused before
        return self.holder

    def _spread_lists(self, lists: Mapping[str, bytes]) -> None:
        """Give every site the lists of all, with their keys for masks; it checks them where sites sign."""
        path = self.private / "roster"
        if path.exists():
            return
        roster_of(lists, self.cards, self.run, self.plan.data.clients)
        told = Content(blocks=dict(lists))
        ask_all(self.post, "roster", dict.fromkeys(self.cards, told), self.trust.timeout, "known")
        write_atomically(path, told.write())

    def _share_key(self) -> None:
        """Have one site make the key of encrypted sums and seal it for the others.

        The aggregator keeps only the public key.
        """
        path, seconds = self.private / "sums.public", self.trust.timeout
        if path.exists():
            return
        maker = maker_of(self.cards)
        made = ask_all(self.post, "make-key", {maker: Content()}, seconds, "made")[maker].content.blocks
        for site in self.cards:
            if site != maker and f"for {site}" not in made:
                raise SiteRefused(f"Site {maker} has no public key of {site}: put it at peers/{site}.pub there.")
        encrypted_server.adder_of(self.plan, made.get("public", b""), 0)
        asked = {site: Content(blocks={"key": made[f"for {site}"]}) for site in self.cards if site != maker}
        ask_all(self.post, "take-key", asked, seconds, "taken")
        write_atomically(path, made["public"])

    def _spread_key(self) -> None:
        """Have a third party make the key of encrypted sums; every site gets the public key, signed."""
        path, seconds, holder = self.private / "sums.public", self.trust.timeout, self._holder
        if path.exists():
            return
        asked = {holder.name: Content()}
        made = ask_all(self.post, "make-key", asked, seconds, "made", who="Key holder")
        signed = made[holder.name].content.blocks.get("key", b"")
        public = public_of(signed, holder, self.run, self.plan.hash)
        encrypted_server.adder_of(self.plan, public, 0)
        told = Content(blocks={"key": signed})
        ask_all(self.post, "take-key", dict.fromkeys(self.cards, told), seconds, "taken")
        write_atomically(path, public)
