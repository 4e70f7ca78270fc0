"""Rows drawn from a torch module that generates them: its ``sample`` of classes and a generator of random numbers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.model.torch_library import torch
from fedveil.values import Indices, Matrix, Vector

if TYPE_CHECKING:
    from fedveil.model.torch_engine import Engine


def check_samples(engine: "Engine", features: int) -> None:
    """Refuse a module that draws no rows: a generator is of use for nothing else."""
    kinds = np.arange(min(engine.classes, 3), dtype=np.int64)
    _ = sampler(engine, np.zeros(engine.start.size), features)(kinds, 0)


def sampler(engine: "Engine", w: Vector, features: int) -> Callable[[Indices, int], Matrix]:
    """Return what draws a row for each of the given classes, from a seed."""
    module = engine.module_at(w)
    hint = "It draws a row for each class: sample(classes, generator), with a torch.Generator."
    require(callable(getattr(module, "sample", None)), "generator.module", "have a method sample", "none", hint)

    def draw(kinds: Indices, seed: int) -> Matrix:
        source = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            try:
                found = module.sample(torch.from_numpy(kinds).to(engine.dtype), source)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
                reason = str(error).splitlines()[0]
                raise BadValue(f"generator.module must draw rows of {kinds.size} classes: {reason}") from error
        right = isinstance(found, torch.Tensor) and found.numel() == kinds.size * features
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        require(right, "generator.module", f"draw {kinds.size} rows of {features} numbers", shape)
        rows = np.asarray(found.reshape(kinds.size, features).double().cpu().numpy())
        require(bool(np.isfinite(rows).all()), "generator.module", "draw finite numbers", "others")
        return rows

    return draw
