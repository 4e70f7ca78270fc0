"""A study carried out across sites: agree, charge, ask round by round, record, release; a crash loses no charge.

The order is that of a run in one process. A round's question is determined by the checkpoint that was on the disk
before it was asked, so a restarted aggregator asks the same question, and a site gives the same answer.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from fedveil.checks import require
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.errors import BadValue, FedveilError
from fedveil.ledger import Ledger
from fedveil.method.simfl import SimFL
from fedveil.plan import Plan, read_plan, write_plan
from fedveil.promises import ADVERSARIES
from fedveil.run import encrypted_server, masked_server
from fedveil.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedveil.run.conduct import Progress, System, caps_of, charge_of, model_file
from fedveil.run.consortium import Consortium, consortium
from fedveil.run.encrypted_setting import maker_of
from fedveil.run.enrolment import roster_of
from fedveil.run.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.run.measure import measure
from fedveil.run.post import Answer, Post
from fedveil.run.reasons import REASONS
from fedveil.run.relayed_rounds import check_parties, relayed_model
from fedveil.run.server_dpsgd import DpSgdServer
from fedveil.run.server_fedavg import FedAvgServer
from fedveil.run.server_hidden import HiddenServer
from fedveil.run.serving import Serving, Standing, count, least, right, summed
from fedveil.secure.he_roles import Adder
from fedveil.study import Study
from fedveil.summing import Whole
from fedveil.tables import write_tables
from fedveil.train.entropy import KEY_BYTES, Entropy
from fedveil.trust import Trust
from fedveil.wire.content import Content
from fedveil.wire.keys import Card

_ATTEMPT: Final = 2**32  # envelopes that one start of the aggregator may send
_HELLO: Final = 120.0  # seconds for sites to say who they are, before there is a plan


Make = Callable[[Plan, Consortium, Entropy], Serving]
SERVERS: Final[dict[str, Make]] = {
    "hidden": HiddenServer.make,
    "fedavg": FedAvgServer.make,
    "dpsgd": DpSgdServer.make,
}


class SiteRefused(FedveilError):
    """A site does not agree to the plan; the sentence says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Records that the aggregator may measure on, and whether they are public."""

    records: Records | None = None
    public: bool = True

    @property
    def count(self) -> int:
        """How many."""
        return 0 if self.records is None else len(self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What one start of an aggregator works with: the run's name and key, and the first number of its envelopes."""

    run: str
    key: bytes
    number: int


