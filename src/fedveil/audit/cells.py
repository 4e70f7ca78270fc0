"""A released law as masses of cells, with bounds on their errors; the common form of all exact laws."""

from dataclasses import dataclass

import numpy as np

from fedveil.core.values import Vector


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CellLaw:
    """Masses of the atom at lo, of the cells between ``edges``, and of the atom at hi.

    For every event A that is a union of them, the truth lies between ``A / factor - error`` and ``A * factor + error``.
    ``beyond``: the mass that a law without projection may have outside, merged into the ends here. ``low`` and
    ``high``: bounds on the slope of the log-density within each cell, of the law as computed.
    """

    edges: Vector
    masses: Vector
    factor: float
    error: float
    beyond: float
    low: Vector
    high: Vector


def add(laws: list[CellLaw]) -> CellLaw:
    """Return the sum of weighted laws on the same cells; errors add up, and factors and slopes are the worst of any."""
    return CellLaw(
        edges=laws[0].edges,
        masses=np.asarray(np.sum([law.masses for law in laws], axis=0), dtype=np.float64),
        factor=max(law.factor for law in laws),
        error=sum(law.error for law in laws),
        beyond=sum(law.beyond for law in laws),
        low=np.asarray(np.min([law.low for law in laws], axis=0), dtype=np.float64),
        high=np.asarray(np.max([law.high for law in laws], axis=0), dtype=np.float64),
    )
