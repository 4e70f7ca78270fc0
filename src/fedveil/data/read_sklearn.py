"""Data sets that come with scikit-learn, with the classes and ranges that their descriptions publish.

The ranges are constants from the published descriptions of the data sets, not computed from the rows.
"""

import importlib
from typing import Any

import numpy as np

from fedveil.core.errors import BadValue
from fedveil.data.spec import Source, Span
from fedveil.data.table import Opened, block_of

# fmt: off
CANCER: tuple[Span, ...] = (
    (6.981, 28.11), (9.71, 39.28), (43.79, 188.5), (143.5, 2501.0), (0.053, 0.163), (0.019, 0.345), (0.0, 0.427),
    (0.0, 0.201), (0.106, 0.304), (0.05, 0.097), (0.112, 2.873), (0.36, 4.885), (0.757, 21.98), (6.802, 542.2),
    (0.002, 0.031), (0.002, 0.135), (0.0, 0.396), (0.0, 0.053), (0.008, 0.079), (0.001, 0.03), (7.93, 36.04),
    (12.02, 49.54), (50.41, 251.2), (185.2, 4254.0), (0.071, 0.223), (0.027, 1.058), (0.0, 1.252), (0.0, 0.291),
    (0.156, 0.664), (0.055, 0.208),
)
WINE: tuple[Span, ...] = (
    (11.0, 14.8), (0.74, 5.80), (1.36, 3.23), (10.6, 30.0), (70.0, 162.0), (0.98, 3.88), (0.34, 5.08), (0.13, 0.66),
    (0.41, 3.58), (1.3, 13.0), (0.48, 1.71), (1.27, 4.00), (278.0, 1680.0),
)
# fmt: on
RANGES: dict[str, tuple[Span, ...]] = {
    "breast_cancer": CANCER,
    "wine": WINE,
    "digits": ((-16.0, 16.0),) * 64,  # counts of 0 to 16 pixels, so no ink stays 0
    "diabetes": ((-0.2, 0.2),) * 10,  # shipped centred, with columns of norm one
}
CLASSES = {"breast_cancer": 2, "wine": 3, "digits": 10}
PROGRESSION: Span = (25.0, 346.0)  # range of the target of diabetes, as described


def open_shipped(source: Source, name: str) -> tuple[Opened, Source]:
    """Return the rows, and the source completed by published facts where the study left them open."""
    try:
        datasets: Any = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise BadValue("The data sets sklearn:NAME need scikit-learn: install it, or name a file.") from error
    bunch = getattr(datasets, f"load_{name}")()
    names = tuple(str(column) for column in bunch.feature_names)
    source = _completed(source, name, names)
    block, target = np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target, dtype=np.float64)
    return block_of(block, target, names, f"sklearn:{name}", "row"), source


def _completed(source: Source, name: str, names: tuple[str, ...]) -> Source:
    features = source.features.columns or tuple(column for column in names if column not in source.features.ignore)
    apart = {*source.features.categories, source.client_column, source.person_column}
    if source.features.default_scale is None and source.learned != "all":
        known = {n: r for n, r in zip(names, RANGES[name], strict=True) if n in features and n not in apart}
        source = source.with_keys(scale={**known, **source.features.scale})
    if not source.labelling.rules:
        regression = name not in CLASSES
        source = source.with_keys(classes=CLASSES.get(name), target_scale=PROGRESSION if regression else None)
    return source
