"""Public records in the shape of a plan's data, for attacks that may not be tried on, or shown with, the real ones.

Rows that can be square pictures are scikit-learn's digits, enlarged to fit; other rows are random. Leakage depends on
the plan (who is summed with whom, and the noise) and hardly on the records.
"""

import numpy as np
from numpy.typing import NDArray

from fedveil.audit.pictures import square
from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.values import Vector
from fedveil.data.records import DataShape, Records

_MOST_NUMBERS = 200_000_000


def synthetic_records(shape: DataShape, generator: np.random.Generator) -> Records:
    """Return records of exactly this shape.

    The last entry of a row is a constant unless the row is a square picture.
    """
    numbers = shape.records * shape.features
    hint = "Attack a plan of fewer records."
    require(numbers <= _MOST_NUMBERS, "Stand-ins", f"hold at most {_MOST_NUMBERS:,} numbers", numbers, hint)
    side = square(shape.features) or square(shape.features - 1)
    if side is not None:
        rows, labels = _digits(shape.records, side[0])
    else:
        rows = generator.uniform(0.1, 1.0, size=(shape.records, max(1, shape.features - 1)))
        labels = np.arange(shape.records)
    part = shape.bound * (1 - 1e-9) * (1.0 if rows.shape[1] == shape.features else np.sqrt(0.5))
    rows = rows * (part / np.linalg.norm(rows, axis=1, keepdims=True))
    if rows.shape[1] < shape.features:
        rows = np.hstack([rows, np.full((shape.records, 1), part)])
    targets = labels % shape.classes if shape.classes else generator.uniform(-1, 1, size=shape.records)
    owner = np.repeat(np.arange(shape.clients), _sizes(shape))
    return Records(
        features=np.ascontiguousarray(rows, dtype=np.float64),
        targets=np.asarray(targets, dtype=np.float64),
        owner=owner.astype(np.int64),
        clients=shape.clients,
        bound=shape.bound,
        classes=shape.classes,
    )


def _digits(count: int, side: int) -> tuple[Vector, NDArray[np.int64]]:
    """Return pictures with ``side`` points a side, repeated if there are too few, and the digits they show."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    which, places = np.arange(count) % labels.size, np.arange(side) * 8 // side
    pictures = pixels.reshape(-1, 8, 8)[which][:, places][:, :, places]
    return pictures.reshape(count, -1) / 16 + 1e-6, labels[which].astype(np.int64)  # so that no row is zero


def _sizes(shape: DataShape) -> NDArray[np.int64]:
    """Return the number of records of each client: one largest, one smallest, the others as even as these allow."""
    clients, least, most = shape.clients, shape.smallest_client, shape.largest_client
    sizes = np.full(clients, least)
    left = shape.records - least * clients
    sizes[0] += (first := min(left, most - least))
    left -= first
    open_ = clients - 2  # the last client stays the smallest
    if left > 0 and open_ > 0:
        sizes[1:-1] += left // open_
        sizes[1 : 1 + left % open_] += 1
    fits = sizes.sum() == shape.records and sizes.max() == most and sizes.min() == least
    if not fits:
        raise BadValue(f"The data's shape must be possible, and {shape} is not.")
    return sizes
