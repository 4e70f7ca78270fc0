"""Carry out a study across sites: agree, charge, ask round by round, record, release. A crash loses no charge.

The order is that of a run in one process. The question of a round is determined by the checkpoint that was on the disk
before, so a restarted aggregator asks the same question, and a site gives the same answer.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from fedveil.algorithms.across_sites import Consortium, Serving, Standing
from fedveil.algorithms.acting import Relay
from fedveil.algorithms.registry import acts_of
from fedveil.checks import require
from fedveil.data.load import Loaded
from fedveil.data.preparation import Labels
from fedveil.federation.aggregator.consortium import consortium
from fedveil.federation.aggregator.described import Described, described_by
from fedveil.federation.aggregator.evaluating import EvaluatedServer, check_evaluated, counted_held
from fedveil.federation.aggregator.held import Held, keep_rule, kept_rule
from fedveil.federation.aggregator.late_windows import LateWindows
from fedveil.federation.aggregator.post import Post
from fedveil.federation.aggregator.preparing import MeasuredServer, planned_outline
from fedveil.federation.aggregator.refusals import ask_all, never
from fedveil.federation.aggregator.round_sums import RoundSums
from fedveil.federation.agreements.terms import carried_by_sites
from fedveil.files import public_folder
from fedveil.ledger import Ledger
from fedveil.ledger.costs import cost_of
from fedveil.ledger.transaction import Transaction, caps_of, moment
from fedveil.limits import ENVELOPE
from fedveil.noise.entropy import KEY_BYTES, Entropy
from fedveil.plan import Plan, read_plan, write_plan
from fedveil.prepare.columns import Outline
from fedveil.prepare.learned import LearnedPreparation
from fedveil.prepare.statement import FILE as PREPARATION
from fedveil.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedveil.run.ending import LAST, destroy_secrets, has_released, written_metrics
from fedveil.run.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.run.measure import measure, plain, published
from fedveil.run.model_file import model_file
from fedveil.run.system import Progress, System
from fedveil.study import Study
from fedveil.trust import Trust
from fedveil.wire.content import Content
from fedveil.wire.keys import Card

_ATTEMPT: Final = 2**32  # most envelopes that one start of the aggregator may send
_HELLO: Final = 120.0  # seconds in which sites must introduce themselves, before there is a plan


@dataclass(frozen=True, slots=True)
class Trained:
    """A model that is ready for its release; ``learned`` and ``told``: what was measured before and after training."""

    model: Any
    learned: LearnedPreparation | None = None
    told: Callable[[Labels | None], dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """State of one start of an aggregator: the run's name and key, and the first number of its envelopes."""

    run: str
    key: bytes
    number: int


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse to begin in a folder that holds a run, and to resume in one that does not."""
    begun = (folder / "private" / "aggregator").exists()
    if resume:
        require(begun, "--resume", "name a folder with a run in it", str(folder))
    else:
        hint = "Name another folder, or go on with --resume."
        require(not begun and not (folder / "plan.toml").exists(), "--out", "be new", str(folder), hint)


def check_carried(plan: Plan) -> None:
    """Refuse a plan that sites cannot carry out together."""
    hint = "Add a [trust] table to the study: every site adds its own share of the noise."
    require(carried_by_sites(plan), "The study", "say whom the sites trust", None, hint)
    hint = "Leave speeds, jitter, delay and loss out: a real network has its own."
    require(plan.method.waits, "algorithm", "let clients wait for each other across sites", "a network", hint)
    most = ENVELOPE // 16  # leaves as many bytes again for everything around the model
    require(plan.dimension <= most, "The model", f"have at most {most} parameters across sites", plan.dimension)


def together(study: Study, members: Consortium) -> Study:
    """Return the study with ``trust.together`` set to the most clients that one of these sites holds.

    A curious site sees what all of its clients see.
    """
    most = max(member.clients.size for member in members.members.values())
    return replace(study, trust=study.trust.joined(most))


def begin(folder: Path, resume: bool, random: Callable[[int], bytes]) -> Begun:
    """Draw the run's name and key once, and count the starts of the aggregator.

    The count is on the disk before the first envelope leaves.
    """
    check_folder(folder, resume)
    public_folder(folder)
    private = private_folder(folder / "private")
    with sole_use(private):  # leaves an aggregator that is running here alone
        return _begun(folder, private, resume, random)


def _begun(folder: Path, private: Path, resume: bool, random: Callable[[int], bytes]) -> Begun:
    path, starts = private / "aggregator", private / "starts"
    if not resume:
        write_atomically(path, random(16 + KEY_BYTES))
    content = path.read_bytes()
    require(len(content) == 16 + KEY_BYTES, str(path), f"hold {16 + KEY_BYTES} bytes", len(content))
    count = 1 + (int(starts.read_text(encoding="ascii")) if starts.exists() else 0)
    write_atomically(starts, str(count).encode("ascii"))
    return Begun(run=content[:16].hex(), key=content[16:], number=count * _ATTEMPT)


@final
@dataclass(slots=True, kw_only=True)
class Federation:
    """One start of an aggregator; ``holder``: the deployment's third party, asked only if the plan needs one."""

    study: Study
    folder: Path
    cards: Mapping[str, Card]
    post: Post
    begun: Begun
    held: Held
    system: System
    watch: Callable[[Progress], None] | None = None
    holder: Card | None = None

    def conduct(self) -> dict[str, Any]:
        """Run the study and return the metrics that were written."""
        require(not self.study.baselines, "report.baselines", "be false across sites", True)
        with sole_use(self.folder / "private"):
            if has_released(self.folder):  # stopped between the release and the certificate
                self._end()
                return written_metrics(self.folder)
            members, described = self._members()
            plan, outline = self._plan(members, described)
            with Ledger.open(self._books(), self._fingerprint, urandom=self.system.random) as ledger:
                books = Transaction(ledger, self.begun.run, moment(plan, self.system.now()))
                books.charge(plan, caps=caps_of(self.study.books, self.study.target))
                entropy = self._entropy(plan)
                trained = self._train(plan, members, entropy, outline)
                keep_rule(self.folder, described, trained.learned)
                return self._release(plan, trained, entropy, books)

    def _train(self, plan: Plan, members: Consortium, entropy: Entropy, outline: Outline | None) -> "Trained":
        """Return the released model, and what was learned before and after it was trained, if anything was."""
        acts = acts_of(plan.method.kind)
        server = None if acts.serve is None else acts.serve(plan, members, entropy)
        measured = None if outline is None else MeasuredServer(plan, members, outline, server)
        first = measured or server
        numbers = {site: {"numbers": member.clients} for site, member in members.members.items()}
        self._propose(plan, numbers.__getitem__ if first is None else first.proposal)
        if acts.relay is not None:
            learned = None if measured is None else measured.learned(self._rounds(plan, members, measured))
            return Trained(self._relayed(plan, acts.relay), learned)
        assert server is not None  # noqa: S101  an algorithm has a server or a relay
        if plan.trust.patience is not None:
            return Trained(self._windows(plan, members, server))
        whole = measured or server
        if plan.evaluation is None:
            stand = self._rounds(plan, members, whole)
            return Trained(whole.model(stand), None if measured is None else measured.learned(stand))
        counting = EvaluatedServer(plan, members, whole)
        stand = self._rounds(plan, members, counting)
        learned = None if measured is None else measured.learned(counting.before(stand))
        return Trained(counting.model(stand), learned, lambda labels: counting.told(stand, labels))

    def _members(self) -> tuple[Consortium, Described]:
        """Return what the sites say about themselves, as kept at the first start, since the data of a run do not
        change.
        """
        path = self.folder / "private" / "members"
        if path.exists():
            kept = Content.read(path.read_bytes())
            said = {name: Content.read(block) for name, block in kept.blocks.items()}
            return consortium(said), described_by(said)
        asked = {site: Content() for site in self.cards}
        found = ask_all(self.post, "hello", asked, _HELLO, "here")
        said = {site: answer.content for site, answer in found.items()}
        made = consortium(said), described_by(said)
        write_atomically(path, Content(blocks={site: content.write() for site, content in said.items()}).write())
        return made

    def _plan(self, members: Consortium, described: Described) -> tuple[Plan, Outline | None]:
        path, study = self.folder / "plan.toml", together(self.study, members)
        preparation, outline, shape = planned_outline(study, described.outline, members.shape)
        theirs = counted_held(study, members, self.held.count)
        count, public = (self.held.count, self.held.public) if theirs is None else (theirs.records, False)
        planned = study.planned(shape, count, public, preparation, theirs, joint=True)
        plan = members.stated(planned.plan)
        check_carried(plan)
        check_evaluated(plan)
        relay = acts_of(plan.method.kind).relay
        if relay is not None:
            relay.check_parties(members)
        hint = "Write one that has: fedveil deploy init --key-holder NAME."
        held = not _outside(plan) or self.holder is not None
        require(held, "trust.key_holder", "be clients where a deployment has no key holder", "third-party", hint)
        if path.exists():
            begun = read_plan(path.read_text(encoding="utf-8"))
            hint = "Or begin in another folder."
            require(begun == plan, "The study", f"give the plan that was begun, {begun.hash}", plan.hash, hint)
        write_atomically(path, write_plan(plan).encode(), mode=PUBLIC)
        return plan, outline

    def _books(self) -> Path:
        """Return the path of the books. The aggregator has no data, so there is no default place beside them."""
        own = self.study.books.ledger
        hint = "Without one, each run has books of its own, and a cap would bind each alone."
        require(own is not None or not self.study.books.caps, "books.ledger", "be given with a cap", None, hint)
        return own or self.folder / "private" / "ledger.sqlite"

    def _fingerprint(self, key: bytes) -> str:
        """Return an identifier of the sites' keys, in place of one of data, since the aggregator has no data."""
        digest = blake2b(key=key, digest_size=32)
        for site in sorted(self.cards):
            digest.update(self.cards[site].text().encode())
        return digest.hexdigest()

    def _entropy(self, plan: Plan) -> Entropy:
        if self.study.seed is not None:
            return Entropy.from_seed(self.study.seed)
        return Entropy.from_key(self.begun.key, context=plan.hash + self.begun.run)

    def _propose(self, plan: Plan, rows: Callable[[str], dict[str, Any]]) -> None:
        """Send the plan to every site, with the rounds of its own records, and require that it agrees.

        The key holder, who has no data, is asked first.
        """
        values: dict[str, Any] = {"plan": plan.hash}
        if plan.seeded:
            values["seed"] = self.study.seed
        if self.study.prepare is not None and plan.preparation is not None:
            values |= {"components": self.study.prepare.components, "whiten": self.study.prepare.whiten}
        blocks = {"plan": write_plan(plan).encode()}
        seconds = plan.trust.timeout
        if _outside(plan) and self.holder is not None:
            asked = {self.holder.name: Content(values={"plan": plan.hash}, blocks=blocks)}
            ask_all(self.post, "propose", asked, seconds, "accepted", who="Key holder")
        asked = {site: Content(values=values, rows=rows(site), blocks=blocks) for site in self.cards}
        ask_all(self.post, "propose", asked, seconds, "accepted")

    def _relayed(self, plan: Plan, relay: Relay) -> Any:
        """Relay all rounds of a method without a server; the aggregator carries the messages and cannot read them."""
        tick = self._ticking(plan)

        def ask(kind: str, turn: int, asked: Mapping[str, Content], wanted: str, /) -> dict[str, Content]:
            said = ask_all(self.post, kind, asked, Trust().timeout, wanted, turn)
            return {site: answer.content for site, answer in said.items()}

        log = self.folder / "private" / "relayed"
        return relay.model(plan, list(self.cards), ask, log, lambda turn: tick(turn, plan.method.total))

    def _windows(self, plan: Plan, members: Consortium, server: Serving) -> Any:
        """Run all windows of sites that do not wait for each other, and return the last model."""
        return LateWindows(
            server=server,
            members=members,
            trust=plan.trust,
            post=self.post,
            private=self.folder / "private",
            mark=self._mark(plan),
            tick=self._ticking(plan),
        ).model()

    def _mark(self, plan: Plan) -> str:
        return sha256(f"{plan.hash} {self.begun.run}".encode()).hexdigest()

    def _rounds(self, plan: Plan, members: Consortium, server: Serving) -> Standing:
        """Run all rounds and return the last state, which is on the disk before the next question leaves.

        What a preparation has learned is told to the sites before training begins, and again after a restart.
        """
        private, mark, tick = self.folder / "private", self._mark(plan), self._ticking(plan)
        sums = RoundSums(
            server=server,
            trust=plan.trust,
            run=self.begun.run,
            private=private,
            cards=self.cards,
            post=self.post,
            holder=self.holder,
        )
        sums.prepare()
        path = private / "checkpoint"
        found = load_checkpoint(path, plan=mark, run=self.begun.run)
        stand = server.begin() if found is None else Standing(found.round, np.array(found.state, dtype=np.float64))
        first = server.then if isinstance(server, EvaluatedServer) else server
        told = not isinstance(first, MeasuredServer)
        while not told or stand.round < server.last:
            if isinstance(first, MeasuredServer) and not told and stand.round >= first.rounds:
                sums.tell_learned(first.sums(stand))
                told = True
                continue
            stand = server.advance(stand, sums.sum(stand))
            mine = Checkpoint(plan=mark, run=self.begun.run, round=stand.round, state=stand.row, counts={})
            save_checkpoint(path, mine)
            tick(stand.round, server.last)
        return stand

    def _ticking(self, plan: Plan) -> Callable[[int, int], None]:
        """Return a function that reports the progress to the watcher: rounds done, and rounds in all."""
        began, charged = self.system.seconds(), cost_of(plan, plan.target.adversary).epsilon
        told: list[int] = []

        def tick(done: int, last: int) -> None:
            told.append(done)
            if self.watch is not None:
                rate = len(told) / max(self.system.seconds() - began, 1e-9)
                self.watch(Progress(done, last, rate, charged))

        return tick

    def _release(self, plan: Plan, trained: "Trained", entropy: Entropy, books: Transaction) -> dict[str, Any]:
        """Record the release, then publish the model, then tell the sites."""
        model, learned = trained.model, trained.learned
        metrics = self._metrics(plan, model, entropy, learned)
        if trained.told is not None:
            rule = self.held.preparation or kept_rule(self.folder)
            metrics["evaluation"] = plain(trained.told(None if rule is None else rule.labels))
        data = model_file(plan, model, learned)
        also = ["metrics.json"] if metrics["test"] or trained.told is not None else []
        also += [] if learned is None else [PREPARATION]
        books.release(data, also=also)
        if learned is not None:
            write_atomically(self.folder / PREPARATION, learned.text().encode(), mode=PUBLIC)
        write_atomically(self.folder / "model.npz", data, mode=PUBLIC)
        text = json.dumps(metrics, indent=1, allow_nan=False) + "\n"
        write_atomically(self.folder / "metrics.json", text.encode(), mode=PUBLIC)
        write_atomically(self.folder / "private" / "released", data)  # kept until every site has received it
        write_atomically(self.folder / LAST, books.export(), mode=PUBLIC)
        self._end()
        return metrics

    def _metrics(self, plan: Plan, model: Any, entropy: Entropy, learned: LearnedPreparation | None) -> dict[str, Any]:
        held = self.held.rows(learned)
        if held is None:
            task = "classification" if plan.data.classes else "regression"
            return {"format": 1, "task": task, "test": None, "baselines": {}}
        # Without baselines nothing is measured on training records, so the aggregator needs none.
        loaded = Loaded(
            train=held,
            test=held,
            test_public=self.held.public,
            dropped_rows=0,
            feature_names=(),
            preparation=self.held.preparation if self.held.cells is None else kept_rule(self.folder),
        )
        return published(plan, measure(plan, loaded, model, entropy), self.folder / "private")

    def _end(self) -> None:
        """Destroy the secrets, then tell the sites that were not told yet; doing it again has no effect."""
        # The order of the rounds and the stop follow from the key, so it must stay secret; the name is still needed.
        write_atomically(self.folder / "private" / "aggregator", bytes.fromhex(self.begun.run) + bytes(KEY_BYTES))
        destroy_secrets(self.folder, ("checkpoint", "relayed", "masked", "encrypted", "windows"))
        released = self.folder / "private" / "released"
        if released.exists():
            self._finish(released.read_bytes())

    def _finish(self, data: bytes) -> None:
        """Send the model to every site, which closes its record; a site that is away gets it when the run is resumed.

        A key holder is told without the model, and destroys its key.
        """
        learned = self.folder / PREPARATION
        blocks = {"model": data, **({"preparation": learned.read_bytes()} if learned.exists() else {})}
        asked = {site: Content(blocks=blocks) for site in self.cards}
        plan = read_plan((self.folder / "plan.toml").read_text(encoding="utf-8"))
        if _outside(plan) and self.holder is not None:
            asked[self.holder.name] = Content()
        seconds = plan.trust.timeout if plan.method.served else _HELLO
        found = self.post.ask("finish", 0, asked, seconds, lambda _, answer: answer.kind == "recorded", never)
        if len(found) == len(asked):
            (self.folder / "private" / "released").unlink(missing_ok=True)


def _outside(plan: Plan) -> bool:
    """Return whether a third party holds the key of encrypted sums."""
    return plan.trust.key_holder == "third-party"
