"""The score of a trial, on held-out records: as it is where they are public, with noise where they are private.

A private score adds up at most 1 for every unit (a record, or the mean over a client's records) on a grid, and rounded
normal noise is added to the sum, so it is a Gaussian mechanism of which one unit moves the sum by at most 1.
"""

from collections.abc import Callable

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.models.metrics import evaluate_classes, mean_absolute_error
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.planning.plan import Plan
from fedveil.planning.selection import SCORE_STEPS, Selection

_LOWER_IS_BETTER = ("log_loss", "mae")


def score_of(plan: Plan, selection: Selection, model: Vector, held: Records, entropy: Entropy) -> float:
    """Return the score of a model of this candidate, larger for a better one."""
    if selection.score == "private":
        return _noisy(plan, selection, model, held, entropy)
    return _public(plan, selection.metric, model, held.present())


def loss_on(plan: Plan, public: Records) -> Callable[[Vector], float]:
    """Return what tells the mean loss of a model on public records."""
    known = public.present()
    return lambda model: float(plan.model.loss.value(model, known.features, known.targets))


def unit_scores(plan: Plan, model: Vector, held: Records) -> Indices:
    """Return what each unit adds to a private score, in steps of the grid: 0 to ``SCORE_STEPS``."""
    known, loss = held.present(), plan.model.loss
    if loss.classes:
        each = (loss.predict(model, known.features) == known.targets).astype(np.float64)
    else:  # targets lie in [-1, 1]
        each = 1 - np.minimum(np.abs(loss.predict(model, known.features) - known.targets) / 2, 1.0)
    each = np.where(np.isfinite(each), each, 0.0)
    if plan.target.unit == "client":
        sums, counts = np.bincount(known.owner, each), np.bincount(known.owner)
        each = sums[counts > 0] / counts[counts > 0]
    return np.asarray(np.rint(np.clip(each, 0.0, 1.0) * SCORE_STEPS), dtype=np.int64)


def _noisy(plan: Plan, selection: Selection, model: Vector, held: Records, entropy: Entropy) -> float:
    """The noisy sum, over the number of held-out units, which is public."""
    noise = rounded_normal(entropy.stream("score"), selection.score_noise * SCORE_STEPS, 1)
    units = held.clients if plan.target.unit == "client" else len(held)
    return (int(unit_scores(plan, model, held).sum()) + int(noise[0])) / SCORE_STEPS / units


def _public(plan: Plan, metric: str, model: Vector, held: Records) -> float:
    loss = plan.model.loss
    if metric == "mae":
        return -mean_absolute_error(loss, model, held.features, held.targets)
    if metric == "accuracy":
        return float(np.mean(loss.predict(model, held.features) == held.targets))
    names = [str(k) for k in range(loss.classes)]
    found = evaluate_classes(loss, model, held.features, held.targets, names).get(metric)
    value = float("nan") if found is None else float(found)
    return -value if metric in _LOWER_IS_BETTER else value
