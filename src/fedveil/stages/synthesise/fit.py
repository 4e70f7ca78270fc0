"""The distribution on a junction tree that agrees best with noisy marginals: mirror descent on squared errors.

Each marginal that was measured adds its squared error over its variance to the loss, which is convex in the marginals
of the model. A step moves the potential of a measured marginal against the gradient there; this is mirror descent with
entropy as its mirror (McKenna, Sheldon and Miklau, Graphical-model based estimation and inference for differential
privacy, 2019), and with momentum that is given up whenever it leads upward (O'Donoghue and Candes, Adaptive restart for
accelerated gradient schemes, 2015). All of it is post-processing of noisy sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedveil.core.values import Matrix
from fedveil.stages.synthesise.junction import Clique, Table, Tree, marginals, summed

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