def begin(folder: Path, resume: bool, random: Callable[[int], bytes]) -> Begun:
    """Name and key are drawn once; the count of starts is on the disk before the first envelope leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    private = private_folder(folder / "private")
    path, starts = private / "aggregator", private / "starts"
    if not resume:
        hint = "Name another folder, or go on with --resume."
        require(not path.exists() and not (folder / "plan.toml").exists(), "--out", "be new", str(folder), hint)
        write_atomically(path, random(16 + KEY_BYTES))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadValue(f"--resume must name a folder with a run in it: {error}.") from error
    require(len(content) == 16 + KEY_BYTES, str(path), f"hold {16 + KEY_BYTES} bytes", len(content))
    count = 1 + (int(starts.read_text(encoding="ascii")) if starts.exists() else 0)
    write_atomically(starts, str(count).encode("ascii"))
    return Begun(run=content[:16].hex(), key=content[16:], number=count * _ATTEMPT)


@final
@dataclass(slots=True, kw_only=True)
class Federation:
    """One start of an aggregator."""

    study: Study
    folder: Path
    cards: Mapping[str, Card]
    post: Post
    begun: Begun
    held: Held
    system: System
    watch: Callable[[Progress], None] | None = None

    def conduct(self) -> dict[str, Any]:
        """Run the study; the metrics it wrote."""
        require(not self.study.baselines, "report.baselines", "be false across sites", True)
        with sole_use(self.folder / "private"):
            released = self.folder / "private" / "released"
            if released.exists():  # stopped between the release and the last farewell
                self._finish(released.read_bytes())
                return dict(json.loads((self.folder / "metrics.json").read_text(encoding="utf-8")))
            members = self._members()
            plan = self._plan(members)
            with Ledger.open(self._books(), self._fingerprint, urandom=self.system.random) as ledger:
                at = self._charge(ledger, plan)
                entropy = self._entropy(plan)
                if isinstance(plan.method, SimFL):
                    self._propose(plan, lambda site: {"numbers": members.members[site].clients})
                    model = self._relayed(plan)
                else:
                    server = SERVERS[plan.method.kind](plan, members, entropy)
                    self._propose(plan, server.proposal)
                    self._share_key(server)
                    self._enrol(server)
                    model = self._rounds(plan, server)
                return self._release(plan, model, entropy, ledger, at)

    def _members(self) -> Consortium:
        """What the sites say of themselves, kept from the first start on: a run's data do not change."""
        path = self.folder / "private" / "members"
        if path.exists():
            kept = Content.read(path.read_bytes())
            return consortium({name: Content.read(block) for name, block in kept.blocks.items()})
        asked = {site: Content() for site in self.cards}
        found = self._all("hello", asked, _HELLO, "here")
        said = {site: answer.content for site, answer in found.items()}
        made = consortium(said)
        write_atomically(path, Content(blocks={site: content.write() for site, content in said.items()}).write())
        return made

    def _plan(self, members: Consortium) -> Plan:
        path = self.folder / "plan.toml"
        plan = self.study.planned(members.shape, self.held.count, self.held.public).plan
        alone = isinstance(plan.method, SimFL)
        if alone:
            check_parties(members)
        hint = "Add a [trust] table to the study: every site adds its own share of the noise."
        require(alone or plan.trust is not None, "The study", "say whom the sites trust", None, hint)
        kinds = (*SERVERS, SimFL.kind)
        require(plan.method.kind in kinds, "algorithm.kind", f"be one of {', '.join(kinds)} here", plan.method.kind)
        outside = plan.trust is not None and plan.trust.key_holder == "third-party"
        hint = "Only sites and the aggregator are reached, and the aggregator must not hold it."
        require(not outside, "trust.key_holder", "be clients across sites", "third-party", hint)
        several = [site for site, member in members.members.items() if member.clients.size > 1]
        alone = not (plan.private and plan.target.adversary == "curious-client" and several)
        hint = "A site sees all that its clients see: make each site one client, or choose another adversary."
        require(alone, "privacy.adversary", "not be curious-client when a site holds several clients", several, hint)
        if path.exists():
            begun = read_plan(path.read_text(encoding="utf-8"))
            hint = "Or begin in another folder."
            require(begun == plan, "The study", f"give the plan that was begun, {begun.hash}", plan.hash, hint)
        write_atomically(path, write_plan(plan).encode(), mode=PUBLIC)
        return plan

    def _books(self) -> Path:
        return self.study.books.ledger or self.folder / "private" / "ledger.sqlite"

    def _fingerprint(self, key: bytes) -> str:
        """The aggregator has no data: its books belong to the sites, by their keys."""
        digest = blake2b(key=key, digest_size=32)
        for site in sorted(self.cards):
            digest.update(self.cards[site].text().encode())
        return digest.hexdigest()

    def _charge(self, ledger: Ledger, plan: Plan) -> str | None:
        at = None if plan.seeded else self.system.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ledger.charge(
            self.begun.run,
            plan.hash,
            [charge_of(plan, adversary) for adversary in ADVERSARIES],
            rounds=plan.method.total,
            mechanism=write_tables({"method": plan.method.table()}),
            caps=caps_of(self.study),
            at=at,
        )
        return at

    def _entropy(self, plan: Plan) -> Entropy:
        if self.study.seed is not None:
            return Entropy.from_seed(self.study.seed)
        return Entropy.from_key(self.begun.key, context=plan.hash + self.begun.run)

    def _propose(self, plan: Plan, rows: Callable[[str], dict[str, Any]]) -> None:
        """Every site sees the plan, and its own records' rounds, and agrees."""
        values: dict[str, Any] = {"plan": plan.hash}
        if plan.seeded:
            values["seed"] = self.study.seed
        blocks = {"plan": write_plan(plan).encode()}
        asked = {site: Content(values=values, rows=rows(site), blocks=blocks) for site in self.cards}
        self._all("propose", asked, (plan.trust or Trust()).timeout, "accepted")

    def _relayed(self, plan: Plan) -> Any:
        """All rounds of a method without a server: carried here, and not read."""
        began, charged, last = self.system.seconds(), charge_of(plan, plan.target.adversary).epsilon, plan.method.total
        done: list[int] = []

        def ask(kind: str, turn: int, asked: Mapping[str, Content], wanted: str, /) -> dict[str, Answer]:
            return self._all(kind, asked, Trust().timeout, wanted, turn)

        def tick(turn: int) -> None:
            done.append(turn)
            if self.watch is not None:
                passed = self.system.seconds() - began
                self.watch(Progress(turn, last, len(done) / max(passed, 1e-9), charged))

        return relayed_model(plan, list(self.cards), ask, self.folder / "private" / "relayed", tick)

    def _rounds(self, plan: Plan, server: Serving) -> Any:
        """The last model; the state is on the disk before the next question leaves."""
        assert plan.trust is not None  # noqa: S101
        path = self.folder / "private" / "checkpoint"
        mark = sha256(f"{plan.hash} {self.begun.run}".encode()).hexdigest()
        found = load_checkpoint(path, plan=mark, run=self.begun.run)
        stand = server.begin() if found is None else Standing(found.round, np.array(found.state, dtype=np.float64))
        first, began = stand.round, self.system.seconds()
        charged = charge_of(plan, plan.target.adversary).epsilon
        while stand.round < server.last:
            stand = server.advance(stand, self._sum(plan.trust.timeout, server, stand))
            mine = Checkpoint(plan=mark, run=self.begun.run, round=stand.round, state=stand.row, counts={})
            save_checkpoint(path, mine)
            if self.watch is not None:
                passed = self.system.seconds() - began
                self.watch(Progress(stand.round, server.last, (stand.round - first) / max(passed, 1e-9), charged))
        return server.model(stand)

    def _sum(self, timeout: float, server: Serving, stand: Standing) -> Whole:
        """The sum of the next round over those who answered in time."""
        turn = stand.round
        match server.plan.trust.server if server.plan.trust is not None else "trusted":
            case "secure-aggregation":
                return self._masked_sum(timeout, server, stand)
            case "homomorphic":
                return self._encrypted_sum(timeout, server, stand)
        answers = self.post.ask(
            "step",
            turn,
            server.questions(stand),
            timeout,
            lambda site, answer: right(server, turn, site, answer),
            lambda answers: count(answers) >= least(server, turn),
        )
        return summed(server, turn, answers)

    def _masked_sum(self, timeout: float, server: Serving, stand: Standing) -> Whole:
        """The same behind masks: the aggregator learns the sum alone."""
        turn = stand.round

        def ask(stage: str, questions: Mapping[str, Content], needed: int, /) -> dict[int, bytes]:
            answers = self.post.ask(
                "masked",
                turn,
                questions,
                timeout,
                lambda site, answer: masked_server.right(server, turn, site, answer),
                lambda answers: sum(len(answer.content.blocks) for answer in answers.values()) >= needed,
            )
            return {int(name): data for one in answers.values() for name, data in one.content.blocks.items()}

        private, signed = self.folder / "private", server.plan.trust is not None and server.plan.trust.identities
        lists = Content.read((private / "roster").read_bytes()).blocks if signed else {}
        keys = roster_of(lists, self.cards, self.begun.run, server.plan.data.clients) if signed else {}
        return masked_server.masked_sum(server, self.begun.run, stand, ask, private / "masked", keys)

    def _encrypted_sum(self, timeout: float, server: Serving, stand: Standing) -> Whole:
        """The same under encryption: the aggregator adds, and a site opens the sum alone."""
        turn, private = stand.round, self.folder / "private"

        def ask(kind: str, questions: Mapping[str, Content], adder: Adder, /) -> dict[str, Answer]:
            def enough(answers: Mapping[str, Answer]) -> bool:
                return kind == "encrypt" and sum(len(a.content.blocks) for a in answers.values()) >= least(server, turn)

            def taken(site: str, answer: Answer) -> bool:
                no = kind == "open" and answer.kind == "refused"  # no use in asking again
                return no or encrypted_server.right(server, turn, site, answer, adder)

            return self.post.ask(kind, turn, questions, timeout, taken, enough)

        public = (private / "sums.public").read_bytes()
        return encrypted_server.encrypted_sum(server, stand, public, ask, self.cards, private / "encrypted")

    def _enrol(self, server: Serving) -> None:
        """For signed masks: every site's list of its clients' keys goes to every site, who checks them all."""
        trust, path = server.plan.trust, self.folder / "private" / "roster"
        if trust is None or trust.identities is None or path.exists():
            return
        found = self._all("enrol", {site: Content() for site in self.cards}, trust.timeout, "enrolled")
        lists = Content(blocks={site: answer.content.blocks.get("list", b"") for site, answer in found.items()})
        roster_of(lists.blocks, self.cards, self.begun.run, server.plan.data.clients)
        self._all("roster", dict.fromkeys(self.cards, lists), trust.timeout, "known")
        write_atomically(path, lists.write())

    def _share_key(self, server: Serving) -> None:
        """For encrypted sums: one site makes the key, the others get it sealed; here only its public half is kept."""
        trust, path = server.plan.trust, self.folder / "private" / "sums.public"
        if trust is None or trust.server != "homomorphic" or path.exists():
            return
        maker = maker_of(self.cards)
        made = self._all("make-key", {maker: Content()}, trust.timeout, "made")[maker].content.blocks
        for site in self.cards:
            if site != maker and site not in made:
                raise SiteRefused(f"Site {maker} has no public key of {site}: put it at peers/{site}.pub there.")
        encrypted_server.adder_of(server, made.get("public", b""), 0)
        asked = {site: Content(blocks={"key": made[site]}) for site in self.cards if site != maker}
        self._all("take-key", asked, trust.timeout, "taken")
        write_atomically(path, made["public"])

    def _release(self, plan: Plan, model: Any, entropy: Entropy, ledger: Ledger, at: str | None) -> dict[str, Any]:
        """Record the release, then make it; then tell the sites."""
        metrics = self._metrics(plan, model, entropy)
        data = model_file(plan, model)
        also = ["metrics.json"] if metrics["test"] else []
        ledger.release(self.begun.run, sha256(data).hexdigest(), also=also, at=at)
        write_atomically(self.folder / "model.npz", data, mode=PUBLIC)
        text = json.dumps(metrics, indent=1, allow_nan=False) + "\n"
        write_atomically(self.folder / "metrics.json", text.encode(), mode=PUBLIC)
        write_atomically(self.folder / "ledger.jsonl", ledger.export(self.begun.run), mode=PUBLIC)
        write_atomically(self.folder / "private" / "released", data)
        for name in ("checkpoint", "relayed", "encrypted"):
            (self.folder / "private" / name).unlink(missing_ok=True)
        self._finish(data)
        return metrics

    def _metrics(self, plan: Plan, model: Any, entropy: Entropy) -> dict[str, Any]:
        held = self.held.records
        if held is None:
            task = "classification" if plan.data.classes else "regression"
            return {"format": 1, "task": task, "test": None, "baselines": {}}
        # Without baselines nothing is measured on training records, so none are needed.
        loaded = Loaded(train=held, test=held, test_public=self.held.public, dropped_rows=0, feature_names=())
        return measure(plan, loaded, model, entropy)

    def _finish(self, data: bytes) -> None:
        """Every site gets the model and closes its record; one that is away now gets it when the run is resumed."""
        asked = {site: Content(blocks={"model": data}) for site in self.cards}
        plan = read_plan((self.folder / "plan.toml").read_text(encoding="utf-8"))
        seconds = _HELLO if plan.trust is None else plan.trust.timeout
        found = self.post.ask("finish", 0, asked, seconds, lambda _, answer: answer.kind == "recorded", _never)
        if len(found) == len(asked):
            (self.folder / "private" / "released").unlink(missing_ok=True)

    def _all(
        self, kind: str, asked: Mapping[str, Content], timeout: float, wanted: str, turn: int = 0
    ) -> dict[str, Answer]:
        """An answer from every site, or a refusal that says who did not give it."""
        found = self.post.ask(kind, turn, asked, timeout, lambda _, answer: answer.kind in (wanted, "refused"), _never)
        for site in sorted(asked):
            if site not in found:
                raise SiteRefused(
                    f"Site {site} did not answer within {timeout:.0f} seconds. Is its guard running, and its node? "
                    "Go on with --resume."
                )
            answer = found[site]
            if answer.kind == "refused":
                code = answer.content.values.get("code")
                raise SiteRefused(
                    f"Site {site} refuses: {REASONS.get(str(code), str(code)[:40])}. Go on with --resume."
                )
        return found


def _never(answers: Mapping[str, Answer]) -> bool:
    return False
