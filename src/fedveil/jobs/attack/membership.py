"""Membership inference on a study's own records, by runs of the real trainer with each record in or out by a coin.

A record that is out is a row of zeros, which moves no linear model, so the shape of the data, the plan and its
certificate do not change. Everything here reads private records, so its results are for the data holder. Page:
audit-membership.md.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from fedveil.audit.claim import Claim, claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.membership import Shadows, lira_offline, lira_online, membership_finding
from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.jobs.local import Given, Wanted, open_study
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.stages.train.registry import pulls_when_empty


def membership(
    study: Wanted, data: Given = None, *, shadows: int = 64, alarm: float = 0.05, entropy: Entropy | None = None
) -> tuple[Finding, ...]:
    """Run three attacks (loss threshold, LiRA online and offline).

    Return what each proves, and its curve over all runs.

    There are ``shadows`` runs, each attacked with the others as its shadows, and one more with its own coins, attacked
    for the bound. ``entropy`` gives coins and noise; the system's by default.
    """
    found, loaded = open_study(study, data)
    plan = replace(found, canaries=0).planned(loaded.train.shape).plan
    seen = watched(plan, loaded.train, shadows + 1, Entropy.from_system() if entropy is None else entropy)
    return attacked(plan, seen, alarm=alarm)


def watched(
    plan: Plan, records: Records, runs: int, entropy: Entropy, tell: Callable[[str], None] = lambda _: None
) -> Shadows:
    """Run the plan with some records out: shadow runs that contain each record half of the time, then a run to attack.

    The bound needs the coins of the last run to be fair and independent of everything.
    """
    require(9 <= runs <= 100_000, "shadows", "lie between 8 and 99999", runs - 1)
    check_zeroing(plan)
    confidence = np.empty((runs, len(records)))
    words = entropy.words("membership coins", 0, runs * len(records)).reshape(runs, len(records))
    coins = words < np.uint64(2**63)
    coins[:-1] = words[:-1].argsort(axis=0).argsort(axis=0) < (runs - 1) // 2
    for run in range(runs):
        tell(f"training shadow model {run + 1} of {runs}")
        mine = replace(records, features=np.ascontiguousarray(records.features * coins[run][:, None]))
        key = entropy.words("membership run", run, 4).tobytes()
        model = train(plan, mine, Entropy.from_key(key)).model
        confidence[run] = confidences(plan, model, records)
    return Shadows(confidence, coins)


def attacked(plan: Plan, shadows: Shadows, *, claim: Claim | None = None, alarm: float = 0.05) -> tuple[Finding, ...]:
    """Run three attacks on the observed runs; the bound is about the last run.

    ``claim``: what to compare with, by default the plan's own. All losses here decrease with the confidence, so a
    threshold on one is a threshold on the other.
    """
    plain, runs = shadows.confidence, shadows.coins.shape[0]
    claim = claim_of_plan(plan, "final-model") if claim is None else claim
    attacks = {"loss threshold": plain, "LiRA online": np.empty_like(plain), "LiRA offline": np.empty_like(plain)}
    for run in range(runs):
        others = np.arange(runs) != run
        rest = Shadows(shadows.confidence[others], shadows.coins[others])
        attacks["LiRA online"][run] = lira_online(rest, shadows.confidence[run])
        attacks["LiRA offline"][run] = lira_offline(rest, shadows.confidence[run])
    return tuple(
        membership_finding(
            name,
            scores[-1],
            shadows.coins[-1],
            claim,
            pooled=(scores.ravel(), shadows.coins.ravel()),
            delta=plan.target.delta,
            alarm=alarm,
        )
        for name, scores in attacks.items()
    )


def check_zeroing(plan: Plan) -> None:
    """Refuse plans in which a row of zeros does not mean that a record is out."""
    hint = "Only losses of linear scores are known to the attack."
    require(plan.model.linear, "model.kind", "be one that the attack knows", plan.model.kind, hint)
    kind = plan.method.kind
    pulled = pulls_when_empty(kind) and plan.model.l2 > 0 and plan.target.neighbours == "zero-out"
    require(not pulled, "model.l2", f"be 0 for {kind} with zero-out neighbours here", plan.model.l2)


def confidences(plan: Plan, model: Vector, records: Records) -> Vector:
    """Return ln(p/(1-p)) of the right class for every record; for regression minus the absolute error."""
    scores = records.features @ model.reshape(records.features.shape[1], plan.model.loss.outputs)
    targets = np.where(records.blank, 0.0, records.targets)  # a blank record is out in every run, and shows nothing
    if plan.data.classes == 0:
        return np.asarray(-np.abs(scores[:, 0] - targets))
    if scores.shape[1] == 1:
        return np.asarray((2 * targets - 1) * scores[:, 0])
    here, right = np.arange(len(records)), targets.astype(np.int64)
    others = scores.copy()
    others[here, right] = -np.inf
    return np.asarray(scores[here, right] - logsumexp(others, axis=1))
