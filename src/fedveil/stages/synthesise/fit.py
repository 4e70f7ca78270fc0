"""The distribution on a junction tree that agrees best with noisy marginals: mirror descent on squared errors.

Each marginal that was measured adds its squared error over its variance to the loss, which is convex in the marginals
of the model. A step moves the potential of a measured marginal against the gradient there; this is mirror descent with
entropy as its mirror (McKenna, Sheldon and Miklau, Graphical-model based estimation and inference for differential
privacy, 2019), and with momentum that is given up whenever it leads upward (O'Donoghue and Candes, Adaptive restart for
accelerated gradient schemes, 2015). All of it is post-processing of noisy sums.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.values import Matrix

Clique = tuple[int, ...]
Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tree:
    """``cliques``: sorted columns each, every parent before its children. ``parents``: places; -1 without one.

    ``separators``: the columns that a clique shares with its parent.
    """

    sizes: tuple[int, ...]
    cliques: tuple[Clique, ...]
    parents: tuple[int, ...]
    separators: tuple[Clique, ...]

    @property
    def cells(self) -> int:
        """How many numbers the tables of all cliques hold."""
        return sum(cells_of(clique, self.sizes) for clique in self.cliques)

    def home(self, columns: Iterable[int]) -> int:
        """Return the place of the smallest clique that holds all of these columns; -1 if there is none."""
        wanted = set(columns)
        holds = [place for place, clique in enumerate(self.cliques) if wanted <= set(clique)]
        return min(holds, key=lambda place: cells_of(self.cliques[place], self.sizes), default=-1)


def cells_of(columns: Iterable[int], sizes: Sequence[int]) -> int:
    """Return how many cells the table of these columns has (a Python number, which does not overflow)."""
    result = 1
    for column in columns:
        result *= int(sizes[column])
    return result


def junction_tree(sizes: Sequence[int], edges: Iterable[Clique]) -> Tree:
    """Return the tree for these edges, by eliminating first the column whose neighbours make the smallest table."""
    near: dict[int, set[int]] = {column: set() for column in range(len(sizes))}
    for first, second in edges:
        near[first].add(second)
        near[second].add(first)
    made: list[set[int]] = []
    left = dict(near)
    while left:
        column = min(left, key=lambda one: (cells_of({one, *left[one]}, sizes), one))
        around = left.pop(column)
        made.append({column, *around})
        for one in around:
            left[one] = (left[one] | around) - {one, column}
    kept = [one for place, one in enumerate(made) if not any(one <= other for other in _others(made, place))]
    return _joined(tuple(int(size) for size in sizes), [tuple(sorted(one)) for one in kept])


def _others(made: list[set[int]], place: int) -> list[set[int]]:
    """Cliques that may hold this one: those before it, if larger; of equal ones only the first is kept."""
    return [
        other
        for other_place, other in enumerate(made)
        if other_place != place and (len(other) > len(made[place]) or (other == made[place] and other_place < place))
    ]


def _joined(sizes: tuple[int, ...], cliques: list[Clique]) -> Tree:
    """Join the cliques by a spanning tree of largest separators, from the first clique outward."""
    order, parents = [0], [-1]
    separators: list[Clique] = [()]
    left = set(range(1, len(cliques)))
    best = {place: (len(set(cliques[place]) & set(cliques[0])), 0) for place in left}  # shared columns, with whom
    while left:
        place = max(left, key=lambda one: (best[one][0], -one))
        shared = tuple(sorted(set(cliques[place]) & set(cliques[order[best[place][1]]])))
        parents.append(best[place][1])
        separators.append(shared)
        order.append(place)
        left.discard(place)
        for other in left:
            count = len(set(cliques[other]) & set(cliques[place]))
            if count > best[other][0]:
                best[other] = (count, len(order) - 1)
    return Tree(sizes, tuple(cliques[place] for place in order), tuple(parents), tuple(separators))


def spread(table: Table, columns: Clique, wide: Clique, sizes: Sequence[int]) -> Table:
    """Return a view of the table of ``columns`` (sorted) that broadcasts against the table of ``wide``."""
    return table.reshape([int(sizes[one]) if one in columns else 1 for one in wide])


def summed(table: Table, wide: Clique, columns: Clique) -> Table:
    """Return the marginal on ``columns`` (sorted) of a table over ``wide``."""
    away = tuple(axis for axis, one in enumerate(wide) if one not in columns)
    return np.asarray(table.sum(axis=away), dtype=np.float64) if away else table


def marginals(tree: Tree, potentials: Mapping[Clique, Table]) -> list[Table]:
    """Return the probabilities of every clique's table under exp(sum of potentials), which sum to 1.

    ``potentials``: logarithms, each over columns that one of the cliques holds.
    """
    sizes = tree.sizes
    tables: list[Table] = [np.zeros([sizes[one] for one in clique]) for clique in tree.cliques]
    for columns, potential in potentials.items():
        place = tree.home(columns)
        tables[place] += spread(potential, columns, tree.cliques[place], sizes)
    for table in tables:
        table -= table.max()
        np.exp(table, out=table)
    told: dict[int, Table] = {}
    for place in range(len(tables) - 1, 0, -1):  # from the leaves to the root
        own, parent = tree.separators[place], tree.parents[place]
        said = summed(tables[place], tree.cliques[place], own)
        said = said / said.max()
        told[place] = said
        tables[parent] *= spread(said, own, tree.cliques[parent], sizes)
    tables[0] /= tables[0].sum()
    for place in range(1, len(tables)):  # and back
        own, parent = tree.separators[place], tree.parents[place]
        wanted, said = summed(tables[parent], tree.cliques[parent], own), told[place]
        scale = np.divide(wanted, said, out=np.zeros_like(wanted), where=said > 0)
        tables[place] *= spread(scale, own, tree.cliques[place], sizes)
        tables[place] /= tables[place].sum()
    return tables


_LONGER: Final = 1.01  # how much longer a step is than the one before it
_DONE: Final = 1e-7  # of the loss: who gains less by a step has arrived
_TRIES: Final = 25  # steps in a row that would raise the loss


@dataclass(frozen=True, slots=True, eq=False)
class Marginal:
    """Noisy shares of the records in the cells of some columns; ``deviation``: of the noise on each share.

    ``groups``: for each column, the matrix of zeros and ones that adds its cells up into the groups that were counted;
    None where cells were counted one by one.
    """

    columns: Clique
    shares: Table
    deviation: float
    groups: tuple[Matrix, ...] | None = None

    def counted(self, table: Table) -> Table:
        """Return the shares in the groups, from those in the cells."""
        for axis, own in enumerate(self.groups or ()):
            table = np.moveaxis(np.tensordot(own, table, axes=(1, axis)), 0, axis)
        return table

    def returned(self, table: Table) -> Table:
        """Return what a table over the groups says of each cell."""
        for axis, own in enumerate(self.groups or ()):
            table = np.moveaxis(np.tensordot(own, table, axes=(0, axis)), 0, axis)
        return table


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A tree, and the logarithms of its potentials."""

    tree: Tree
    potentials: dict[Clique, Table]

    def tables(self) -> list[Table]:
        """Return the probabilities of every clique's table."""
        return marginals(self.tree, self.potentials)


