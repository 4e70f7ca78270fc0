"""Import TenSEAL when it is first needed. Only the homomorphic files use this."""

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedveil.core.errors import BadValue


def has_tenseal() -> bool:
    """Return whether TenSEAL is installed."""
    return find_spec("tenseal") is not None


@lru_cache(maxsize=1)
def tenseal() -> Any:
    """Return the library; if it is missing, say how to install it."""
    if not has_tenseal():
        raise BadValue('server = "homomorphic" must find TenSEAL installed, and it is not: install fedveil[he].')
    return import_module("tenseal")
