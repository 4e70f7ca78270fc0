"""A client's local training, alone or many clients at once.

Clients of one size are trained together where the loss allows it. A client's result has the same bits as if it were
trained alone (see ``StackedLoss``), so a simulation of all clients, a site with some of them and a run that goes on
after a crash find the same updates. Page: docs/fedavg.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.records import Records
from fedveil.models.loss import Loss, ScoredLoss, StackedLoss, UnclippedLoss
from fedveil.models.rows import stacked_sum
from fedveil.noise.entropy import Entropy
from fedveil.stages.train.base import Training, expected
from fedveil.stages.train.fedavg.method import FedAvg

# Local steps through the products of a client's records with each other, for clients with fewer records than
# features.
#
# Steps of all records of a linear model stay in the span of the global model and the client's rows: after each of
# them
# the model is ``a * w + X.T @ b``. Scores follow from ``X @ w``, computed once a round, and from ``X @ X.T``,
# computed
# once a run; the features are needed again only for the update. So several local epochs cost little more than one.


def products_of(X: Vector) -> Matrix:
    """Return the products of a client's records with each other."""
    return np.asarray(np.matmul(X[None], X[None].swapaxes(1, 2))[0], dtype=np.float64)


def trained_by_products(
    local: Local, loss: ScoredLoss, model: Vector, X: Vector, y: Matrix, norms: Matrix, products: Vector
) -> Matrix:
    """Return the models of clients of one size after their local epochs, a row for each.

    ``X``: clients by records by features; ``products``: clients by records by records. A product of stacks is one
    product of matrices for each client, so a client's row has the same bits in any company.
    """
    clients, size, features = X.shape
    kept, pull = 1 - local.step * (local.l2 + local.proximal), local.step * local.proximal
    with np.errstate(all="ignore"):  # an overflow is dropped when it is clipped
        first = np.matmul(X, model.reshape(features, -1))
        part, along = 1.0, np.zeros_like(first)
        for _ in range(local.epochs):
            scores = (part * first + np.matmul(products, along)).reshape(clients * size, first.shape[2])
            slopes = loss.multipliers(scores, y.ravel(), norms.ravel(), local.clip)
            along = kept * along - (local.step / max(size, 1)) * slopes.reshape(along.shape)
            part = kept * part + pull
        moved = stacked_sum(X, along, np.ones(y.shape, dtype=np.bool_))
        return part * model + moved


_ENTRIES: Final = 2**18  # numbers of a stack of records or models: they stay in the processor's cache


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """What a client needs to train; ``batch`` 0 takes all its records at once.

    ``proximal``: the pull of every step towards the global model, 0 for none. ``plain``: a batch's gradient is taken as
    it is, without clipping the gradient of each record. ``by_products``: scores of later local steps come from products
    of the client's records with each other.
    """

    loss: Loss
    clip: float
    l2: float
    step: float
    epochs: int
    batch: int
    proximal: float = 0.0
    plain: bool = False
    by_products: bool = False

    @classmethod
    def of(cls, plan: Training) -> Local:
        """Return what a plan states for every client."""
        method = expected(FedAvg, plan.method)
        return cls(
            plan.model.loss,
            plan.constants.lipschitz,
            plan.model.l2,
            method.local.step,
            method.local.epochs,
            method.local.batch,
            method.local.proximal,
            method.local.mean_gradient,
            method.local.by_products,
        )

    def total(self, found: Vector, rows: Vector, targets: Vector, norms: Vector) -> Vector:
        """Return the sum of the gradients of a local step."""
        if self.plain:
            require(
                isinstance(self.loss, UnclippedLoss), "The loss", "have gradients that are not clipped", self.loss.kind
            )
            return self.loss.total(found, rows, targets)  # type: ignore[attr-defined, no-any-return]
        return self.loss.gradient(found, rows, targets, clip=self.clip, norms=norms)[0]

    def whole(self, size: int) -> bool:
        """Return whether a client of this size takes all of its records in every local step."""
        return self.batch == 0 or self.batch >= size

    def after(self, found: Vector, total: Vector, count: int, start: Vector) -> Vector:
        """Return the model, or each of a stack of models, after one local step along a sum of ``count`` gradients.

        ``start``: the global model, towards which FedProx pulls (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith.
        Federated Optimization in Heterogeneous Networks. MLSys 2020).
        """
        change = total / count if self.l2 == 0 else total / count + self.l2 * found
        if self.proximal:
            change = change + self.proximal * (found - start)
        return found - self.step * change

    def after_in_place(self, found: Matrix, total: Matrix, count: int, start: Vector) -> Matrix:
        """Return the same bits as :meth:`after`, written over ``total``: wide models are not copied."""
        if self.l2 != 0 or self.proximal:
            return self.after(found, total, count, start)
        np.divide(total, count, out=total)
        np.multiply(total, self.step, out=total)
        return np.subtract(found, total, out=total)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Records laid out client after client; client c holds rows ``starts[c]`` up to ``starts[c + 1]``."""

    features: Vector
    targets: Vector
    norms: Vector
    starts: Indices
    products: dict[int, Matrix] = field(default_factory=dict)  # of a client's records with each other, when needed

    @classmethod
    def of(cls, records: Records) -> Held:
        """Return the records in the order of their clients."""
        order, starts = records.by_client()
        features = records.features[order]
        return cls(features, records.targets[order], np.sqrt(np.vecdot(features, features)), starts)

    def alike(self, clients: Indices, parameters: int) -> Iterator[Indices]:
        """Yield the clients in groups of one size, few enough for their records and models to stay in the cache."""
        sizes = self.starts[clients + 1] - self.starts[clients]
        for size in np.unique(sizes).tolist():
            mine = clients[sizes == size]
            most = max(1, _ENTRIES // max(size * self.features.shape[1], parameters))
            for first in range(0, mine.size, most):
                yield mine[first : first + most]

    def stack(self, clients: Indices, part: Indices | None = None) -> tuple[Vector, Matrix, Matrix]:
        """Return features, targets and norms of clients of one size, stacked; ``part``: rows of each, or all."""
        first, size = self.starts[clients], int(self.starts[clients[0] + 1] - self.starts[clients[0]])
        if part is None and first[-1] - first[0] == (clients.size - 1) * size:  # they lie side by side: no copy
            rows: slice | Indices = slice(int(first[0]), int(first[-1]) + size)
            shape: tuple[int, ...] = (clients.size, size)
            X, y, norms = self.features[rows], self.targets[rows], self.norms[rows]
            return X.reshape(*shape, X.shape[1]), y.reshape(shape), norms.reshape(shape)
        rows = first[:, None] + (np.arange(size) if part is None else part)
        return self.features[rows], self.targets[rows], self.norms[rows]

    def products_of(self, clients: Indices) -> Vector:
        """Return the products of each client's records with each other, stacked, for clients of one size."""
        for client in clients.tolist():
            if client not in self.products:
                rows = slice(int(self.starts[client]), int(self.starts[client + 1]))
                self.products[client] = products_of(self.features[rows])
        return np.stack([self.products[client] for client in clients.tolist()])


