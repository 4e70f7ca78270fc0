"""The audit of a run with canaries, from its folder: released model and private coins in, a finding out.

A canary's score is how far the model lies in the direction in which the canary alone would have pushed it; of a torch
model, how far the canary's loss fell. It uses only the released model and public facts, so publishing the outcome costs
no privacy of the records.
Pages: docs/audit-canaries.md, docs/theory/one-run-audit.md.
"""

from pathlib import Path

import numpy as np

from fedveil.audit.claim import claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.one_run import Family, finding_of_scores
from fedveil.certificate.certify import certify, read_records
from fedveil.core.errors import BadValue, require, why
from fedveil.core.files import read_file
from fedveil.core.values import Vector
from fedveil.data.canaries import canary_rows, other_targets, sign_rows
from fedveil.data.read_formats import model_arrays
from fedveil.engine import coins
from fedveil.engine.coins import check_commitment, read_coins
from fedveil.jobs.attack.observed_runs import with_noise
from fedveil.models.loss import NetworkLoss
from fedveil.planning.plan import Plan
from fedveil.stages.train.observation import attack_view
from fedveil.version import __version__

_POINTS = 16  # of the curve of a plan with other noise: fewer than of its own, which claims less and is faster


def one_run(folder: Path, *, alarm: float = 0.05) -> Finding:
    """Return a lower bound on the final model's epsilon at the plan's delta, wrong with chance at most ``alarm``.

    The records in the folder are checked as for a certificate; the coins must be those that were charged with the run.
    """
    plan, entries = read_records(folder)
    hint = "Add [audit] with canaries = 100 to the study, and run it again."
    require(plan.canaries, "The run", "have canaries to be audited", "none", hint)
    certify(folder, __version__)  # refuses a run that is incomplete or was changed
    kept = read_coins(folder / "private" / coins.NAME, plan.canaries)
    check_commitment(kept, entries[0].payload["extra"].get(coins.CHARGED))
    scores = canary_scores(plan, _model(folder))
    details = {"scores_in": _mean(scores[kept.coins]), "scores_out": _mean(scores[~kept.coins])}
    claim = claim_of_plan(plan, "final-model")
    return finding_of_scores(
        scores, kept.coins, claim, delta=plan.target.delta, family=family_of(plan), alarm=alarm, details=details
    )


def family_of(plan: Plan) -> Family | None:
    """Return what this plan promises of its final model with its noise multiplied; None if that is not known."""
    if plan.selection or attack_view(plan.method.kind) is None:
        return None
    return lambda times: claim_of_plan(with_noise(plan, times), "final-model", _POINTS)


def canary_scores(plan: Plan, model: Vector) -> Vector:
    """Return, for every canary, how far the model lies along the canary's first step from the zero model.

    Canaries have separate columns, so their steps are orthogonal and none hides another. Of a torch model: how far the
    canary's loss fell on the way from the start to the model, which adds its pushes up along that way.
    """
    count, loss = plan.canaries, plan.model.loss
    if isinstance(loss, NetworkLoss):
        return _falls(plan, loss, model)
    rows, targets = canary_rows(count, plan.real_features, plan.data.bound, plan.data.classes)
    zero, scores = np.zeros(plan.dimension), np.empty(count)
    for place in range(count):
        one = slice(place, place + 1)
        push, _ = loss.gradient(zero, rows[one], targets[one], clip=1.0)
        scores[place] = -float(push @ model) / max(float(np.linalg.norm(push)), 1e-300)
    return scores


def _falls(plan: Plan, loss: NetworkLoss, model: Vector) -> Vector:
    """Return how far each canary's loss fell; where its opposite was put in its place, by how much more than that's."""
    data, start = plan.data, np.zeros_like(model)
    rows, targets = sign_rows(plan.canaries, data.features, data.bound, data.classes)
    falls = loss.losses(start, rows, targets) - loss.losses(model, rows, targets)
    if plan.target.neighbours == "replace-one":
        other = other_targets(targets, data.classes)
        falls -= loss.losses(start, rows, other) - loss.losses(model, rows, other)
    return np.nan_to_num(falls, nan=0.0)  # a loss that is no number tells nothing


def _model(folder: Path) -> Vector:
    try:
        with model_arrays(read_file(folder / "model.npz")) as result:
            return np.asarray(result["parameters"], dtype=np.float64)
    except (OSError, ValueError, KeyError) as error:
        raise BadValue(f"The run's model.npz must be readable: {why(error)}.") from error


def _mean(scores: Vector) -> float | None:
    return float(scores.mean()) if scores.size else None
