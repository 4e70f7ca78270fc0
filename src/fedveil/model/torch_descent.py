"""The plain gradient of a batch for a torch module: no record is told apart, as where a whole client is protected.

Where the unit is a client, only its whole update is clipped, so its local steps may use the mean gradient of a batch as
PyTorch computes it. Nothing here bounds what a record does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from fedveil.errors import BadValue
from fedveil.model.torch_criteria import losses_of
from fedveil.model.torch_library import right_threads, torch
from fedveil.values import Vector

if TYPE_CHECKING:
    from fedveil.model.torch_engine import Engine

_AT_ONCE = 1024  # rows in one pass through the module


@contextmanager
def deterministic(fill: bool = True) -> Iterator[None]:
    """Have PyTorch take only kernels that give the same bits every time, for a while.

    ``fill``: also fill memory that is not set yet, in case a module reads it; listed layers never do.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        torch.utils.deterministic.fill_uninitialized_memory = filled


def plain_total(engine: "Engine", w: Vector, X: Vector, y: Vector, weights: Vector | None = None) -> Vector:
    """Return the weighted sum of the records' gradients, not clipped.

    A record whose row or target is no finite number, or whose target is no class, counts as zero and keeps its place.
    The sum may be no finite number; whoever clips must look.
    """
    known = engine._known(y) & np.isfinite(X).all(axis=1)
    shares = known.astype(np.float64) if weights is None else np.where(known, weights, 0.0)
    if not known.all():
        X, y = np.where(known[:, None], X, 0.0), np.where(known, y, 0.0)
    rows, targets, factors = engine._tensor(X), engine._tensor(y), engine._tensor(shares)
    values = [value.requires_grad_() for value in engine._values(w)]
    total = np.zeros(w.size)
    with right_threads(w.size), deterministic(), torch.enable_grad():
        for first in range(0, X.shape[0], _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            named = dict(zip(engine.names, values, strict=True))
            try:
                losses = losses_of(engine.module, named, engine.criterion, rows[part], targets[part])
                slopes = torch.autograd.grad((losses * factors[part]).sum(), values, allow_unused=True)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise BadValue(f"model.module must have deterministic gradients: {reason}") from error
            flat = [torch.zeros_like(v) if g is None else g for g, v in zip(slopes, values, strict=True)]
            total += torch.cat([value.detach().double().flatten() for value in flat]).cpu().numpy()
    return total