def fitted(
    tree: Tree, measured: Sequence[Marginal], iterations: int, begun: dict[Clique, Table] | None = None
) -> Fitted:
    """Return the model of least loss that so many steps find, from the potentials ``begun`` or from single columns.

    Each step goes on in the direction of those before it. A step that would raise the loss is not taken: the next one
    starts anew from the same place, and is shorter.
    """
    homes = [tree.home(one.columns) for one in measured]
    known = [(one, home) for one, home in zip(measured, homes, strict=True) if home >= 0]
    here = {one.columns: _first(one, tree) for one, _ in known}
    here |= {columns: table for columns, table in (begun or {}).items() if tree.home(columns) >= 0}
    step = 1.0 / max((one.deviation**-2 for one, _ in known), default=1.0)
    loss, gradient = _loss(tree, known, marginals(tree, here))
    before, since, failed = here, 0, 0
    for _ in range(iterations):
        moved = {key: table - step * gradient[key] if key in gradient else table for key, table in here.items()}
        pace = since / (since + 3)
        ahead = {key: table + pace * (table - before[key]) for key, table in moved.items()}
        with np.errstate(invalid="ignore", divide="ignore"):  # a step too long leaves no table: not a number, not taken
            new_loss, new_gradient = _loss(tree, known, marginals(tree, ahead))
        if new_loss < loss:
            done = loss - new_loss <= _DONE * new_loss
            here, before, loss, gradient = ahead, moved, new_loss, new_gradient
            since, failed, step = since + 1, 0, step * _LONGER
        else:
            done = failed >= _TRIES
            before, since, failed, step = here, 0, failed + 1, step / 2
        if done:
            break
    return Fitted(tree, here)


def _first(one: Marginal, tree: Tree) -> Table:
    """The first potential of a measured marginal: of a single column its shares, so that the others have less to do."""
    if len(one.columns) > 1 or one.groups is not None:
        return np.zeros([tree.sizes[column] for column in one.columns])
    return np.asarray(np.log(np.maximum(one.shares, one.deviation / 10)), dtype=np.float64)


