"""How close synthetic rows are to public ones: marginals, dependence, and how near single rows are.

Everything here compares rows that may be seen by anybody, so nothing is charged. On private rows each number would be
a release.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.stages.synthesise.generator import Generator

_NEAREST: Final = 400  # public rows for which the nearest synthetic row is looked for
_AMONG: Final = 5000  # among so many


def compared(generator: Generator, synthetic: Indices, real: Indices) -> dict[str, Any]:
    """Return how far apart the marginals are, and how columns depend on each other in both; codes are fine cells."""
    merged = [own[synthetic[:, c]] for c, own in enumerate(generator.groups)]
    truth = [own[real[:, c]] for c, own in enumerate(generator.groups)]
    return compared_cells(generator.names, generator.sizes, merged, truth)


def compared_cells(
    names: Sequence[str], sizes: Sequence[int], merged: Sequence[Indices], truth: Sequence[Indices]
) -> dict[str, Any]:
    """Return the same of cells, a column at a time: those of synthetic rows, and those of public ones."""
    ones = {name: distance(shares(truth[c], sizes[c]), shares(merged[c], sizes[c])) for c, name in enumerate(names)}
    pairs, links = {}, {"synthetic": np.eye(len(names)), "real": np.eye(len(names))}
    for first, second in itertools.combinations(range(len(names)), 2):
        size = sizes[first] * sizes[second]
        tables = {
            "synthetic": shares(merged[first] * sizes[second] + merged[second], size),
            "real": shares(truth[first] * sizes[second] + truth[second], size),
        }
        pairs[first, second] = distance(tables["real"], tables["synthetic"])
        for key, table in tables.items():
            link = dependence(table.reshape(sizes[first], sizes[second]))
            links[key][first, second] = links[key][second, first] = link
    return {
        "ones": ones,
        "pairs": [[names[a], names[b], value] for (a, b), value in pairs.items()],
        "mean_one": float(np.mean(list(ones.values()))),
        "mean_pair": float(np.mean(list(pairs.values()))),
        "dependence": {key: matrix.round(4).tolist() for key, matrix in links.items()},
    }


def shares(codes: Indices, size: int) -> Vector:
    """Return the share of rows in each cell."""
    return np.asarray(np.bincount(codes, minlength=size) / max(codes.size, 1), dtype=np.float64)


def distance(first: Vector, second: Vector) -> float:
    """Return the total-variation distance: the largest difference of any event's chance.

    >>> distance(np.array([0.5, 0.5]), np.array([0.75, 0.25]))
    0.25
    """
    return float(np.abs(first - second).sum() / 2)


def dependence(table: Matrix) -> float:
    """Return Cramer's V of a table of shares: 0 for independent columns, 1 if one decides the other.

    >>> dependence(np.eye(2) / 2), dependence(np.full((2, 2), 0.25))
    (1.0, 0.0)
    """
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    if min(table.shape) < 2:
        return 0.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0))
    squares = float(((table - expected) ** 2 / expected).sum())
    return min(1.0, math.sqrt(squares / (min(table.shape) - 1)))


def nearest(synthetic: Indices, rows: Indices, most: int = _NEAREST) -> Vector:
    """Return in how many columns each of the first rows differs from the synthetic row that is nearest to it."""
    found = np.full(min(rows.shape[0], most), synthetic.shape[1], dtype=np.float64)
    among = synthetic[:_AMONG]
    for place in range(found.size):
        found[place] = (among != rows[place]).sum(axis=1).min(initial=synthetic.shape[1])
    return found


def one_hot(generator: Generator, codes: Indices) -> Matrix:
    """Return rows of zeros and ones for all columns but the last, the target, and a constant."""
    blocks = [
        np.eye(size)[own[codes[:, c]]]
        for c, (own, size) in enumerate(zip(generator.groups, generator.sizes, strict=True))
    ]
    return np.hstack([*blocks[:-1], np.ones((codes.shape[0], 1))])
