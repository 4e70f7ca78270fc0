"""The distribution on a junction tree that agrees best with noisy marginals: mirror descent on squared errors.

Each marginal that was measured adds its squared error over its variance to the loss, which is convex in the marginals
of the model. A step moves the potential of a measured marginal against the gradient there; this is mirror descent with
entropy as its mirror (McKenna, Sheldon and Miklau, Graphical-model based estimation and inference for differential
privacy, 2019). All of it is post-processing of noisy sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.prepare.synthesis.junction import Clique, Table, Tree, marginals, summed
from fedveil.values import Matrix


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
    """Return the model of least loss that so many steps find, from the potentials ``begun`` or from equal shares."""
    homes = [tree.home(one.columns) for one in measured]
    known = [(one, home) for one, home in zip(measured, homes, strict=True) if home >= 0]
    potentials = {one.columns: np.zeros([tree.sizes[c] for c in one.columns]) for one, _ in known}
    potentials |= {columns: table for columns, table in (begun or {}).items() if tree.home(columns) >= 0}
    step = 1.0 / max((one.deviation**-2 for one, _ in known), default=1.0)
    loss, gradient = _loss(tree, known, marginals(tree, potentials))
    for _ in range(iterations):
        for _ in range(25):
            moves = {key: step * slope for key, slope in gradient.items()}
            tried = {key: table - moves[key] if key in moves else table for key, table in potentials.items()}
            tables = marginals(tree, tried)
            new_loss, new_gradient = _loss(tree, known, tables)
            if new_loss < loss:
                break
            step /= 2
        else:
            break
        done = loss - new_loss <= 1e-7 * new_loss
        potentials, loss, gradient = tried, new_loss, new_gradient
        step *= 1.4
        if done:
            break
    return Fitted(tree, potentials)


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
