"""Similarity of a guess to the true picture, and pictures as small tables of grey levels.

At best a gradient fixes a row up to its scale, so similarity is measured at the scale (and sign) that suits the
attacker best. Then noise levels can be compared, and no attack looks weaker than it is.
"""

import math

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector

Greys = list[list[int]]
_CEILING = 120.0  # decibels; beyond it, float64 rounding of an exact answer differs from machine to machine


def cosine(truth: Vector, guess: Vector) -> float:
    """Return |cos| of the angle between the two, from 0 (nothing in common) to 1; 0 for a guess of zeros.

    >>> cosine(np.array([3.0, 4.0]), np.array([-6.0, -8.0]))
    1.0
    """
    _check(truth, guess)
    length = float(np.linalg.norm(truth) * np.linalg.norm(guess))
    return min(1.0, abs(float(truth @ guess)) / length) if length > 0 else 0.0


def at_best_scale(truth: Vector, guess: Vector) -> Vector:
    """Return the multiple of the guess that is nearest to the truth, which gives the attacker the unknown scale."""
    _check(truth, guess)
    size = float(guess @ guess)
    return guess * (float(truth @ guess) / size) if size > 0 else np.zeros_like(guess)


def psnr(truth: Vector, guess: Vector) -> float:
    """Return the peak signal-to-noise ratio in decibels, at the best scale, at most 120.

    The peak is the range of the true picture.

    >>> psnr(np.array([0.0, 1.0]), np.array([0.0, 5.0])), round(psnr(np.array([0.0, 1.0]), np.array([1.0, 0.0])), 3)
    (120.0, 3.01)
    """
    error = float(np.mean((truth - at_best_scale(truth, guess)) ** 2))
    span = float(truth.max() - truth.min())
    require(span > 0, "truth", "be a picture with more than one grey", span)
    return _CEILING if error <= 0 else min(_CEILING, 10 * math.log10(span * span / error))


def greys(row: Vector, shape: tuple[int, int], span: tuple[float, float]) -> Greys:
    """Return the picture as rows of whole numbers from 0 to 255, the ends of ``span``; values outside are cut.

    >>> greys(np.array([0.0, 0.5, 1.0, 9.0]), (2, 2), (0.0, 1.0))
    [[0, 128], [255, 255]]
    """
    fits = row.size == shape[0] * shape[1]
    require(fits, "row", f"fill a picture of {shape[0]} by {shape[1]}", row.size)
    low, high = span
    require(low < high, "span", "rise", span)
    levels = np.clip((row - low) / (high - low), 0.0, 1.0)
    return np.rint(255 * levels).astype(int).reshape(shape).tolist()


def square(size: int) -> tuple[int, int] | None:
    """Return the shape of a square picture with so many points; None if there is none."""
    side = math.isqrt(size)
    return (side, side) if side * side == size and side > 1 else None


def _check(truth: Vector, guess: Vector) -> None:
    right = truth.ndim == 1 and truth.shape == guess.shape
    require(right, "guess", f"be a flat row like the truth, {truth.shape}", guess.shape)
    require(bool(np.isfinite(guess).all() and np.isfinite(truth).all()), "guess", "be finite", "NaN or infinity")
