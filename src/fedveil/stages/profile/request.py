"""What a user asks of a profile, and the cells it is made from."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedveil.core.values import Indices
from fedveil.data.fingerprint import RawRows
from fedveil.data.load import client_of
from fedveil.data.missing import without_client
from fedveil.data.records import DataShape
from fedveil.data.sources import read
from fedveil.data.spec import PLACES, Places, Source, Split
from fedveil.data.split import natural_owners
from fedveil.data.table import Table
from fedveil.privacy.target import Target
from fedveil.stages.prepare.columns import Columns
from fedveil.stages.prepare.types import numbers_in, words_in
from fedveil.stages.profile.budget import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """Where the data are, how they are read, which column is to be predicted, and the target.

    ``kinds``: the columns that hold numbers (True) or texts; others are left out. Which columns hold what counts as
    public, like their names.
    """

    name: str
    base: Path
    source: Source
    kinds: dict[str, bool] = field(hash=False)
    target: Target

    @property
    def predicted(self) -> str:
        """The column to predict."""
        return str(self.source.labelling.target)

    @property
    def split(self) -> Split:
        """Who holds which record: as a column says, or one holder all of them."""
        return Split(kind="column") if self.source.client_column is not None else Split(kind="equal", count=1)

    @property
    def places(self) -> Places | None:
        """What decides who holds which record, where that is more than row numbers."""
        return PLACES.get(self.split.kind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfileData:
    """The cells of all columns, who owns each row, and the rows' fingerprint."""

    columns: Columns
    numbers: tuple[str, ...]
    owner: Indices
    clients: int
    raw: RawRows
    sizes: Sizes
    shape: DataShape

    def fingerprint(self, key: bytes) -> str:
        """Return the keyed hash of all rows of the source, as they were read."""
        return self.raw.fingerprint(key)


def open_data(request: ProfileRequest) -> ProfileData:
    """Read the cells; a text among numbers, and a number that is infinite, are refused by their place."""
    table, source = read(replace(request.source, learned="all"), request.base)
    rows = ~without_client(table, source) if source.client_column is not None else np.ones(len(table), dtype=np.bool_)
    columns, numbers = _columns(table, source, request)
    columns = columns.rows(np.flatnonzero(rows).astype(np.int64))
    owner, clients = np.zeros(int(rows.sum()), dtype=np.int64), 1
    named = client_of(table, source, request.split, request.base)
    if named is not None:
        owner, names = natural_owners(named.rows(rows))
        clients = len(names)
    held = np.bincount(owner, minlength=clients)
    shape = DataShape(
        records=int(rows.sum()),
        features=len(request.kinds),
        classes=0,
        clients=clients,
        largest_client=int(held.max()),
        smallest_client=int(held.min()),
        bound=1.0,
    )
    sizes = Sizes(len(numbers), len(columns.texts), request.predicted in columns.texts)
    return ProfileData(
        columns=columns, numbers=numbers, owner=owner, clients=clients, raw=table.raw, sizes=sizes, shape=shape
    )


def _columns(table: Table, source: Source, request: ProfileRequest) -> tuple[Columns, tuple[str, ...]]:
    """The target's cells are counted as words, whatever they are, and as numbers too if they are numbers."""
    dropped = np.zeros(len(table), dtype=np.bool_)
    numbers, texts = {}, {}
    for name, numeric in request.kinds.items():
        if numeric:
            numbers[name] = numbers_in(table, source, name, dropped)
        if not numeric or name == request.predicted:
            texts[name] = words_in(table, source, name, dropped)
    block = np.column_stack(list(numbers.values())) if numbers else np.zeros((len(table), 0))
    return Columns(numbers=block, texts=texts), tuple(numbers)
