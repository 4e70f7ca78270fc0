"""The two sides of a stage as tests set them up: real sites, whoever adds up, and a run of both without a wire."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedveil.core.values import Indices
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.federation.aggregator.across import Across
from fedveil.federation.aggregator.post import Answer
from fedveil.federation.aggregator.trace import Trace
from fedveil.federation.aggregator.turn import Turn
from fedveil.federation.site.data import SiteData
from fedveil.federation.site.stages import SiteStages
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.planning.plan import Plan
from fedveil.stages.adding import Fails, nobody_fails, plain_sum
from fedveil.stages.protocol import HERE, Consortium, Member
from fedveil.stages.train.acting import TrainAsking, Trained, acts_of
from fedveil.stages.train.base import Training
from fedveil.sums.seam import Summing, Whole
from fedveil.wire.content import Content


def share(entropy: Entropy, client: int, turn: int, steps: float, size: int) -> Whole:
    """A client's share of a turn's noise, of a deviation of so many grid steps, from its address alone."""
    return rounded_normal(entropy.stream(f"share {client}", turn), steps, size)


def site_of(
    plan: Plan,
    records: Records,
    numbers: Sequence[int],
    entropy: Entropy,
    folder: Path,
    place: Indices | None = None,
) -> SiteStages:
    """A site that holds these records of clients with these numbers in the study.

    ``place``: the rounds that its records are dealt into, if they are; ``folder``: for what must survive a restart.
    """
    rows = {"numbers": np.array(numbers, dtype=np.int64)} | ({} if place is None else {"place": place})
    return SiteStages(plan, SiteData(records), Content(rows=rows), entropy, folder)


def site_here(plan: Plan, records: Records, entropy: Entropy, folder: Path) -> SiteStages:
    """The one site that holds all records, which are dealt as the plan says."""
    proposal = asking_of(plan, Consortium.here(records), entropy).proposal(HERE)
    return SiteStages(plan, SiteData(records), Content(rows=proposal), entropy, folder)


def asking_of(plan: Training, members: Consortium, entropy: Entropy) -> TrainAsking:
    """Whoever adds up the rounds of a plan."""
    asking = acts_of(plan.method.kind).asking
    assert asking is not None
    return asking(plan, members, entropy)


def in_shares(
    plan: Plan, records: Records, entropy: Entropy, add_up: Summing = plain_sum, fails: Fails = nobody_fails
) -> Trained:
    """A run in this process, added up in this way."""
    return train(plan, records, entropy, add_up=add_up, fails=fails)


def held_by(records: Records, clients: Indices) -> tuple[Records, Indices]:
    """The records of some clients, which count them from 0, and the numbers of these records in the study."""
    mine = np.flatnonzero(np.isin(records.owner, clients))
    own = Records(
        features=records.features[mine],
        targets=records.targets[mine],
        owner=np.searchsorted(clients, records.owner[mine]).astype(np.int64),
        clients=clients.size,
        bound=records.bound,
        classes=records.classes,
    )
    return own, mine


def apart(records: Records, sites: Mapping[str, Indices]) -> Consortium:
    """Sites that hold the records of these clients."""
    members = {name: Member(clients, held_by(records, clients)[1]) for name, clients in sites.items()}
    return Consortium(members, records.shape, records.owner)


Result = TypeVar("Result")


class _StoppedError(Exception):
    """Ends one start of an aggregator."""


@dataclass(frozen=True)
class Table:
    """Adds up a turn as RoundSums does, at one table: real sites, made anew for every turn, and no wire between.

    ``fails``: whose answers are lost.
    """

    plan: Plan
    records: Records
    entropy: Entropy
    folder: Path
    sites: Mapping[str, Indices]
    proposals: Mapping[str, dict[str, Indices]]
    fails: Fails = nobody_fails
    run: str = "run"
    trace: Trace = field(default_factory=Trace)

    def prepare(self, lists: Mapping[str, bytes]) -> None: ...

    def site(self, name: str) -> SiteStages:
        private = self.folder / name
        private.mkdir(exist_ok=True, parents=True)
        own = held_by(self.records, self.sites[name])[0]
        return SiteStages(self.plan, SiteData(own), Content(rows=self.proposals[name]), self.entropy, private)

    def sum(self, turn: Turn) -> Whole:
        answers = {}
        for name, question in turn.questions.items():
            sent = self.site(name).parts(turn.number, Content.read(question.write()))
            kept = {client: part for client, part in sent.items() if not self.fails(turn.number, client)}
            if kept:
                rows = {"total": plain_sum(turn.number, kept).total}
                answers[name] = Answer("update", Content(values={"clients": sorted(kept)}, rows=rows))
                assert turn.right(name, answers[name])
        return turn.summed(answers)


def across_sites(
    plan: Plan,
    records: Records,
    entropy: Entropy,
    folder: Path,
    sites: Mapping[str, Indices],
    job: Callable[[Across], Result],
    fails: Fails = nobody_fails,
) -> Result:
    """What a job finds across sites, where the aggregator and all sites are killed after every turn."""
    members = apart(records, sites)
    proposals = {name: asking_of(plan, members, entropy).proposal(name) for name in sites}

    def stop(done: int, of: int) -> None:
        raise _StoppedError

    for _ in range(sum(stage.turns for stage in plan.stages) + 1):
        table: Any = Table(plan, records, entropy, folder, sites, proposals, fails)
        across = Across(plan=plan, members=members, sums=table, path=folder / "checkpoint", mark=plan.hash, tick=stop)
        across.open({})
        try:
            return job(across)
        except _StoppedError:
            continue
    raise AssertionError("the job has more turns than its plan")


def trained_across(
    plan: Plan,
    records: Records,
    entropy: Entropy,
    folder: Path,
    sites: Mapping[str, Indices],
    fails: Fails = nobody_fails,
) -> np.ndarray:
    """The model of a run across sites that are all killed after every turn."""

    def model(across: Across) -> np.ndarray:
        asking = asking_of(plan, across.members, entropy)
        return asking.model(across.rounds("training", asking))

    return across_sites(plan, records, entropy, folder, sites, model, fails)
