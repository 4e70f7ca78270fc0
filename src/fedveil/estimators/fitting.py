"""One fit: planned from public quantities, charged, trained in memory, certified."""

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache

from fedveil.algorithms.request import AlgorithmRequest, Task
from fedveil.certificate.assumptions import Assumption, assumptions
from fedveil.certificate.certify import Certificate, Guarantee
from fedveil.data.records import Records
from fedveil.design import make_plan
from fedveil.estimators.budget import Budget
from fedveil.ledger.costs import covered
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from fedveil.promises import ADVERSARIES, promise
from fedveil.run.train import train
from fedveil.values import Vector
from fedveil.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """The model, the plan it came from, the run's name, and what the estimator itself assumed."""

    model: Vector
    plan: Plan
    run: str
    declared: tuple[Assumption, ...]

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
            "sha256": hashlib.sha256(_bytes(self.model)).hexdigest(),
            "covered": covered(self.plan),
        }
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
) -> Fitted:
    """Train; with a ``budget``, the whole cost is charged before the first record is looked at."""
    plan = plan_of(request, task, seed is not None)  # type: ignore[arg-type]  # schedule are frozen, so they hash
    run = os.urandom(16).hex()
    if budget is not None:
        budget.charge(run, plan)
    entropy = Entropy.from_system() if seed is None else Entropy.from_seed(seed)
    model = train(plan, records, entropy).model
    if budget is not None:
        budget.release(run, _bytes(model))
    return Fitted(model=model, plan=plan, run=run, declared=declared)


@lru_cache(maxsize=128)
def plan_of(request: AlgorithmRequest, task: Task, seeded: bool) -> Plan:
    """Return the plan of a fit; cached.

    Designing takes most of a fit's time and depends only on public quantities, so folds of the same size share a plan.
    """
    return make_plan("estimator", request, task, seeded=seeded).plan


def _bytes(model: Vector) -> bytes:
    return bytes(model.astype("<f8").tobytes())
