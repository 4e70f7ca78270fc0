"""Carry out a study across sites: agree, charge, ask round by round, record, release. A crash loses no charge.

The order is that of a run in one process. The question of a round is determined by the checkpoint that was on the disk
before, so a restarted aggregator asks the same question, and a site gives the same answer.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from fedveil.algorithms.across_sites import Consortium, Serving, Standing
from fedveil.algorithms.acting import Relay
from fedveil.algorithms.registry import acts_of
from fedveil.checks import require
from fedveil.data.load import Loaded
from fedveil.data.row_rule import Labels
from fedveil.federation.aggregator.conversation import Conversation
from fedveil.federation.aggregator.described import Described
from fedveil.federation.aggregator.evaluating import EvaluatedServer, check_evaluated, counted_held
from fedveil.federation.aggregator.held import Held, keep_rule, kept_rule
from fedveil.federation.aggregator.late_windows import LateWindows
from fedveil.federation.aggregator.preparing import MeasuredServer, planned_outline
from fedveil.federation.aggregator.refusals import ask_all
from fedveil.federation.agreements.terms import carried_by_sites
from fedveil.ledger import Ledger
from fedveil.ledger.transaction import Transaction, caps_of, moment
from fedveil.limits import ENVELOPE
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan, read_plan, write_plan
from fedveil.prepare.columns import Outline
from fedveil.prepare.learned import LearnedRule
from fedveil.run.ending import LAST, has_released, written_metrics
from fedveil.run.files import PUBLIC, sole_use, write_atomically
from fedveil.run.measure import measure, plain, published
from fedveil.run.model_file import model_file
from fedveil.stages.sums import FILE as PREPARATION
from fedveil.study import Study
from fedveil.trust import Trust
from fedveil.wire.content import Content

_ATTEMPT: Final = 2**32  # most envelopes that one start of the aggregator may send
_HELLO: Final = 120.0  # seconds in which sites must introduce themselves, before there is a plan


@dataclass(frozen=True, slots=True)
class Trained:
    """A model that is ready for its release; ``learned`` and ``told``: what was measured before and after training."""

    model: Any
    learned: LearnedRule | None = None
    told: Callable[[Labels | None], dict[str, Any]] | None = None


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


@final
@dataclass(slots=True, kw_only=True)
class Federation:
    """A study that one start of an aggregator carries out with the sites of ``talk``."""

    study: Study
    talk: Conversation
    held: Held

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.talk.folder

    def conduct(self) -> dict[str, Any]:
        """Run the study and return the metrics that were written."""
        require(not self.study.baselines, "report.baselines", "be false across sites", True)
        with sole_use(self.folder / "private"):
            if has_released(self.folder):  # stopped between the release and the certificate
                self._end()
                return written_metrics(self.folder)
            members, described = self.talk.members()
            plan, outline = self._plan(members, described)
            path, random = self.talk.books(self.study.books), self.talk.system.random
            with Ledger.open(path, self.talk.fingerprint, urandom=random) as ledger:
                books = Transaction(ledger, self.talk.begun.run, moment(plan, self.talk.system.now()))
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
            learned = None if measured is None else measured.learned(self._rounds(plan, measured))
            return Trained(self._relayed(plan, acts.relay), learned)
        assert server is not None  # noqa: S101  an algorithm has a server or a relay
        if plan.trust.patience is not None:
            return Trained(self._windows(plan, members, server))
        whole = measured or server
        if plan.evaluation is None:
            stand = self._rounds(plan, whole)
            return Trained(whole.model(stand), None if measured is None else measured.learned(stand))
        counting = EvaluatedServer(plan, members, whole)
        stand = self._rounds(plan, counting)
        learned = None if measured is None else measured.learned(counting.before(stand))
        return Trained(counting.model(stand), learned, lambda labels: counting.told(stand, labels))

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
        self.talk.check_holder(plan)
        if path.exists():
            begun = read_plan(path.read_text(encoding="utf-8"))
            hint = "Or begin in another folder."
            require(begun == plan, "The study", f"give the plan that was begun, {begun.hash}", plan.hash, hint)
        write_atomically(path, write_plan(plan).encode(), mode=PUBLIC)
        return plan, outline

    def _entropy(self, plan: Plan) -> Entropy:
        if self.study.seed is not None:
            return Entropy.from_seed(self.study.seed)
        return Entropy.from_key(self.talk.begun.key, context=plan.hash + self.talk.begun.run)

    def _propose(self, plan: Plan, rows: Callable[[str], dict[str, Any]]) -> None:
        """Send the plan to every site, with the rounds of its own records, and require that it agrees."""
        values: dict[str, Any] = {}
        if plan.seeded:
            values["seed"] = self.study.seed
        if self.study.prepare is not None and plan.preparation is not None:
            values |= {"components": self.study.prepare.components, "whiten": self.study.prepare.whiten}
        self.talk.propose(plan, rows, values)

    def _relayed(self, plan: Plan, relay: Relay) -> Any:
        """Relay all rounds of a method without a server; the aggregator carries the messages and cannot read them."""
        tick = self.talk.ticking(plan)

        def ask(kind: str, turn: int, asked: Mapping[str, Content], wanted: str, /) -> dict[str, Content]:
            said = ask_all(self.talk.post, kind, asked, Trust().timeout, wanted, turn)
            return {site: answer.content for site, answer in said.items()}

        log = self.folder / "private" / "relayed"
        return relay.model(plan, list(self.talk.cards), ask, log, lambda turn: tick(turn, plan.method.total))

    def _windows(self, plan: Plan, members: Consortium, server: Serving) -> Any:
        """Run all windows of sites that do not wait for each other, and return the last model."""
        return LateWindows(
            server=server,
            members=members,
            trust=plan.trust,
            post=self.talk.post,
            private=self.folder / "private",
            mark=self.talk.mark(plan),
            tick=self.talk.ticking(plan),
        ).model()

    def _rounds(self, plan: Plan, server: Serving) -> Standing:
        """Run all rounds; what a preparation has learned is told to the sites before training begins."""
        first = server.then if isinstance(server, EvaluatedServer) else server
        if isinstance(first, MeasuredServer):
            return self.talk.rounds(plan, server, first.rounds, first.sums)
        return self.talk.rounds(plan, server)

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

    def _metrics(self, plan: Plan, model: Any, entropy: Entropy, learned: LearnedRule | None) -> dict[str, Any]:
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
        """Destroy the secrets, and send the model to the sites that do not have it yet."""
        learned = self.folder / PREPARATION
        plan = read_plan((self.folder / "plan.toml").read_text(encoding="utf-8"))
        more = {"preparation": learned.read_bytes()} if learned.exists() else {}
        if plan.method.served:
            self.talk.end(plan, more, plan.trust.timeout)
        else:
            self.talk.end(plan, more)
