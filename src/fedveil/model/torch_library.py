"""Import PyTorch if it is installed, otherwise None. Only the torch_*.py files import this."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedveil.errors import BadValue

torch: Any = import_module("torch") if find_spec("torch") else None


def need_torch() -> None:
    """Refuse, and say how to install it, if PyTorch is missing."""
    if torch is None:
        raise BadValue('model.kind = "torch" must find PyTorch installed, and it is not: install fedveil[torch].')