def _loss(tree: Tree, known: Sequence[tuple[Marginal, int]], tables: list[Table]) -> tuple[float, dict[Clique, Table]]:
    """Return the loss of the model with these marginals, and its gradient in each measured marginal."""
    total = 0.0
    gradient: dict[Clique, Table] = {}
    for one, home in known:
        error = one.counted(summed(tables[home], tree.cliques[home], one.columns)) - one.shares
        weight = one.deviation**-2
        total += 0.5 * weight * float((error * error).sum())
        back = one.returned(error) * weight
        gradient[one.columns] = gradient[one.columns] + back if one.columns in gradient else back
    return total, gradient


# Which pairs of columns are measured precisely: chosen by coarse counts of all pairs, and so free of charge.
#
# All pairs were counted coarsely, with noise. Again and again the model is fitted to what is chosen so far, and pairs
# whose coarse counts it gets most wrong are added, as long as they are wrong by more than the noise of measuring them
# will be, and as long as the model stays within memory. (McKenna, Mullins, Sheldon and Miklau, AIM: an adaptive and
# iterative mechanism for differentially private synthetic data, 2022, choose alike, by a private mechanism each time.)

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
    result = []
    for pair, one in coarse.items():
        if pair in chosen:
            continue
        error = expected[pair] - one.shares
        squares = float((error * error).sum()) - error.size * one.deviation**2  # without what the noise adds
        size = math.sqrt(max(squares, 0.0) * error.size) * _MEAN
        gain = size - _MEAN * noise * cells_of(pair, sizes)
        if gain > 0:
            result.append((gain * weights.get(pair, 1.0), pair))
    return sorted(result, key=lambda one: (-one[0], one[1]))


def _fitting(
    sizes: Sequence[int], chosen: list[Clique], scores: list[tuple[float, Clique]], limits: Limits, room: int
) -> tuple[list[Clique], bool]:
    """The best of the scored pairs with which the model stays within its limits, and whether one was too large."""
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
    result: dict[Clique, Table] = {}
    away: dict[int, list[Clique]] = {}
    for pair, one in coarse.items():
        home = tree.home(pair)
        if home >= 0:
            result[pair] = one.counted(summed(tables[home], tree.cliques[home], pair))
        else:
            away.setdefault(pair[0], []).append(pair)
    for first, pairs in away.items():
        own = (coarse[pairs[0]].groups or (np.eye(tree.sizes[first]),))[0]
        joint = _joint_with(tree, tables, first, own, {pair[1] for pair in pairs})
        for pair in pairs:
            groups = coarse[pair].groups
            second = joint[pair[1]]
            result[pair] = second if groups is None else second @ groups[1].T
    return result


def _joint_with(tree: Tree, tables: list[Table], first: int, own: Matrix, wanted: set[int]) -> dict[int, Table]:
    """Return the joint shares of the groups ``own`` of one column and the cells of each wanted column.

    They are carried from clique to clique along the tree: given a separator, its two sides are independent.
    """
    start = tree.home([first])
    axis = tree.cliques[start].index(first)
    shape = [1] * tables[start].ndim
    shape[axis] = own.shape[1]
    stacked = tables[start][None] * np.stack([row.reshape(shape) for row in own])
    result: dict[int, Table] = {}
    waiting, seen = [(start, stacked)], {start}
    while waiting:
        place, table = waiting.pop()
        for other, column in enumerate(tree.cliques[place]):
            if column in wanted and column not in result:
                result[column] = table.sum(axis=tuple(a for a in range(1, table.ndim) if a != other + 1))
        for next_place, shared in _neighbours(tree, place):
            if next_place in seen:
                continue
            seen.add(next_place)
            below = summed(tables[next_place], tree.cliques[next_place], shared)
            over = table.sum(axis=tuple(a + 1 for a, column in enumerate(tree.cliques[place]) if column not in shared))
            ratio = np.divide(over, below[None], out=np.zeros_like(over), where=below[None] > 0)
            wide = [tree.sizes[c] if c in shared else 1 for c in tree.cliques[next_place]]
            waiting.append((next_place, tables[next_place][None] * ratio.reshape([own.shape[0], *wide])))
    return result


def _neighbours(tree: Tree, place: int) -> list[tuple[int, Clique]]:
    """The cliques next to this one, with the columns that they share with it."""
    result = [(child, tree.separators[child]) for child, parent in enumerate(tree.parents) if parent == place]
    return result if tree.parents[place] < 0 else [(tree.parents[place], tree.separators[place]), *result]
