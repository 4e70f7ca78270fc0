"""A checked module and its criterion, used through flat float64 vectors: gradients, outputs, and rows that it draws."""

from collections.abc import Callable
from copy import deepcopy
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.importing import check_allowed
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.models.torch.blocks import Blocks
from fedveil.models.torch.gradients import Records, Stack, linears_of, parts
from fedveil.models.torch.library import deterministic, device, right_threads, torch
from fedveil.models.torch.modules import criterion_of, layers_of, losses_of, make_module, outputs_of, probe

_AT_ONCE = 4096  # rows in one forward pass
_DIFFERENTIATED = 1024  # rows in one pass there and back
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
        """Return the way of a stack of layers where the module is one and both ways agree on random rows.

        Otherwise each record is differentiated on its own.
        """
        general = Records(self.module, self.criterion, self.names)
        values = self._values(np.zeros(self.start.size))
        ones = torch.ones(rows.shape[0], dtype=torch.float64, device=self.device)
        expected, usable = general.clipped_sum(values, rows, targets, 1e30, ones)
        if not bool(usable.all()):
            raise BadValue("model.module must have finite gradients where it starts, and on random rows it has not.")
        stack = self._fast(own)
        if stack is None:
            return general
        try:
            fast, _ = stack.clipped_sum(values, rows, targets, 1e30, ones)
        except (RuntimeError, ValueError, TypeError, IndexError):  # what was recorded is not what the module does
            return general
        close = all(
            a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-6)
            for a, b in zip(fast, expected, strict=True)
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
            summed, lost = self.blocks.total(values, X, y, clip=clip, shares=shares, present=known, grain=grain)
            return summed, left + lost
        values, total = self._values(w), np.zeros(self.start.size)
        rows, targets, factors = self._tensor(X), self._tensor(y), torch.from_numpy(shares).to(self.device)
        for part in parts(X.shape[0], self.at_once):
            summed, usable = self.work.clipped_sum(values, rows[part], targets[part], clip, factors[part])
            total += torch.cat(summed).cpu().numpy()
            left += int(np.count_nonzero(known[part] & ~usable.cpu().numpy()))
        return total, left

    def total(self, w: Vector, X: Vector, y: Vector, weights: Vector | None = None) -> Vector:
        """Return the weighted sum of the records' gradients, not clipped: no record is told apart.

        Where the unit is a client, only its whole update is clipped, so its local steps may use the mean gradient of a
        batch as PyTorch computes it. Nothing here bounds what a record does.

        A record whose row or target is no finite number, or whose target is no class, counts as zero and keeps its
        place. The sum may be no finite number; whoever clips must look.
        """
        known = self._known(y) & np.isfinite(X).all(axis=1)
        shares = known.astype(np.float64) if weights is None else np.where(known, weights, 0.0)
        if not known.all():
            X, y = np.where(known[:, None], X, 0.0), np.where(known, y, 0.0)
        rows, targets, factors = self._tensor(X), self._tensor(y), self._tensor(shares)
        values = [value.requires_grad_() for value in self._values(w)]
        total = np.zeros(w.size)
        with right_threads(w.size), deterministic(), torch.enable_grad():
            for first in range(0, X.shape[0], _DIFFERENTIATED):
                part = slice(first, first + _DIFFERENTIATED)
                named = dict(zip(self.names, values, strict=True))
                try:
                    losses = losses_of(self.module, named, self.criterion, rows[part], targets[part])
                    slopes = torch.autograd.grad((losses * factors[part]).sum(), values, allow_unused=True)
                except RuntimeError as error:
                    reason = str(error).splitlines()[0]
                    raise BadValue(f"model.module must have deterministic gradients: {reason}") from error
                flat = [torch.zeros_like(v) if g is None else g for g, v in zip(slopes, values, strict=True)]
                total += torch.cat([value.detach().double().flatten() for value in flat]).cpu().numpy()
        return total

    def outputs(self, w: Vector, X: Vector) -> Vector:
        """Return the module's outputs, a row for each record; of a generator, minus the loss with each class."""
        if self.criterion is None:
            each = [self.losses(w, X, np.full(X.shape[0], float(k))) for k in range(self.classes)]
            return -np.stack(each, axis=1)
        return np.concatenate([out.double().cpu().numpy() for _, out in self._forward(w, X)])

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
        return np.where(known, np.concatenate([one.double().cpu().numpy() for one in each]), np.nan)

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


