"""Names for the number and array types in use, and functions that convert a given number to a plain one."""

import math
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]


def number(name: str, value: Any) -> float:
    """Return a float from any kind of real number; True, "1" and lists are refused."""
    if type(value) is float:
        return value
    require(isinstance(value, Real) and not isinstance(value, bool), name, "be a number", value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def whole(name: str, value: Any) -> int:
    """Return an int from any kind of whole number."""
    if type(value) is int:
        return value
    require(number(name, value).is_integer(), name, "be a whole number", value)
    return int(value)


def many(name: str, value: Any, kind: Any) -> Any:
    """Return one number, or a tuple of numbers from any flat sequence."""
    flat = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return tuple(kind(name, item) for item in value) if flat else kind(name, value)


def settle(owner: Any, kind: Any, *fields: str) -> None:
    """Replace the numbers in these fields by plain ones, which compare and hash alike; None stays None."""
    optional = ("records", "place", "smoothness", "diameter", "rate", "largest_batch")
    for field in fields:
        value = getattr(owner, field)
        if value is not None or field not in optional:
            object.__setattr__(owner, field, kind(f"{type(owner).__name__}.{field}", value))
