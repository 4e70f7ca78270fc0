"""What algorithms that hide nothing release, round by round, in many runs of their real code at once.

A wide problem holds as many runs as it has parameters: run r has its own victim, whose row is zero except for feature
r, and reads parameter r. Clipping is by record or client, noise by parameter, coins by record or client, so the runs do
not affect each other. Sums are observed at the zero model, where a victim pushes at its clip in every round. Of a torch
plan a linear layer takes the module's place: batches, torch's gradients, clip and noise are the plan's own.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from fedveil.audit.game import Seen
from fedveil.core.errors import BadValue, require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.jobs.attack.drawn_runs import picked_ratio
from fedveil.models.torch.criteria import STAND_IN
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.trust import CENTRAL
from fedveil.stages.evaluate.statement import NO_EVALUATION
from fedveil.stages.train.observation import Push, Releases, attack_view
from fedveil.theory.correlated import lfilter

WIDTH = 200  # number of runs in one problem
Sums = Callable[[Plan, Records, Entropy], Vector]  # returns the released sums of all rounds, one per row


def releases(plan: Plan, runs: int, entropy: Entropy, sums: Sums | None = None) -> tuple[Seen, Seen]:
    """Return what an observer of every release computes from many runs on each of two neighbouring data sets."""
    view, plan = view_of(plan), with_stand_in(plan)
    _check(plan)
    push, run = push_of(plan), sums or view.sums
    result = []
    for side in range(2):
        wide, records = wide_problem(plan, side == 0)
        parts = []
        for number in range(math.ceil(runs / WIDTH)):
            key = entropy.words(f"releases {side}", number, 4).tobytes()
            parts.append(run(wide, records, Entropy(key, private=False)).T)
        seen = view.towards * np.concatenate(parts)[:runs] / push.noise
        result.append(Seen(seen if seen.shape[1] <= 60 else seen[:, :0], scores(seen, push)))
    return result[0], result[1]


def view_of(plan: Plan) -> Releases:
    """Return how the releases of this plan are observed; refuse an algorithm whose releases are not known."""
    view = attack_view(plan.method.kind)
    if view is None or view.releases is None:
        raise BadValue(f"algorithm.kind must be one whose releases the game knows, and it is {plan.method.kind!r}.")
    return view.releases


def plays_torch(plan: Plan) -> bool:
    """Return whether the game knows torch models here: where records are protected and every sum is released.

    A client's own training of a torch model takes milliseconds, and a game would need hundreds of thousands of them.
    """
    view = attack_view(plan.method.kind)
    return view is not None and view.releases is not None and not view.releases.clients and not plan.method.hides


def with_stand_in(plan: Plan) -> Plan:
    """Return the plan with a linear layer without bias in the place of its torch module; other plans as they are.

    A row of zeros moves no such layer, and rows are so long that every victim pushes at its clip.
    """
    if plan.model.linear or plan.model.clip is None:
        return plan
    model = replace(plan.model, module=STAND_IN, criterion="logistic", classes=2, parameters=WIDTH)
    data = replace(plan.data, features=WIDTH, classes=2, bound=2.0**20 * plan.model.clip)
    return replace(plan, model=model, data=data, canaries=0, evaluation=NO_EVALUATION)


def _check(plan: Plan) -> None:
    hint = "Audit it with canaries or membership inference."
    linear = plan.model.loss.outputs == 1 if plan.model.linear else plays_torch(plan)
    require(linear, "model.kind", "be a loss of one linear score here", plan.model.kind, hint)
    sampling = getattr(plan.method, "sampling", "")
    hint = "The runs of a wide problem would not be independent."
    require(sampling != "fixed-size", "algorithm.sampling", "not be fixed-size in this game", sampling, hint)
    single = getattr(plan.method, "clipping", "individual") == "individual"
    require(single, "algorithm.clipping", "be individual in this game", "batch", hint)


def wide_problem(plan: Plan, present: bool) -> tuple[Plan, Records]:
    """Return a problem with as many victims as parameters.

    On the second data set they are absent, or of the other class.
    """
    view, each = view_of(plan), rows_each(plan)
    rows = np.zeros((WIDTH * each, WIDTH))
    silent = not present and plan.target.neighbours == "zero-out"
    held = each if view.clients else 1  # all rows of a victim client are alike; with records, one of each is the victim
    for run in range(WIDTH):
        rows[run * each : run * each + held, run] = 0.0 if silent else plan.data.bound
    high, low = (1.0, 0.0) if plan.data.classes else (1.0, -1.0)
    owner = np.repeat(np.arange(WIDTH), each) if view.clients else np.zeros(len(rows), dtype=np.int64)
    records = Records(
        features=rows,
        targets=np.full(len(rows), high if present or silent else low),
        owner=owner.astype(np.int64),
        clients=WIDTH if view.clients else 1,
        bound=plan.data.bound,
        classes=plan.data.classes,
    )
    # A client that sends records' sums adds all of their noise by itself, whoever adds up, masked or not, and who else
    # is there; so its releases are those of a run with this one client, which no mask could hide among others.
    trust = plan.trust if view.clients else CENTRAL
    method = view.widened(plan, WIDTH)
    wide = replace(plan, data=records.shape, method=method, trust=trust, evaluation=NO_EVALUATION, canaries=0)
    return wide, records


def rows_each(plan: Plan) -> int:
    """Return how many rows each run of a wide problem has."""
    return view_of(plan).rows(plan, WIDTH)


def push_of(plan: Plan) -> Push:
    """Return how a victim of this plan pushes the sums."""
    return view_of(plan).push(plan, 2.0 if plan.target.neighbours == "replace-one" else 1.0)


def scores(seen: Vector, push: Push) -> Vector:
    """Return scores for an attacker: the victim pushes in every round, in each by a coin, or in one of all.

    Where the victim picks one round of each pass also that, and what would tell if its draws were not what they should
    be: the same round in every pass, and never a round that is silent.
    """
    if push.column:
        return correlated_scores(seen, push)
    ratio = push.size * seen - push.size**2 / 2
    coin = np.logaddexp(math.log1p(-min(push.rate, 1 - 1e-12)), math.log(push.rate) + ratio).sum(axis=1)
    plain = [seen.sum(axis=1), coin, logsumexp(ratio, axis=1)]
    return np.stack([*plain, *_picked(seen, ratio, push)] if push.places else plain, axis=1)


def correlated_scores(seen: Vector, push: Push) -> Vector:
    """Return scores where noise is correlated over rounds: likelihood ratios of what its matrix makes of the sums.

    The matrix turns the noise into independent noise again, and each participation into one of its columns. The
    attacker knows that the victim comes back every ``places`` rounds, and does not know in which of them it began.
    """
    rounds = seen.shape[1]
    column = np.array(push.column[:rounds])
    plain, found = lfilter(column, [1.0], seen, axis=1), []
    for first in range(min(push.places, rounds)):
        columns = np.zeros((len(range(first, rounds, push.places)), rounds))
        for row, start in zip(columns, range(first, rounds, push.places), strict=True):
            row[start : start + column.size] = column[: rounds - start]
        moved = columns.sum(axis=0)[None] if push.rate >= 1 else columns
        ratio = push.size * plain @ moved.T - push.size**2 / 2 * np.sum(moved**2, axis=1)
        coin = np.logaddexp(math.log1p(-min(push.rate, 1 - 1e-12)), math.log(push.rate) + ratio)
        found.append((ratio if push.rate >= 1 else coin).sum(axis=1))
    each = np.stack(found, axis=1)
    return np.stack([logsumexp(each, axis=1), each.max(axis=1), seen.sum(axis=1), plain.sum(axis=1)], axis=1)


def _picked(seen: Vector, ratio: Vector, push: Push) -> list[Vector]:
    """Likelihood ratios of a victim that picks one round of each pass; those of a pass that was only begun too."""
    places = push.places
    passes = -(-seen.shape[1] // places)

    def by_pass(values: Vector) -> Vector:
        padded = np.pad(values, ((0, 0), (0, passes * places - seen.shape[1])))  # what is not seen tells nothing
        return padded.reshape(seen.shape[0], passes, places)

    ratios, pushed = by_pass(ratio), by_pass(seen) * (push.size / 2)
    fresh = picked_ratio(ratios, by_pass((seen == 0).astype(np.float64)) > 0)
    # An exchange: one record pushes ahead, the other back, each in a round of its own.
    exchange = (logsumexp(pushed, axis=2) - logsumexp(-pushed, axis=2)).sum(axis=1)
    both = pushed.sum(axis=1)
    return [fresh, exchange, logsumexp(ratios.sum(axis=1), axis=1), logsumexp(both, axis=1) - logsumexp(-both, axis=1)]
