"""What DP-SGD and federated averaging release, round by round, in many runs of their real code at once.

A wide problem holds as many runs as it has parameters: run r has a victim of its own, whose row is zero but for feature
r, and reads parameter r. Clipping is by record or client, noise by parameter, coins by record or client, so the runs do
not touch each other. Sums are looked at from the zero model, where a victim pushes at its clip in every round.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fedveil.audit.game import Seen
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.guarantee import Adversary
from fedveil.method.dpsgd import DpSgd
from fedveil.method.fedavg import FedAvg
from fedveil.model.torch import TorchLoss
from fedveil.plan import Plan
from fedveil.train.dpsgd_client import Client
from fedveil.train.entropy import Entropy
from fedveil.train.fedavg import Held, Local, cohort_of, noise_of, summed, weights_of

Vector = NDArray[np.float64]
WIDTH = 200  # runs in one problem
Sums = Callable[[Plan, Records, Entropy], Vector]  # the released sums of all rounds, one a row
SEEN_BY: Mapping[str, Adversary] = {"dpsgd": "server", "fedavg": "every-model"}


@dataclass(frozen=True, slots=True)
class Push:
    """How far one use of a victim moves a sum, in units of its noise, and how likely it is used in a round."""

    size: float
    rate: float
    noise: float


def releases(plan: Plan, runs: int, entropy: Entropy, sums: Sums | None = None) -> tuple[Seen, Seen]:
    """What one who sees every release makes of many runs on each of two neighbouring data sets."""
    _check(plan)
    push, run = push_of(plan), sums or (dpsgd_sums if plan.method.kind == "dpsgd" else fedavg_sums)
    found = []
    for side in range(2):
        wide, records = wide_problem(plan, side == 0)
        parts = []
        for number in range(math.ceil(runs / WIDTH)):
            key = entropy.words(f"releases {side}", number, 4).tobytes()
            parts.append(run(wide, records, Entropy(key, private=False)).T)
        seen = -np.concatenate(parts)[:runs] / push.noise  # gradients point away from where the model goes
        if plan.method.kind == "fedavg":
            seen = -seen
        found.append(Seen(seen if seen.shape[1] <= 60 else seen[:, :0], _scores(seen, push)))
    return found[0], found[1]


def _check(plan: Plan) -> None:
    method, kind = plan.method, plan.method.kind
    require(kind in SEEN_BY, "algorithm.kind", f"be hidden, {' or '.join(SEEN_BY)} for the distinguishing game", kind)
    hint = "Audit it with canaries or membership inference."
    linear = not isinstance(plan.model.loss, TorchLoss) and plan.model.loss.outputs == 1
    require(linear, "model.kind", "be a loss of one linear score here", plan.model.kind, hint)
    sampling = getattr(method, "sampling", "")
    hint = "The runs of a wide problem would not be independent."
    require(sampling != "fixed-size", "algorithm.sampling", "not be fixed-size in this game", sampling, hint)
    single = not isinstance(method, DpSgd) or method.clipping == "individual"
    require(single, "algorithm.clipping", "be individual in this game", "batch", hint)


def wide_problem(plan: Plan, present: bool) -> tuple[Plan, Records]:
    """As many victims as parameters; on the second data set they are silent, or of the other class."""
    clients, each = isinstance(plan.method, FedAvg), rows_each(plan)
    rows = np.zeros((WIDTH * each, WIDTH))
    silent = not present and plan.target.neighbours == "zero-out"
    held = each if clients else 1  # a victim client's rows are all alike; of records one of each is the victim
    for run in range(WIDTH):
        rows[run * each : run * each + held, run] = 0.0 if silent else plan.data.bound
    high, low = (1.0, 0.0) if plan.data.classes else (1.0, -1.0)
    owner = np.repeat(np.arange(WIDTH), each) if clients else np.zeros(len(rows), dtype=np.int64)
    records = Records(
        features=rows,
        targets=np.full(len(rows), high if present or silent else low),
        owner=owner.astype(np.int64),
        clients=WIDTH if clients else 1,
        bound=plan.data.bound,
        classes=plan.data.classes,
    )
    return replace(plan, data=records.shape, method=_wide_method(plan)), records


def rows_each(plan: Plan) -> int:
    """Rows for each run: a client's own; of DP-SGD as many as a batch needs to have its rate, the others are silent.

    Coins are tossed for each record, whoever else is there; a shuffled batch is a whole number of records.
    """
    if not isinstance(plan.method, DpSgd):
        return plan.data.largest_client
    return 1 if plan.method.sampling == "poisson" else math.ceil(20 / (plan.method.posture(0).rate * WIDTH))


def _wide_method(plan: Plan) -> Any:
    method = plan.method
    if isinstance(method, FedAvg):
        return replace(method, cohort=method.cohort / plan.data.clients * WIDTH)
    return replace(method, postures=method.postures[:1], weights=()) if isinstance(method, DpSgd) else method


def dpsgd_sums(plan: Plan, records: Records, entropy: Entropy) -> Vector:
    """The noised sums that a client sends."""
    method = plan.method
    if not isinstance(method, DpSgd):
        raise TypeError("a dpsgd method was expected")
    client = Client(plan, method, 0, records.features, records.targets, entropy)
    start = np.zeros(plan.dimension)
    return np.stack([client.release(start, turn) * client.divisor for turn in range(client.posture.rounds)])


def fedavg_sums(plan: Plan, records: Records, entropy: Entropy) -> Vector:
    """The noised sums of all clients' updates."""
    method, model = plan.method, plan.model
    if not isinstance(method, FedAvg):
        raise TypeError("a fedavg method was expected")
    work = method.local_step, method.local_epochs, method.local_batch
    local = Local(model.loss, plan.constants.lipschitz, model.l2, *work)
    held, weights, unit = Held.of(records), weights_of(method, records.sizes), 2.0**plan.grid
    start, found = np.zeros(plan.dimension), []
    for turn in range(method.rounds):
        clients = cohort_of(method, plan.data.clients, entropy, turn)
        total, _ = summed(local, start, held, clients, weights, method.update_norm, unit, entropy, turn)
        found.append((total + noise_of(method, plan.dimension, unit, entropy, turn)) * unit)
    return np.stack(found)


def push_of(plan: Plan) -> Push:
    """What the plan says of a victim."""
    method, both = plan.method, 2.0 if plan.target.neighbours == "replace-one" else 1.0
    if isinstance(method, DpSgd):
        posture = method.posture(0)
        return Push(both / posture.noise, posture.rate, posture.noise * posture.clip)
    if isinstance(method, FedAvg):
        rate = min(1.0, method.cohort / plan.data.clients)
        return Push(both / method.noise_multiplier, rate, method.noise_std)
    raise TypeError("a dpsgd or fedavg method was expected")


def _scores(seen: Vector, push: Push) -> Vector:
    """Three thoughts: pushed in every round, in each by a coin, in one of all."""
    ratio = push.size * seen - push.size**2 / 2
    coin = np.logaddexp(math.log1p(-min(push.rate, 1 - 1e-12)), math.log(push.rate) + ratio).sum(axis=1)
    return np.stack([seen.sum(axis=1), coin, logsumexp(ratio, axis=1)], axis=1)
