"""Which pairs of columns are measured precisely: chosen by coarse counts of all pairs, and so free of charge.

All pairs were counted coarsely, with noise. Again and again the model is fitted to what is chosen so far, and pairs
whose coarse counts it gets most wrong are added, as long as they are wrong by more than the noise of measuring them
will be, and as long as the model stays within memory. (McKenna, Mullins, Sheldon and Miklau, AIM: an adaptive and
iterative mechanism for differentially private synthetic data, 2022, choose alike, by a private mechanism each time.)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedveil.core.values import Matrix
from fedveil.stages.synthesise.fit import Clique, Fitted, Marginal, Table, Tree, cells_of, fitted, junction_tree, summed

_STEPS: Final = 60  # of a fit between two choices
_MEAN: Final = math.sqrt(2 / math.pi)  # of the absolute value of a normal variable


@dataclass(frozen=True, slots=True)
class Limits:
    """How many pairs may be measured, how many cells they and the model may have, and the noise of one pair alone.

    ``noise``: the deviation, as a share of the records, with which a single pair would be measured.
    """

    pairs: int
    measured: int
    model: int
    noise: float


def chosen_pairs(
    sizes: Sequence[int],
    ones: Sequence[Marginal],
    coarse: Mapping[Clique, Marginal],
    weights: Mapping[Clique, float],
    limits: Limits,
) -> tuple[list[Clique], bool]:
    """Return the pairs to measure, the most wanted first, and whether a wanted one would have outgrown the limits."""
    chosen: list[Clique] = []
    limited = False
    tree = junction_tree(sizes, [])
    model = fitted(tree, ones, _STEPS)
    while len(chosen) < limits.pairs:
        scores = _scores(model, sizes, coarse, weights, limits, chosen)
        room = max(1, min((len(chosen) + 3) // 4, limits.pairs - len(chosen)))
        fresh, refused = _fitting(sizes, chosen, scores, limits, room)
        limited = limited or refused
        if not fresh:
            break
        chosen += fresh
        if len(chosen) >= limits.pairs:
            break
        tree = junction_tree(sizes, chosen)
        known = [*ones, *(coarse[pair] for pair in coarse if tree.home(pair) >= 0)]
        model = fitted(tree, known, _STEPS, model.potentials)
    return chosen, limited


def _scores(
    model: Fitted,
    sizes: Sequence[int],
    coarse: Mapping[Clique, Marginal],
    weights: Mapping[Clique, float],
    limits: Limits,
    chosen: list[Clique],
) -> list[tuple[float, Clique]]:
    """How much each pair would gain if it were measured: its error now, less that of the noise it would then have."""
    expected = _coarse_tables(model, coarse)
    noise = limits.noise * math.sqrt(len(chosen) + 1)
    found = []
    for pair, one in coarse.items():
        if pair in chosen:
            continue
        error = expected[pair] - one.shares
        squares = float((error * error).sum()) - error.size * one.deviation**2  # without what the noise adds
        size = math.sqrt(max(squares, 0.0) * error.size) * _MEAN
        gain = size - _MEAN * noise * cells_of(pair, sizes)
        if gain > 0:
            found.append((gain * weights.get(pair, 1.0), pair))
    return sorted(found, key=lambda one: (-one[0], one[1]))


def _fitting(
    sizes: Sequence[int], chosen: list[Clique], scores: list[tuple[float, Clique]], limits: Limits, room: int
) -> tuple[list[Clique], bool]:
    """The best of the scored pairs with which the model stays within its limits, and whether one had to be left out."""
    fresh: list[Clique] = []
    refused = False
    used = sum(cells_of(pair, sizes) for pair in chosen)
    for _, pair in scores:
        large = used + cells_of(pair, sizes) > limits.measured
        if large or junction_tree(sizes, [*chosen, *fresh, pair]).cells > limits.model:
            refused = True
            continue
        fresh.append(pair)
        used += cells_of(pair, sizes)
        if len(fresh) == room:
            break
    return fresh, refused


def _coarse_tables(model: Fitted, coarse: Mapping[Clique, Marginal]) -> dict[Clique, Table]:
    """Return the model's shares in the groups of every pair, wherever in the tree its columns are."""
    tables, tree = model.tables(), model.tree
    found: dict[Clique, Table] = {}
    away: dict[int, list[Clique]] = {}
    for pair, one in coarse.items():
        home = tree.home(pair)
        if home >= 0:
            found[pair] = one.counted(summed(tables[home], tree.cliques[home], pair))
        else:
            away.setdefault(pair[0], []).append(pair)
    for first, pairs in away.items():
        own = (coarse[pairs[0]].groups or (np.eye(tree.sizes[first]),))[0]
        joint = _joint_with(tree, tables, first, own, {pair[1] for pair in pairs})
        for pair in pairs:
            groups = coarse[pair].groups
            second = joint[pair[1]]
            found[pair] = second if groups is None else second @ groups[1].T
    return found


def _joint_with(tree: Tree, tables: list[Table], first: int, own: Matrix, wanted: set[int]) -> dict[int, Table]:
    """Return the joint shares of the groups ``own`` of one column and the cells of each wanted column.

    They are carried from clique to clique along the tree: given a separator, its two sides are independent.
    """
    start = tree.home([first])
    axis = tree.cliques[start].index(first)
    shape = [1] * tables[start].ndim
    shape[axis] = own.shape[1]
    stacked = tables[start][None] * np.stack([row.reshape(shape) for row in own])
    found: dict[int, Table] = {}
    waiting, seen = [(start, stacked)], {start}
    while waiting:
        place, table = waiting.pop()
        for other, column in enumerate(tree.cliques[place]):
            if column in wanted and column not in found:
                found[column] = table.sum(axis=tuple(a for a in range(1, table.ndim) if a != other + 1))
        for next_place, shared in _neighbours(tree, place):
            if next_place in seen:
                continue
            seen.add(next_place)
            below = summed(tables[next_place], tree.cliques[next_place], shared)
            over = table.sum(axis=tuple(a + 1 for a, column in enumerate(tree.cliques[place]) if column not in shared))
            ratio = np.divide(over, below[None], out=np.zeros_like(over), where=below[None] > 0)
            wide = [tree.sizes[c] if c in shared else 1 for c in tree.cliques[next_place]]
            waiting.append((next_place, tables[next_place][None] * ratio.reshape([own.shape[0], *wide])))
    return found


def _neighbours(tree: Tree, place: int) -> list[tuple[int, Clique]]:
    """The cliques next to this one, with the columns that they share with it."""
    found = [(child, tree.separators[child]) for child, parent in enumerate(tree.parents) if parent == place]
    return found if tree.parents[place] < 0 else [(tree.parents[place], tree.separators[place]), *found]
