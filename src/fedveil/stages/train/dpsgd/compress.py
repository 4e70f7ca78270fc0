"""Smaller messages from updates that are already noised: this is post-processing and costs no privacy."""

from fedveil.core.values import Vector
from fedveil.noise.grid import Source
from fedveil.stages.train.dpsgd.batch import subset
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.sums.coding import packing
from fedveil.sums.coding.rotation import rotated, rotated_back
from fedveil.sums.coding.rounding import to_levels
from fedveil.sums.coding.sparse import random_k, top_k


def compressed(method: DpSgd, update: Vector, source: Source) -> Vector:
    """Return what arrives of a noised update.

    Random coordinates and random rounding keep its mean; keeping the largest coordinates does not.
    """
    kept = packing.kept_of(method.compression.keep, update.size)
    match method.compression.kind:
        case "random-k":
            return random_k(update, subset(source, kept, update.size))
        case "top-k":
            return top_k(update, kept)
        case "quantised":
            return to_levels(update, method.compression.levels, source.words(update.size))
        case "rotated":
            seed = source.words(1).tobytes()
            moved = to_levels(rotated(update, seed), method.compression.levels, source.words(update.size))
            return rotated_back(moved, seed)
        case _:
            return update


def message_bytes(method: DpSgd, size: int) -> int:
    """Return the bytes of one update."""
    how = method.compression
    return packing.message_bytes(how.kind, size, keep=how.keep, levels=how.levels)
