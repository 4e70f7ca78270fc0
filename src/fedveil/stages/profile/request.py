"""What a profile asks of a source, and the noisy sums that its budget allows."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from fedveil.core.errors import CannotCertify
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
from fedveil.privacy.trust import CENTRAL
from fedveil.stages.measured.plan import PROFILE, MeasuredPlan, spend_budget
from fedveil.stages.prepare.budget import total_mu
from fedveil.stages.prepare.columns import Columns
from fedveil.stages.prepare.learned import threshold_of
from fedveil.stages.prepare.ranges import BINS
from fedveil.stages.prepare.types import numbers_in, words_in
from fedveil.stages.profile.profile import FILE
from fedveil.stages.sums import SIGNED, Measurement, NoisySums, counted, root_up, variance_left

# The measurements of a profile: which, and with how much noise, decided by public numbers alone.
#
# Shares are shares of mu squared, in which Gaussian mechanisms add up. The whole budget is spent: a profile trains
# nothing that would need a part of it.

_WEIGHTS: Final = {"ranges": 0.25, "categories": 0.35, "means": 0.1, "spreads": 0.1, "moments": 0.2}
_SLIP: Final = 0.005  # of delta, for words that should not have been shown
_CORRELATION: Final = 0.1  # the largest error of a correlation that is still worth measuring
_MOST_NUMBERS: Final = 100  # columns of numbers up to which all pairs are looked at
CLASSES: Final = 10  # classes of the target that enter the correlations
_MOST_SHARE: Final = 0.998  # of the budget, so that the grid and the thresholds keep a part


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many columns are measured as numbers, and how many as words (the target may be both)."""

    numbers: int
    texts: int
    target: bool

    @property
    def pairs(self) -> int:
        """Entries of a row whose products are added up, at most."""
        return self.numbers + (CLASSES if self.target else 0)


def profile_plan(name: str, data: DataShape, target: Target, sizes: Sizes, places: Places | None) -> MeasuredPlan:
    """Return the plan that spends the target's budget on everything worth measuring."""

    def plan(share: float) -> MeasuredPlan:
        sums = _measurements(data, target, sizes, share)
        return MeasuredPlan(name=name, stage=PROFILE, file=FILE, data=data, target=target, sums=sums, places=places)

    return spend_budget(plan, target, "a profile", _MOST_SHARE)


def _measurements(data: DataShape, target: Target, sizes: Sizes, share: float) -> NoisySums:
    left = variance_left(target.adversary, data, target, CENTRAL)
    if not left > 0:
        raise CannotCertify(f"{target.adversary} knows all of the noise, so nothing can be promised")
    whole = target.sensitivity / (total_mu(target) * math.sqrt(left))
    units = data.clients if target.unit == "client" else data.records
    names = _names(sizes, whole / units)
    total = math.fsum(_WEIGHTS[name] for name in names)

    def noise(name: str) -> float:
        return whole / counted(name not in SIGNED, target.neighbours) / math.sqrt(share * _WEIGHTS[name] / total)

    made = (_measured(name, data, target, sizes, noise(name)) for name in names)
    return NoisySums(measurements=tuple(made), share=share)


def _names(sizes: Sizes, noise: float) -> list[str]:
    """What is measured. ``noise``: on the mean of contributions of norm 1, with the whole budget."""
    names = ["ranges"] if sizes.numbers else []
    names += ["categories"] if sizes.texts else []
    names += ["means", "spreads"] if sizes.numbers else []
    error = noise * (sizes.numbers + 1) / math.sqrt(_WEIGHTS["moments"])
    if 1 <= sizes.numbers <= _MOST_NUMBERS and sizes.numbers + sizes.target >= 2 and error <= _CORRELATION:
        names.append("moments")
    return names


def _measured(name: str, data: DataShape, target: Target, sizes: Sizes, noise: float) -> Measurement:
    count = sizes.texts if name == "categories" else sizes.numbers
    bound, size = root_up(count), count
    if name == "ranges":
        size = BINS * count
    elif name == "moments":
        bound, size = float(sizes.numbers + sizes.target), sizes.pairs * (sizes.pairs + 1) // 2
    if name != "categories":
        return Measurement(name=name, size=size, bound=bound, noise=noise, counts=name not in SIGNED)
    words = data.largest_client if target.unit == "client" else target.largest_person
    slip = _SLIP * target.delta / (1 + math.exp(target.epsilon))
    deviation = noise * bound * (1 + 2.0**-40)
    threshold, chance = threshold_of(deviation, slip, count, words, target.largest_person)
    return Measurement(
        name=name, size=data.records * count, bound=bound, noise=noise, threshold=threshold, slip=chance, counts=True
    )


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
