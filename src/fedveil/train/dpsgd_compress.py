"""Smaller messages from updates that are noised already: whatever is done here is post-processing and costs nothing."""

import math

import numpy as np
from numpy.typing import NDArray

from fedveil.method.dpsgd import DpSgd
from fedveil.train.dpsgd_batch import subset
from fedveil.train.noise import Source

Vector = NDArray[np.float64]


def compressed(method: DpSgd, update: Vector, source: Source) -> Vector:
    """What arrives of a noised update. Random coordinates and random rounding keep its mean; the largest do not."""
    kept = _kept(method, update.size)
    match method.compression:
        case "random-k":
            chosen = subset(source, kept, update.size)
            return _only(update, chosen) * (update.size / kept)
        case "top-k":
            return _only(update, np.argsort(-np.abs(update), kind="stable")[:kept])
        case "quantised":
            return _rounded(update, method.levels, source)
        case _:
            return update


def message_bytes(method: DpSgd, size: int) -> int:
    """Bytes of one update: numbers of eight, places of four; chosen places are told by a seed of eight."""
    kept = _kept(method, size)
    match method.compression:
        case "random-k":
            return 8 * kept + 8
        case "top-k":
            return 12 * kept
        case "quantised":
            return math.ceil(size * math.ceil(math.log2(2 * method.levels + 1)) / 8) + 8
        case _:
            return 8 * size


def _kept(method: DpSgd, size: int) -> int:
    return max(1, math.floor(method.keep * size))


def _only(update: Vector, chosen: NDArray[np.int64]) -> Vector:
    found = np.zeros_like(update)
    found[chosen] = update[chosen]
    return found


def _rounded(update: Vector, levels: int, source: Source) -> Vector:
    """Each number up or down to a multiple of largest / levels, by a coin that keeps its mean."""
    largest = float(np.max(np.abs(update)))
    if largest == 0:
        return update
    scaled = update * (levels / largest)
    low = np.floor(scaled)
    up = (source.words(update.size) >> np.uint64(11)) * 2.0**-53 < scaled - low
    return np.asarray((low + up) * (largest / levels), dtype=np.float64)
