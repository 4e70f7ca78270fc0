"""A checked module and its criterion, used through flat float64 vectors."""

from copy import deepcopy
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fedveil.errors import BadValue
from fedveil.importing import check_allowed
from fedveil.model.torch_blocks import Blocks
from fedveil.model.torch_criteria import criterion_of, losses_of, outputs_of
from fedveil.model.torch_library import device, right_threads, torch
from fedveil.model.torch_linears import linears_of
from fedveil.model.torch_module import make_module, probe
from fedveil.model.torch_records import Records, parts
from fedveil.model.torch_stack import Stack, layers_of
from fedveil.values import Vector

_AT_ONCE = 4096  # rows in one forward pass
_TRIED = 6  # rows that are computed alone and together before batches are sampled


class Engine:
    """``start``: the public parameters that the flat vector 0 stands for; training learns the difference from them."""

    def __init__(self, module: str, criterion: str, classes: int, precision: str, features: int) -> None:
        self.classes, self.dtype, self.device = classes, getattr(torch, precision), device()
        known = {"features": features, "classes": classes}
        self.module, self.criterion = make_module(module, precision, known), criterion_of(criterion)
        free = [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]
        self.names = tuple(name for name, _ in free)
        self.shapes = [value.shape for _, value in free]
        self.sizes = [value.numel() for _, value in free]
        self.start: Vector = torch.cat([value.detach().double().flatten() for _, value in free]).cpu().numpy()
        rows, targets = self._probe_rows(features)
        probe(self.module, self.criterion, rows, targets, outputs_of(criterion, classes))
        self.work = self._work(rows, targets, own=":" in criterion)
        self.at_once = self.work.rows_at_once(rows[0])
        self._features = features

    def _probe_rows(self, features: int, count: int = 4) -> tuple[Any, Any]:
        source = np.random.default_rng(0)
        rows = source.normal(size=(count, features)) / np.sqrt(features)
        targets = np.arange(count) % self.classes if self.classes else source.normal(size=count)
        return self._tensor(rows), torch.from_numpy(np.asarray(targets, dtype=np.float64)).to(self.device, self.dtype)

    def _work(self, rows: Any, targets: Any, own: bool) -> Any:
        """Return the fast way for a plain stack if it applies and agrees with the general way on a probe.

        Otherwise return the general way.
        """
        general = Records(self.module, self.criterion, self.names)
        values = self._values(np.zeros(self.start.size))
        ones = torch.ones(rows.shape[0], dtype=torch.float64, device=self.device)
        expected, usable = general.clipped(values, rows, targets, 1e30, ones)
        if not bool(usable.all()):
            raise BadValue("model.module must have finite gradients where it starts, and on random rows it has not.")
        stack = self._fast(own)
        if stack is None:
            return general
        try:
            found, _ = stack.clipped(values, rows, targets, 1e30, ones)
        except (RuntimeError, ValueError, TypeError, IndexError):  # what was recorded is not what the module does
            return general
        close = all(
            a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-6)
            for a, b in zip(found, expected, strict=True)
        )
        return stack if close else general

    def _fast(self, own: bool) -> Any:
        if self.criterion is None:
            return linears_of(self.module, self.names)
        leaves = None if own else layers_of(self.module)
        return None if leaves is None else Stack(leaves, self.criterion)

    @cached_property
    def blocks(self) -> Blocks:
        """Blocks of one shape, for batches whose company varies; refused if a record's bits depend on its company."""
        blocks = Blocks(self.work, self.at_once, self._features, self.dtype, self.device)
        rows, targets = self._probe_rows(self._features, _TRIED)
        values = self._values(np.zeros(self.start.size), own=True)
        blocks.check(values, rows.double().cpu().numpy(), targets.double().cpu().numpy())
        return blocks

    def gradient(
        self, w: Vector, X: Vector, y: Vector, clip: float, weights: Vector | None, grain: float | None = None
    ) -> tuple[Vector, int]:
        """Return the weighted sum of clipped gradients, and how many records were left out of it.

        With a grain each record's part is cut to it alone, and is the same to the bit in any company.
        """
        with right_threads(self.start.size):
            return self._gradient(w, X, y, clip, weights, grain)

    def _gradient(
        self, w: Vector, X: Vector, y: Vector, clip: float, weights: Vector | None, grain: float | None
    ) -> tuple[Vector, int]:
        known = self._known(y) & np.isfinite(X).all(axis=1)
        shares = known.astype(np.float64) if weights is None else np.where(known, weights, 0.0)
        if not known.all():  # rows keep their places, so the data do not decide which rows are computed together
            X, y = np.where(known[:, None], X, 0.0), np.where(known, y, 0.0)
        left = int(np.count_nonzero(~known))
        if grain is not None:
            values = self._values(w, own=True)
            found, lost = self.blocks.total(values, X, y, clip=clip, shares=shares, present=known, grain=grain)
            return found, left + lost
        values, total = self._values(w), np.zeros(self.start.size)
        rows, targets, factors = self._tensor(X), self._tensor(y), torch.from_numpy(shares).to(self.device)
        for part in parts(X.shape[0], self.at_once):
            found, usable = self.work.clipped(values, rows[part], targets[part], clip, factors[part])
            total += torch.cat(found).cpu().numpy()
            left += int(np.count_nonzero(known[part] & ~usable.cpu().numpy()))
        return total, left

    def outputs(self, w: Vector, X: Vector) -> Vector:
        """Return the module's outputs, a row for each record; of a generator, minus the loss with each class."""
        if self.criterion is None:
            each = [self.losses(w, X, np.full(X.shape[0], float(k))) for k in range(self.classes)]
            return -np.stack(each, axis=1)
        return np.concatenate([found.double().cpu().numpy() for _, found in self._forward(w, X)])

    def losses(self, w: Vector, X: Vector, y: Vector) -> Vector:
        """Return the loss of each record, not clipped; NaN if the target is not a class."""
        known = self._known(y)
        targets, rows = self._tensor(np.where(known, y, 0.0)), self._tensor(X)
        values = dict(zip(self.names, self._values(w), strict=True))
        with torch.no_grad(), right_threads(self.start.size):
            each = [
                losses_of(self.module, values, self.criterion, rows[part], targets[part])
                for part in parts(X.shape[0], _AT_ONCE)
            ]
        found = [one.double().cpu().numpy() for one in each]
        return np.where(known, np.concatenate(found), np.nan)

    def module_at(self, w: Vector) -> Any:
        """Return a copy of the module with the parameters that ``w`` stands for."""
        module = deepcopy(self.module)
        with torch.no_grad():
            for name, value in zip(self.names, self._values(w), strict=True):
                module.get_parameter(name).copy_(value)
        return module

    def _forward(self, w: Vector, X: Vector) -> list[tuple[slice, Any]]:
        values, rows = dict(zip(self.names, self._values(w), strict=True)), self._tensor(X)
        with torch.no_grad(), right_threads(self.start.size):
            done = [
                (part, torch.func.functional_call(self.module, values, (rows[part],)))
                for part in parts(X.shape[0], _AT_ONCE)
            ]
        return [(part, out.reshape(out.shape[0], -1)) for part, out in done]

    def _known(self, y: Vector) -> Any:
        if not self.classes:
            return np.isfinite(y)
        return (y >= 0) & (y < self.classes) & (y == np.floor(y))

    def _values(self, w: Vector, own: bool = False) -> list[Any]:
        """Return the parameters; ``own``: in memory that torch laid out, always from the same boundary."""
        whole = self._tensor(self.start + w)
        whole = whole.clone() if own else whole
        return [value.view(shape) for value, shape in zip(whole.split(self.sizes), self.shapes, strict=True)]

    def _tensor(self, values: Vector) -> Any:
        given = np.ascontiguousarray(values)
        return torch.from_numpy(given if given.flags.writeable else given.copy()).to(self.device, self.dtype)


def engine(module: str, criterion: str, classes: int, precision: str, features: int) -> Engine:
    """Return the engine, which is made, checked and probed once; its code must be allowed each time."""
    check_allowed(module, "model.module")
    if ":" in criterion:
        check_allowed(criterion, "model.criterion")
    return _engine(module, criterion, classes, precision, features)


@lru_cache(maxsize=8)
def _engine(module: str, criterion: str, classes: int, precision: str, features: int) -> Engine:
    return Engine(module, criterion, classes, precision, features)
