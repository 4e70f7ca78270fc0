"""One fit: planned from public quantities, charged, trained in memory, certified."""

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache

from fedveil.certificate.assumptions import Assumption, assumptions
from fedveil.certificate.certify import Certificate, Guarantee
from fedveil.core.values import Matrix, Vector
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.jobs.estimators.budget import Budget
from fedveil.jobs.estimators.preparing import LearnedRows, prepared
from fedveil.jobs.estimators.preparing import plan_of as prepared_plan
from fedveil.ledger.costs import covered
from fedveil.noise.entropy import Entropy
from fedveil.planning.design import make_plan
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.sums import NoisySums
from fedveil.stages.train.request import AlgorithmRequest, Task
from fedveil.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learning:
    """The cells that rows are to be made of, what is public about them, and what is measured.

    ``numbers``: what is to be predicted in its own unit, where its range is to be learned.
    """

    X: Matrix
    numbers: Vector | None
    outline: Outline
    preparation: NoisySums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """The model, the plan it came from, the run's name, and what the estimator itself assumed.

    ``rule``: the rule for rows, where it was learned; it is part of the model.
    """

    model: Vector
    plan: Plan
    run: str
    declared: tuple[Assumption, ...]
    rule: LearnedRows | None = None

    def certificate(self) -> Certificate:
        """Return what this fit promises to each observer."""
        guarantees = tuple(
            Guarantee(
                adversary=adversary,
                answer=promise(self.plan, adversary),
                assumptions=(*assumptions(self.plan, adversary), *self.declared),
            )
            for adversary in ADVERSARIES
        )
        released = {
            "what": "the final model",
            "file": "coef_, intercept_",
            "sha256": hashlib.sha256(_bytes(self.model, self.rule)).hexdigest(),
            "covered": covered(self.plan),
        }
        if self.rule is not None:
            released["what"] = "the final model and the preparation that was learned for it"
            released["file"] = "coef_, intercept_, rule_"
        return Certificate(
            plan=self.plan, run=self.run, version=__version__, guarantees=guarantees, released=(released,)
        )


def fit(
    records: Records,
    request: AlgorithmRequest,
    task: Task,
    *,
    seed: int | None,
    budget: Budget | None,
    declared: tuple[Assumption, ...],
    learning: Learning | None = None,
) -> Fitted:
    """Train; with a ``budget`` the whole cost is charged before the first record is looked at.

    ``learning``: what the rows of ``records`` are made of, where the rule for them is to be learned.
    """
    if learning is None:
        plan = plan_of(request, task, seed is not None)  # type: ignore[arg-type]  # schedule are frozen, so they hash
    else:
        plan = prepared_plan(request, task, learning.preparation, seed is not None)  # type: ignore[arg-type]
    run = os.urandom(16).hex()
    if budget is not None:
        budget.charge(run, plan)
    entropy = Entropy.from_system() if seed is None else Entropy.from_seed(seed)
    rule = None
    if learning is not None:
        rule, records = prepared(plan, learning.outline, learning.X, learning.numbers, records, entropy)
    model = train(plan, records, entropy).model
    if budget is not None:
        budget.release(run, _bytes(model, rule))
    return Fitted(model=model, plan=plan, run=run, declared=declared, rule=rule)


@lru_cache(maxsize=128)
def plan_of(request: AlgorithmRequest, task: Task, seeded: bool) -> Plan:
    """Return the plan of a fit; cached.

    Designing takes most of a fit's time and depends only on public quantities, so folds of the same size share a plan.
    """
    return make_plan("estimator", request, task, seeded=seeded).plan


def _bytes(model: Vector, rule: LearnedRows | None = None) -> bytes:
    learned = b"" if rule is None else rule.learned.text().encode() + repr(rule.target).encode()
    return bytes(model.astype("<f8").tobytes()) + learned