def changes(
    local: Local, model: Vector, held: Held, clients: Indices, entropy: Entropy, turn: int
) -> Iterator[tuple[Indices, Matrix]]:
    """Yield some clients at a time, with a row for each: how its local training changes the model."""
    if local.plain or not isinstance(local.loss, StackedLoss):
        for client in clients.tolist():
            result = trained(local, model, held, client, entropy, turn) - model
            yield np.array([client], dtype=np.int64), result[None]
        return
    for group in held.alike(clients, model.size):
        moved = _trained_together(local, local.loss, model, held, group, entropy, turn)
        yield group, np.subtract(moved, model, out=moved)


def _trained_together(
    local: Local, loss: StackedLoss, model: Vector, held: Held, group: Indices, entropy: Entropy, turn: int
) -> Matrix:
    """Return the models of clients of one size after their local epochs, a row for each."""
    if local.by_products:
        return _by_products(local, model, held, group)
    size = int(held.starts[group[0] + 1] - held.starts[group[0]])
    result: Matrix = np.broadcast_to(model, (group.size, model.size))
    for X, y, norms in _stacks(local, held, group, size, entropy, turn):
        total = loss.gradients(result, X, y, clip=local.clip, norms=norms)
        with np.errstate(all="ignore"):  # an overflow is dropped when it is clipped
            result = local.after_in_place(result, total, y.shape[1], model)
    return result


def _by_products(local: Local, model: Vector, held: Held, group: Indices) -> Matrix:
    loss = local.loss
    require(isinstance(loss, ScoredLoss), "The loss", "be one of linear scores", loss.kind)
    return trained_by_products(local, loss, model, *held.stack(group), held.products_of(group))  # type: ignore[arg-type]


def _stacks(
    local: Local, held: Held, group: Indices, size: int, entropy: Entropy, turn: int
) -> Iterator[tuple[Vector, Matrix, Matrix]]:
    """Yield features, targets and norms of each local step of clients of one size."""
    if local.whole(size):
        yield from [held.stack(group)] * local.epochs
        return
    for part in zip(*(parts(local, size, entropy, turn, client) for client in group.tolist()), strict=True):
        yield held.stack(group, np.stack(part))


def trained(local: Local, model: Vector, held: Held, client: int, entropy: Entropy, turn: int) -> Vector:
    """Return a client's model after its local epochs, from the global one."""
    if local.by_products:
        alone: Vector = _by_products(local, model, held, np.array([client], dtype=np.int64))[0]
        return alone
    start, end = int(held.starts[client]), int(held.starts[client + 1])
    features, targets, norms = held.features[start:end], held.targets[start:end], held.norms[start:end]
    result = model
    with np.errstate(all="ignore"):  # an overflow is dropped when it is clipped
        for part in parts(local, end - start, entropy, turn, client):
            mine = (features, targets, norms) if part is None else (features[part], targets[part], norms[part])
            rows, wanted, lengths = mine
            total = local.total(result, rows, wanted, lengths)
            result = local.after(result, total, wanted.size, model)
    return result


def parts(local: Local, size: int, entropy: Entropy, turn: int, client: int) -> Iterator[Indices | None]:
    """Yield the records of each local step: all (None), or batches of a new order in every epoch."""
    if local.whole(size):
        yield from [None] * local.epochs
        return
    words = entropy.stream(f"local {client}", turn)
    for _ in range(local.epochs):
        order = np.argsort(words.words(size)).astype(np.int64)
        for first in range(0, size, local.batch):
            yield order[first : first + local.batch]
