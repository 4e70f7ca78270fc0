"""A junction tree: which groups of columns a graphical model holds together, and its marginals by belief propagation.

Pairs of columns that were measured are the edges of a graph. Eliminating columns one by one turns it into a tree of
cliques, on which the marginals of a distribution of the form exp(sum of potentials) are computed exactly in two sweeps
(Lauritzen and Spiegelhalter, Local computations with probabilities on graphical structures, 1988).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    found = 1
    for column in columns:
        found *= int(sizes[column])
    return found


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
