"""Membership inference on a study's own records, by runs of the real trainer with each record in or out by a coin.

A record that is out is blank, so it contributes nothing, and the shape of the data, the plan and its certificate do not
change. Everything here reads private records, so its results are for the data holder. Page:
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
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.jobs.attack.pace import Pace
from fedveil.jobs.local import Given, Wanted, open_study
from fedveil.models.loss import NetworkLoss
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.stages.train.registry import pulls_when_empty

_MOST_RECORDS = 4000  # with coins; more would show little more, and each takes memory in every shadow run
_NEAR, _FAR = 1e-12, 600.0  # losses are told apart between these


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

    The bound needs the coins of the last run to be fair and independent of everything. The slots of canaries, which
    stand last, have no coins.
    """
    require(9 <= runs <= 100_000, "shadows", "lie between 8 and 99999", runs - 1)
    check_zeroing(plan)
    count = min(_MOST_RECORDS, len(records) - plan.canaries)
    confidence = np.empty((runs, count))
    words = entropy.words("membership coins", 0, runs * count).reshape(runs, count)
    coins = words < np.uint64(2**63)
    coins[:-1] = words[:-1].argsort(axis=0).argsort(axis=0) < (runs - 1) // 2
    pace = Pace(runs)
    for run in range(runs):
        tell(f"training shadow model {run + 1} of {runs}{pace.left(run)}")
        key = entropy.words("membership run", run, 4).tobytes()
        model = train(plan, blanked(records, np.flatnonzero(~coins[run])), Entropy.from_key(key)).model
        confidence[run] = confidences(plan, model, records.features[:count], records.targets[:count])
    return Shadows(confidence, coins)


def blanked(records: Records, out: Indices) -> Records:
    """Return the records with some of them blank: they count in every size and contribute nothing."""
    features, targets = records.features.copy(), records.targets.copy()
    features[out], targets[out] = 0.0, np.nan
    return replace(records, features=features, targets=targets)


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
    """Refuse plans in which a blank record does not mean that a record is out."""
    kind = plan.method.kind
    pulled = pulls_when_empty(kind) and plan.model.l2 > 0 and plan.target.neighbours == "zero-out"
    require(not pulled, "model.l2", f"be 0 for {kind} with zero-out neighbours here", plan.model.l2)


def confidences(plan: Plan, model: Vector, features: Matrix, targets: Vector) -> Vector:
    """Return how well the model knows each record: larger where it fits better, and roughly normal over runs.

    Of classes ln(p/(1-p)) of the right one, of numbers minus the absolute error, of other targets minus the loss.
    """
    loss, right = plan.model.loss, np.where(np.isnan(targets), 0.0, targets)  # a blank record is out in every run
    if isinstance(loss, NetworkLoss):
        losses = np.maximum(np.nan_to_num(loss.losses(model, features, right), nan=_FAR, posinf=_FAR), _NEAR)
        return np.asarray(-np.log(np.expm1(np.minimum(losses, _FAR))) if plan.data.classes else -losses)
    scores = features @ model.reshape(features.shape[1], loss.outputs)
    if loss.predicts not in ("class", "number"):
        rows = range(right.size)
        return np.array([-loss.value(model, features[i : i + 1], right[i : i + 1]) for i in rows])
    if plan.data.classes == 0:
        return np.asarray(-np.abs(scores[:, 0] - right))
    if scores.shape[1] == 1:
        return np.asarray((2 * right - 1) * scores[:, 0])
    here, label = np.arange(right.size), right.astype(np.int64)
    others = scores.copy()
    others[here, label] = -np.inf
    return np.asarray(scores[here, label] - logsumexp(others, axis=1))
