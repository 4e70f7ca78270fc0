"""TenSEAL, loaded when it is first needed: the one place that looks for it. Only the homomorphic files import this."""

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedveil.errors import BadValue


def has_tenseal() -> bool:
    """Whether TenSEAL is installed."""
    return find_spec("tenseal") is not None


@lru_cache(maxsize=1)
def tenseal() -> Any:
    """The library; refuses, with the way out, where it is missing."""
    if not has_tenseal():
        raise BadValue('server = "homomorphic" must find TenSEAL installed, and it is not: install fedveil[he].')
    return import_module("tenseal")
