"""The one door to PyTorch: imported if it is installed, otherwise None; and how it computes: where, and how exactly."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from fedveil.core.errors import BadValue, require

torch: Any = import_module("torch") if find_spec("torch") else None
_SMALL: Final = 2**16  # parameters, up to which a second thread gains nothing


def need_torch() -> None:
    """Refuse, and say how to install it, if PyTorch is missing."""
    if torch is None:
        raise BadValue('model.kind = "torch" must find PyTorch installed, and it is not: install fedveil[torch].')


def device() -> str:
    """Return where modules run: the processor, or the CUDA device that FEDVEIL_TORCH_DEVICE names.

    There kernels must be deterministic, and none may be chosen by how fast it was: torch refuses those that are not.
    """
    name = os.environ.get("FEDVEIL_TORCH_DEVICE", "cpu")
    if name != "cpu":
        there = name.split(":")[0] == "cuda" and torch.cuda.is_available()
        require(there, "FEDVEIL_TORCH_DEVICE", "be cpu, or a CUDA device that torch finds", name)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
    return name


@contextmanager
def right_threads(parameters: int) -> Iterator[None]:
    """Compute a small module in one thread for a while: several would mostly wait for each other.

    On a busy machine they wait for their turn at every layer: blocks of 32 rows and 738 parameters then took 25 times
    the processor time that one thread takes.
    """
    before = torch.get_num_threads()
    if parameters > _SMALL or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
