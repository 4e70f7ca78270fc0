"""Generalisation bounds in one table, for `fedveil bounds`."""

from typing import NamedTuple

import numpy as np

from fedveil.checks import require
from fedveil.report.gaussian_mean import Problem, simulate
from fedveil.theory.generalization import (
    GaussianMean,
    Network,
    SubGaussian,
    coded_bound,
    dataset_bound,
    federated_bound,
    locally_private_bound,
)


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
