"""A generator: the cells of every column and a graphical model of them, computed from noisy sums alone.

It may be published, and rows drawn from it cost nothing more: they are computed without looking at any record.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object
from fedveil.core.values import Indices, Vector
from fedveil.stages.synthesise.fit import Clique, Fitted, Table, junction_tree
from fedveil.stages.synthesise.table import Cells, NumberCells, WordCells, added, cells_from

FILE: Final = "generator.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generator:
    """``groups``: of each column, the group of each cell. ``shares``: of each cell among all records.

    ``pairs``: the pairs of columns that were measured precisely, in the order of their choice. ``potentials``:
    logarithms over groups, which the model multiplies. ``target``: the column to predict, if there is one.
    ``records``: how many were measured (whole clients, where these are protected). ``errors``: the deviation of each
    measurement's noise, as a share of the records. ``limited``: whether pairs were left out because the model would
    have outgrown its limit.
    ``order``: the columns of the rows that are drawn, sums among them.
    """

    name: str
    target: str | None
    records: int
    columns: tuple[Cells, ...]
    groups: tuple[Indices, ...]
    shares: tuple[Vector, ...]
    pairs: tuple[Clique, ...]
    potentials: dict[Clique, Table]
    errors: dict[str, float]
    limited: bool = False
    zeros: tuple[dict[str, str], ...] = ()
    sums: dict[str, tuple[str, ...]] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.columns)
        same = len(self.groups) == len(self.shares) == count >= 1
        require(same, "A generator", "have groups and shares of every column", count)
        for cells, groups, shares in zip(self.columns, self.groups, self.shares, strict=True):
            fits = groups.shape == shares.shape == (cells.size,) and bool(np.all(np.isfinite(shares)))
            require(fits, f"The column {cells.name!r}", "have a group and a share of each cell", shares.shape)
        drawn = (*self.names, *self.sums)
        object.__setattr__(self, "order", self.order or drawn)
        same = sorted(self.order) == sorted(drawn)
        require(same, "A generator's order", "name every column that is drawn, once", self.order)
        for columns, table in self.potentials.items():
            fits = table.shape == tuple(self.sizes[one] for one in columns) and bool(np.all(np.isfinite(table)))
            require(fits, "A generator", "have finite potentials of the columns' sizes", table.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many groups each column has."""
        return tuple(int(groups.max()) + 1 for groups in self.groups)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns in order."""
        return tuple(cells.name for cells in self.columns)

    @property
    def fractions(self) -> tuple[str, ...]:
        """Columns of numbers that are drawn with fractions, since nobody stated that they hold whole numbers alone."""
        return tuple(one.name for one in self.columns if isinstance(one, NumberCells) and not one.whole)

    @property
    def wordless(self) -> tuple[str, ...]:
        """Columns of words that are all too rare to be shown: every row says the same there."""
        return tuple(one.name for one in self.columns if isinstance(one, WordCells) and one.open and not one.words)

    @property
    def model(self) -> Fitted:
        """The graphical model."""
        return Fitted(junction_tree(self.sizes, self.pairs), self.potentials)

    def within(self, column: int) -> Vector:
        """Return the share of each cell within its group."""
        groups, shares = self.groups[column], self.shares[column]
        held = added(shares, groups)
        even = 1.0 / np.bincount(groups)
        return np.where(held[groups] > 0, shares / np.where(held[groups] > 0, held[groups], 1.0), even[groups])

    def text(self) -> str:
        """Return the generator as JSON; reading it gives an equal value."""
        values = {
            "format": FORMAT,
            "name": self.name,
            "target": self.target,
            "records": self.records,
            "columns": [cells.table() for cells in self.columns],
            "groups": [one.tolist() for one in self.groups],
            "shares": [one.tolist() for one in self.shares],
            "pairs": [list(pair) for pair in self.pairs],
            "potentials": [[list(key), table.tolist()] for key, table in self.potentials.items()],
            "errors": self.errors,
            "limited": self.limited,
            "zeros": [dict(one) for one in self.zeros],
            "sums": {key: list(parts) for key, parts in self.sums.items()},
            "order": list(self.order),
        }
        return json.dumps(values, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, text: str | bytes) -> "Generator":
        """Return the generator that :meth:`text` wrote."""
        given: dict[str, Any] = read_object(text, FILE)
        form = given.pop("format", None)
        require(form == FORMAT, f"{FILE}: format", f"be {FORMAT}", form, "It was written by another version.")
        try:
            return cls(
                columns=tuple(cells_from(one) for one in given.pop("columns")),
                groups=tuple(np.array(one, dtype=np.int64) for one in given.pop("groups")),
                shares=tuple(np.array(one, dtype=np.float64) for one in given.pop("shares")),
                pairs=tuple((int(a), int(b)) for a, b in given.pop("pairs")),
                potentials={tuple(key): np.array(rows, dtype=np.float64) for key, rows in given.pop("potentials")},
                zeros=tuple(given.pop("zeros")),
                sums={key: tuple(parts) for key, parts in given.pop("sums").items()},
                order=tuple(given.pop("order")),
                **given,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadValue(f"{FILE} must be as a generator wrote it: {error}.") from error