def sampler(engine: Engine, w: Vector, features: int) -> Callable[[Indices, int], Matrix]:
    """Return what draws a row for each of the given classes, from a seed."""
    module = engine.module_at(w)
    hint = "It draws a row for each class: sample(classes, generator), with a torch.Generator."
    require(callable(getattr(module, "sample", None)), "generator.module", "have a method sample", "none", hint)

    def draw(kinds: Indices, seed: int) -> Matrix:
        source = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            try:
                drawn = module.sample(torch.from_numpy(kinds).to(engine.dtype), source)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
                reason = str(error).splitlines()[0]
                raise BadValue(f"generator.module must draw rows of {kinds.size} classes: {reason}") from error
        right = isinstance(drawn, torch.Tensor) and drawn.numel() == kinds.size * features
        shape = tuple(drawn.shape) if isinstance(drawn, torch.Tensor) else type(drawn).__name__
        require(right, "generator.module", f"draw {kinds.size} rows of {features} numbers", shape)
        rows = np.asarray(drawn.reshape(kinds.size, features).double().cpu().numpy())
        require(bool(np.isfinite(rows).all()), "generator.module", "draw finite numbers", "others")
        return rows

    return draw


def answers(engine: Engine) -> bool:
    """Return whether the module has an answer of its own to a noised direction, from public numbers alone.

    An adversarial pair has one: the judge learns from made rows, and the maker from the judge. A module has it if it
    has ``answer(generator)``, two numbers to lessen, and ``made()``, the parameters that the second is for.
    """
    return callable(getattr(engine.module, "answer", None)) and callable(getattr(engine.module, "made", None))


def add_answer(engine: Engine, w: Vector, direction: Vector, turn: int, clip: float) -> Vector:
    """Return the noised direction of a round with the module's answer.

    Of the parameters that are made, the direction is the answer alone: nothing is learned from the noise there. The
    answer for all others is no longer than the clip, as what records add.
    """
    module = engine.module_at(w)
    free = [value for value in module.parameters() if value.requires_grad]
    own = {id(value) for value in module.made()}
    made = [value for value in free if id(value) in own]
    judged = [value for value in free if id(value) not in own]
    if not made or not judged:
        raise BadValue("generator.module must have parameters that are made, and others that judge them.")
    with right_threads(w.size), deterministic(), torch.enable_grad():
        first, second = module.answer(torch.Generator().manual_seed(turn))
        slopes = _slopes(first, judged, keep=True), _slopes(second, made, keep=False)
    length = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in slopes[0]])))
    shorter = min(1.0, clip / length) if length > 0 else 1.0
    parts = {id(value): one * shorter for value, one in zip(judged, slopes[0], strict=True)}
    parts |= {id(value): one for value, one in zip(made, slopes[1], strict=True)}
    answer: Vector = torch.cat([parts[id(value)].flatten() for value in free]).cpu().numpy()
    replaced = np.concatenate([np.full(value.numel(), id(value) in own) for value in free])
    return np.asarray(np.where(replaced, answer, direction + answer), dtype=np.float64)


def _slopes(loss: Any, values: list[Any], *, keep: bool) -> list[Any]:
    slopes = torch.autograd.grad(loss, values, retain_graph=keep, allow_unused=True)
    filled = [torch.zeros_like(value) if one is None else one for one, value in zip(slopes, values, strict=True)]
    return [one.detach().double() for one in filled]
