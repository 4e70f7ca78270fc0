"""Labels: declared classes, a threshold, or a number in a declared range; never learned from the data."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.data.cells import Texts, canonical
from fedveil.data.spec import Span

Classes = tuple[str, ...] | int


def unlisted(target: Texts, classes: Classes) -> NDArray[np.bool_]:
    """Return which rows have a label that is not among the classes."""
    allowed = {str(k) for k in range(classes)} if isinstance(classes, int) else set(classes)
    return target.where(lambda word: canonical(word) not in allowed)


def class_indices(target: Texts, classes: Classes, name: str, place: Callable[[int], str]) -> Vector:
    """Return the index of each row's class; refuse an undeclared label, with its place."""
    allowed = tuple(str(k) for k in range(classes)) if isinstance(classes, int) else classes
    index = {word: number for number, word in enumerate(allowed)}
    codes = np.array([index.get(canonical(word), -1) for word in target.words], dtype=np.float64)[target.codes]
    unknown = np.flatnonzero(codes < 0)
    if unknown.size:
        row = int(unknown[0])
        shown = ", ".join(allowed[:12]) + (", ..." if len(allowed) > 12 else "")
        got = canonical(target.words[int(target.codes[row])])
        hint = 'Declare every label, or leave out such records: data.unlisted = "drop-row".'
        require(False, f"{place(row)}, {name}", f"be one of data.classes: {shown}", got, hint)
    return np.asarray(codes)


def above(target: Vector, threshold: float) -> Vector:
    """Return class 1 if the target is above the threshold, otherwise class 0."""
    return (target > threshold).astype(np.float64)


def scaled(target: Vector, span: Span) -> Vector:
    """Return a number to predict, cut to its public range and mapped to [-1, 1]."""
    low, high = span
    with np.errstate(over="ignore"):
        moved = (np.asarray(target, dtype=np.float64) - (low / 2 + high / 2)) / (high / 2 - low / 2)
    return np.asarray(np.clip(moved, -1.0, 1.0))  # last, because the division may round to slightly above 1
