"""All sums of a plan, added up in this process: at once, in shares, behind masks or encrypted, as the trust says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedveil.core.errors import FedveilError, Interrupted
from fedveil.core.values import Vector
from fedveil.engine import answers
from fedveil.engine.answers import Answers
from fedveil.engine.keeper import Keeper
from fedveil.engine.run import BEFORE, Data, Released, Rows
from fedveil.engine.sums import stage_summing
from fedveil.engine.system import Progress, System
from fedveil.engine.train import train
from fedveil.ledger.costs import cost_of
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import AnyPlan, Plan
from fedveil.stages.adding import Fails, nobody_fails
from fedveil.stages.measuring import Measurer
from fedveil.stages.stage import Stage
from fedveil.stages.sums import ALL
from fedveil.stages.train.acting import Done, Interim
from fedveil.sums.seam import Summing

_DOING = {
    "preparation": "preparing: measuring with noise what the study does not state",
    "training": "training",
    "evaluation": "counting with noise how good the model is",
}
_ANSWERS = {"training": answers.NAME, "evaluation": answers.OF_EVALUATION}  # those of any other stage: OF_PREPARATION


@dataclass(frozen=True, slots=True, eq=False)
class Here:
    """Implements Adder, with one key: everybody answers, and nothing is kept."""

    plan: AnyPlan
    entropy: Entropy

    def answers(self, stage: Stage) -> tuple[Summing, Fails]:
        """Return what adds up the sums of a stage by parts, and who fails to answer."""
        return stage_summing(self.plan, stage, self.entropy), nobody_fails

    def measures(self, stage: str, rows: Rows, beside: Mapping[str, Vector]) -> Measurer:
        """Return what gives the noisy sums of a stage over these rows."""
        planned = next(one for one in self.plan.stages if one.name == stage)
        add_up, fails = self.answers(planned)
        own = [one.name for one in planned.sums.measurements]
        return Measurer(
            owner=rows.owner,
            clients=rows.clients,
            present=rows.present,
            target=self.plan.target,
            entropy=self.entropy,
            trust=self.plan.trust,
            add_up=add_up,
            fails=fails,
            served=stage == "evaluation" or all(one.served for one in self.plan.stages),
            names=ALL if own[0] in ALL else own,
        )

    def train(self, plan: Plan, data: Data, released: Released) -> Vector:
        """Train on all records, and return the last model."""
        public, start = data.public_test(released), released.get(BEFORE)
        return train(plan, data.train(released), self.entropy, public=public, start=start).model


@dataclass(frozen=True, slots=True, eq=False)
class KeptHere(Here):
    """The same for a run in a folder: who answered and the state of training are kept, so that it can go on.

    ``name``: of the run. ``watch`` is told of every round.
    """

    name: str
    folder: Path
    system: System
    watch: Callable[[Progress], None] | None = None

    @property
    def private(self) -> Path:
        """The folder of what must stay hidden."""
        return self.folder / "private"

    def progress(self, first: int = 0) -> Callable[[int, int], None]:
        """Return what tells the watcher how much is done, of how much, and how fast since now, when ``first`` were."""
        charged, began = cost_of(self.plan, self.plan.target.adversary).epsilon, self.system.seconds()

        def tell(done: int, total: int) -> None:
            if self.watch is not None:
                passed = self.system.seconds() - began
                self.watch(Progress(done, total, (done - first) / passed if passed > 0 else 0.0, charged))

        return tell

    def answers(self, stage: Stage) -> tuple[Summing, Fails]:
        """Return what adds up a stage and remembers who answered; a sum that is added up again has the same answers."""
        self.system.tell(_DOING.get(stage.name, "measuring with noise"))
        path = self.private / _ANSWERS.get(stage.name, answers.OF_PREPARATION)
        asked = Answers.open(path, self.name, self.system.fails, stage_summing(self.plan, stage, self.entropy))
        return asked.add_up, asked.fails

    def train(self, plan: Plan, data: Data, released: Released) -> Vector:
        """Train on all records, and return the last model.

        Algorithms that can resume keep private checkpoints; the others repeat the run with the same bytes.
        """
        records, (add_up, fails) = data.train(released), self.answers(plan.training)
        # identifies plan and data
        mark = sha256((plan.hash + records.fingerprint(self.name.encode())).encode()).hexdigest()
        kept = Keeper(self.private / "checkpoint", mark, self.name, Interim.read, self.system)
        begun, total = kept.begun(), plan.method.total
        tell = self.progress(0 if begun is None else begun.round)

        def after(state: Done) -> None:
            kept.note(state)
            tell(state.round, total)

        how: dict[str, Any] = {"add_up": add_up, "fails": fails, "public": data.public_test(released)}
        how["start"] = released.get(BEFORE)
        try:
            trained = train(plan, records, self.entropy, begun=begun, watch=after, **how)
        except FedveilError:
            kept.save()  # resuming asks for a refused round again, with the same noise
            raise
        except KeyboardInterrupt as error:
            kept.save()
            raise Interrupted(kept.advice(total)) from error
        kept.save()  # after a crash during the release, it need not be computed again
        if trained.chosen:
            self.system.tell(f"chosen segments: {', '.join(str(index + 1) for index in trained.chosen)}")
        return trained.model
