"""Smaller messages from updates that are noised already: whatever is done here is post-processing and costs nothing."""

import numpy as np
from numpy.typing import NDArray

from fedveil.coding import packing
from fedveil.coding.rotation import rotated, rotated_back
from fedveil.coding.rounding import to_levels
from fedveil.coding.sparse import random_k, top_k
from fedveil.method.dpsgd import DpSgd
from fedveil.train.dpsgd_batch import subset
from fedveil.train.noise import Source

Vector = NDArray[np.float64]


def compressed(method: DpSgd, update: Vector, source: Source) -> Vector:
    """What arrives of a noised update. Random coordinates and random rounding keep its mean; the largest do not."""
    kept = packing.kept_of(method.keep, update.size)
    match method.compression:
        case "random-k":
            return random_k(update, subset(source, kept, update.size))
        case "top-k":
            return top_k(update, kept)
        case "quantised":
            return to_levels(update, method.levels, source.words(update.size))
        case "rotated":
            seed = source.words(1).tobytes()
            return rotated_back(to_levels(rotated(update, seed), method.levels, source.words(update.size)), seed)
        case _:
            return update


def message_bytes(method: DpSgd, size: int) -> int:
    """Bytes of one update."""
    return packing.message_bytes(method.compression, size, keep=method.keep, levels=method.levels)
