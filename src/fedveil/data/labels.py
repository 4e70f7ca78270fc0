"""Labels: declared classes, a threshold, or a number in a declared range; never learned from the data."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.data.cells import canonical
from fedveil.data.spec import Span
from fedveil.data.table import Array
from fedveil.values import Vector

Classes = tuple[str, ...] | int


def unlisted(target: Array, classes: Classes) -> NDArray[np.bool_]:
    """Return which rows have a label that is not among the classes."""
    words, inverse = np.unique(target, return_inverse=True)
    allowed = {str(k) for k in range(classes)} if isinstance(classes, int) else set(classes)
    strange = np.array([canonical(word) not in allowed for word in words.tolist()], dtype=np.bool_)
    return np.asarray(strange[inverse.reshape(-1)])


def class_indices(target: Array, classes: Classes, name: str, place: Callable[[int], str]) -> Vector:
    """Return the index of each row's class; refuse an undeclared label, with its place."""
    allowed = tuple(str(k) for k in range(classes)) if isinstance(classes, int) else classes
    index = {word: number for number, word in enumerate(allowed)}
    words, inverse = np.unique(target, return_inverse=True)
    codes = np.array([index.get(canonical(word), -1) for word in words], dtype=np.float64)[inverse]
    unknown = np.flatnonzero(codes < 0)
    if unknown.size:
        row = int(unknown[0])
        shown = ", ".join(allowed[:12]) + (", ..." if len(allowed) > 12 else "")
        got = canonical(target[row])
        hint = 'Declare every label, or leave out such records: data.unlisted = "drop-row".'
        require(False, f"{place(row)}, {name}", f"be one of data.classes: {shown}", got, hint)
    return np.asarray(codes)


def above(target: Array, threshold: float) -> Vector:
    """Return class 1 if the target is above the threshold, otherwise class 0."""
    return np.asarray(target, dtype=np.float64).__gt__(threshold).astype(np.float64)


def scaled(target: Array, span: Span) -> Vector:
    """Return a number to predict, cut to its public range and mapped to [-1, 1]."""
    low, high = span
    with np.errstate(over="ignore"):
        moved = (np.asarray(target, dtype=np.float64) - (low / 2 + high / 2)) / (high / 2 - low / 2)
    return np.asarray(np.clip(moved, -1.0, 1.0))  # last, because the division may round to slightly above 1
