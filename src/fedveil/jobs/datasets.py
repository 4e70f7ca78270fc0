"""A ``torch.utils.data.Dataset`` as the records of a study: pairs of an array and a label, read once, in their order.

PyTorch itself is not needed for it: a data set is recognised by its class.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.limits import check_cells

LABEL = "label"  # the column of what is to be predicted


def is_dataset(data: Any) -> bool:
    """Return whether this is a data set of PyTorch."""
    kinds = type(data).__mro__
    return any(kind.__name__ == "Dataset" and kind.__module__.startswith("torch.utils.data") for kind in kinds)


def dataset_columns(dataset: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a data set: "0", "1", ... for the entries of its arrays, flattened, and ``label``."""
    counted = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    hint = "The plan states how many records there are."
    require(counted, "The data set", "have a length and items", type(dataset).__name__, hint)
    count = len(dataset)
    require(count >= 1, "The data set", "have at least one record", count)
    rows, labels = None, []
    for place in range(count):
        entries, label = _pair(dataset[place], place)
        if rows is None:
            check_cells("The data set", count, entries.size)
            rows = np.empty((count, entries.size), dtype=entries.dtype)
        require(entries.size == rows.shape[1], f"Record {place}", f"have {rows.shape[1]} numbers", entries.size)
        rows[place] = entries
        labels.append(label)
    assert rows is not None  # noqa: S101  for the type checker
    columns: dict[str, NDArray[Any]] = {str(place): column for place, column in enumerate(rows.T)}
    return {**columns, LABEL: np.array(labels)}


def _pair(item: Any, place: int) -> tuple[NDArray[Any], Any]:
    """Return the numbers and the label of one item."""
    pair = isinstance(item, list | tuple) and len(item) == 2
    require(pair, f"Record {place}", "be a pair of an array and a label", type(item).__name__)
    try:
        entries, label = np.asarray(item[0]).reshape(-1), np.asarray(item[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadValue(f"Record {place} must hold numbers: {error}.") from error
    require(entries.dtype.kind in "biuf", f"Record {place}", "hold numbers", str(entries.dtype))
    one = label.size == 1 and label.dtype.kind in "biufU"
    require(one, f"Record {place}", "have one label", (label.shape, str(label.dtype)))
    return entries, label.reshape(()).item()
