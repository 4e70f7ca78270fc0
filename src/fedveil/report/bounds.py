"""Generalisation bounds in one table, for `fedveil bounds`, beside a simulation of the Gaussian mean.

Averaging K nodes divides the generalisation gap by K.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedveil.core.errors import CannotCertify, require
from fedveil.core.values import Vector
from fedveil.planning.plan import Plan
from fedveil.planning.promises import promise
from fedveil.privacy.guarantee import Adversary
from fedveil.theory.generalization import (
    GaussianMean,
    Network,
    SubGaussian,
    coded_bound,
    dataset_bound,
    federated_bound,
    locally_private_bound,
    private_information,
    stable_bound,
)

_BLOCK = 1_000_000  # most normal variates in memory at a time
_DELTAS = (1e-3, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5)  # at which a run's promise is looked at, beside its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is simulated: samples per node, dimensions, spread, and trials."""

    samples: int = 10
    dimension: int = 3
    deviation: float = 1.0
    trials: int = 2_000

    def __post_init__(self) -> None:
        require(self.trials >= 2, "Problem.trials", "be at least 2", self.trials, "One has no standard error.")
        self.case(nodes=1)  # refuses what the theory refuses

    def case(self, nodes: int) -> GaussianMean:
        """Return the same problem in the form of the theory, with so many nodes."""
        network = Network(nodes=nodes, samples=self.samples)
        return GaussianMean(network=network, d=self.dimension, sigma=self.deviation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of nodes: the simulated gap next to its exact value and the two bounds."""

    nodes: int
    gap: float
    standard_error: float
    exact: float
    centralised: float
    federated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """The exponent of the number of nodes fitted to each column, with a standard error for the simulation."""

    gap: float
    standard_error: float
    centralised: float
    federated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of the whole experiment, one for each number of nodes."""

    problem: Problem
    rows: tuple[Row, ...]

    def slopes(self) -> Slopes:
        """Fit lines to log(column) against log(nodes), by least squares."""
        require(len(self.rows) >= 2, "Table.rows", "have at least two numbers of nodes", len(self.rows))
        require(
            all(row.gap > 0 for row in self.rows),
            "Table.rows",
            "have positive gaps",
            self.rows,
            "Add trials.",
        )
        x = np.log([row.nodes for row in self.rows])
        weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
        relative = np.array([row.standard_error / row.gap for row in self.rows])
        return Slopes(
            gap=_slope(weights, [row.gap for row in self.rows]),
            standard_error=float(np.sqrt(((weights * relative) ** 2).sum())),
            centralised=_slope(weights, [row.centralised for row in self.rows]),
            federated=_slope(weights, [row.federated for row in self.rows]),
        )


def simulate(problem: Problem, node_counts: Sequence[int], generator: np.random.Generator) -> Table:
    """Draw data, average the nodes' means, and compare the loss on new data with the loss on the old."""
    counts = list(node_counts)
    require(
        len(counts) >= 1 and len(set(counts)) == len(counts),
        "node_counts",
        "be distinct, at least one",
        counts,
    )
    return Table(problem=problem, rows=tuple(_row(problem, nodes, generator) for nodes in counts))


def _row(problem: Problem, nodes: int, generator: np.random.Generator) -> Row:
    case = problem.case(nodes)
    gaps = _gaps(problem, nodes, generator)
    return Row(
        nodes=nodes,
        gap=float(gaps.mean()),
        standard_error=float(gaps.std(ddof=1)) / math.sqrt(problem.trials),
        exact=case.gap(),
        centralised=case.centralised_bound(),
        federated=case.federated_bound(),
    )


def _gaps(problem: Problem, nodes: int, generator: np.random.Generator) -> Vector:
    """Return one gap per trial, with the loss of the true mean (here 0) subtracted on both sides.

    On new data that difference is |W|^2, exactly. On the old data it is computed. The true mean's loss is on average
    the same on old and new data, so the expected gap is unchanged and most of the noise is gone.
    """
    per_trial = nodes * problem.samples * problem.dimension
    step = max(1, _BLOCK // per_trial)
    blocks: list[Vector] = []
    for start in range(0, problem.trials, step):
        trials = min(step, problem.trials - start)
        shape = (trials, nodes, problem.samples, problem.dimension)
        data = problem.deviation * generator.standard_normal(shape)
        model = data.mean(axis=2).mean(axis=1)  # the mean of each node, then the mean of the nodes
        excess = (data - model[:, None, None, :]) ** 2 - data**2
        old = excess.sum(axis=3).mean(axis=(1, 2))
        blocks.append(np.asarray((model**2).sum(axis=1) - old, dtype=np.float64))
    return np.concatenate(blocks)


def _slope(weights: Vector, column: Sequence[float]) -> float:
    return float((weights * np.log(column)).sum())


class BoundRow(NamedTuple):
    """One row: which bound, its value, and what it assumes."""

    name: str
    value: float
    assumes: str


def generalisation_table(
    *,
    nodes: int,
    samples: int,
    sub_gaussian: float,
    information: float | None,
    local_epsilon: float | None,
    bits: float | None,
    dimension: int,
    trials: int,
    generator: np.random.Generator,
) -> list[BoundRow]:
    """Return every bound that the given numbers allow, and always the Gaussian-mean example."""
    network, tail = Network(nodes=nodes, samples=samples), SubGaussian(sub_gaussian)
    location = "location loss or linear model with fixed inputs, local minimisers averaged"
    rows = []
    if information is not None:
        rows.append(BoundRow("one-node", dataset_bound(tail, information, samples), "sub-Gaussian loss"))
        rows.append(BoundRow("federated", federated_bound(tail, [information] * nodes, samples), location))
    if local_epsilon is not None:
        rows.append(BoundRow("locally-private", locally_private_bound(tail, network, local_epsilon), location))
    if bits is not None:
        rows.append(BoundRow("coded", coded_bound(tail, network, bits), location))
    example = GaussianMean(network=network, d=dimension, sigma=1.0)
    what = "Gaussian mean, squared loss, unit variance"
    rows.append(BoundRow("gaussian-mean-centralised", example.centralised_bound(), what))
    rows.append(BoundRow("gaussian-mean-federated", example.federated_bound(), what))
    rows.append(BoundRow("gaussian-mean-exact-gap", example.gap(), what))
    if trials:
        require(10 <= trials <= 10**6, "simulate", "lie between 10 and 1e6 trials", trials)
        problem = Problem(samples=samples, dimension=dimension, trials=trials)
        row = simulate(problem, [nodes], generator).rows[0]
        rows.append(
            BoundRow(
                "gaussian-mean-simulated",
                row.gap,
                f"{trials} trials, standard error {row.standard_error:.2g}",
            )
        )
    return rows


def stability_words(plan: Plan) -> str:
    """Return what the bound of a run says of whom, and what it assumes."""
    unit = plan.target.unit
    return f"a loss between 0 and 1 (such as the share of errors), and {unit}s drawn independently from one population"


def bounds_of_run(plan: Plan, *, private: bool) -> list[BoundRow]:
    """Return how much greater the expected loss of a run's model may be on new units than on those of training.

    ``private``: whether the certificate covers the model; otherwise nothing can be said. Numbers of clients and records
    and local epsilon are the plan's.
    """
    points = _points(plan, "final-model") if private else []
    found = stable_bound(points, exchanged=plan.target.neighbours == "replace-one")
    rows = [BoundRow("stable", found, stability_words(plan))]
    local = _epsilon(plan, "server", plan.target.delta) if private and plan.data.clients > 1 else math.inf
    if math.isfinite(local):
        held = plan.data.smallest_client if plan.target.unit == "client" else 1
        value = SubGaussian(0.5).inverse(private_information(local) / held) / plan.data.clients
        assumes = (
            f"comparison, not proved of this run: {plan.data.clients} nodes that are {local:.4g}-locally private, if "
            "delta were 0, train once and are averaged; location loss between 0 and 1"
        )
        rows.append(BoundRow("locally-private", value, assumes))
    return rows


def _points(plan: Plan, adversary: Adversary) -> list[tuple[float, float]]:
    """Return what is promised against an observer, as pairs (epsilon, delta)."""
    found = []
    for delta in sorted({plan.target.delta, *_DELTAS}):
        epsilon = _epsilon(plan, adversary, delta)
        found += [(epsilon, delta)] if math.isfinite(epsilon) else []
        if epsilon == 0:
            break
    return found


def _epsilon(plan: Plan, adversary: Adversary, delta: float) -> float:
    try:
        return promise(plan, adversary, delta).epsilon
    except CannotCertify:
        return math.inf
