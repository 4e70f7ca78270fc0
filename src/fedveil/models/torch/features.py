"""A torch module as a frozen feature map: a function of rows that is never trained.

It is one of the public maps of docs/feature-maps.md: records go through it one by one, and a linear model on top of it
is trained with all that is proved for linear models.
"""

import hashlib
from typing import Any, final

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Matrix
from fedveil.models.torch.library import need_torch, torch
from fedveil.models.torch.loss import PRECISIONS


@final
class FrozenFeatures:
    """The module's outputs as numbers: in evaluation mode, on the processor, without gradients.

    ``shape``: of one record as the module takes it, for example (1, 28, 28); without it a record is a flat row.
    ``fingerprint``: of structure and parameters, so that a plan that names the map names these very numbers.
    """

    def __init__(self, module: Any, *, shape: tuple[int, ...] | None = None, precision: str = "float64") -> None:
        need_torch()
        right = isinstance(module, torch.nn.Module)
        require(right, "A frozen module", "be a torch.nn.Module", type(module).__name__)
        require(precision in PRECISIONS, "precision", f"be one of {', '.join(PRECISIONS)}", precision)
        self._type, self._shape = getattr(torch, precision), shape
        self._module = module.to(device="cpu", dtype=self._type).eval().requires_grad_(False)
        self.fingerprint = _fingerprint(self._module, shape, precision)

    def __call__(self, rows: Matrix) -> Matrix:
        """Return one row of numbers for each given row."""
        given = torch.from_numpy(np.ascontiguousarray(rows)).to(self._type)
        if self._shape is not None:
            given = given.reshape(-1, *self._shape)
        with torch.no_grad():
            outputs = self._module(given)
        return np.asarray(outputs.reshape(len(rows), -1).double().numpy())


def _fingerprint(module: Any, shape: tuple[int, ...] | None, precision: str) -> str:
    digest = hashlib.sha256(repr((str(module), shape, precision)).encode())
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value.double().numpy()).tobytes())
    return digest.hexdigest()
