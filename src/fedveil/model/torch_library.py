"""PyTorch if it is installed, None if not: the one place that looks for it. Only the torch_*.py files import this."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedveil.errors import BadValue

torch: Any = import_module("torch") if find_spec("torch") else None


def need_torch() -> None:
    """Refuse, with the way out, where PyTorch is missing."""
    if torch is None:
        raise BadValue('model.kind = "torch" must find PyTorch installed, and it is not: install fedveil[torch].')
