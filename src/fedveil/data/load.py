"""From a study's data tables to records: read, fill or drop missing values, cut, hold out, split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.cells import Texts
from fedveil.data.expiry import expiry_of
from fedveil.data.features import features_of
from fedveil.data.fingerprint import Part, RawRows, rows_of
from fedveil.data.missing import Mask, above, class_indices, scaled, settle_missing, without_client
from fedveil.data.persons import persons_of
from fedveil.data.records import Records
from fedveil.data.row_rule import RowRule
from fedveil.data.rows import total_bound
from fedveil.data.sources import client_names, read
from fedveil.data.spec import HeldOut, Source, Split
from fedveil.data.split import held_out_rows, held_out_whole, natural_owners, owners
from fedveil.data.table import LABEL, Table

Generators = Callable[[int], np.random.Generator]  # makes a generator from a seed of the study
_TARGET = "\0target"  # no column of a source has this name
MOST_NAMES = 10_000  # with more clients than this, those that we assigned are called by their number only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldRows:
    """The rows of held-out records that do not come from the source of the records to train on.

    ``raw``: as they were read, where that is known. ``shared``: how many of them stand among the rows to train on too;
    that is for the data holder, not for release.
    """

    raw: RawRows | None
    shared: Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """Records to train on, and those held out. The number of dropped rows is for the data holder, not for release.

    ``preparation``: how the records became rows, where that is known; it is public. ``apart``: the held-out rows, where
    they have a source of their own; None where they are rows of the same source that training does not read.
    ``notes``: sentences for the data holder alone, computed without noise. ``rows``: the row of the source that each
    training record comes from, counted from 0; empty where there is no source. ``expires``: the day from which each
    training record may be in no model (expiry.py); empty where the study names no such column.
    """

    train: Records
    test: Records | None
    test_public: bool
    dropped_rows: int
    feature_names: tuple[str, ...]
    raw: RawRows | None = None
    preparation: RowRule | None = None
    apart: HeldRows | None = None
    notes: tuple[str, ...] = ()
    rows: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    expires: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def fingerprint(self, key: bytes) -> str:
        """Return the fingerprint of all rows of the source as read, or of the records if nothing else is known."""
        return self.train.fingerprint(key) if self.raw is None else self.raw.fingerprint(key)

    def cells_fingerprint(self, key: bytes) -> str:
        """Return the fingerprint of the records to train on."""
        return self.train.fingerprint(key)

    def held_fingerprint(self, key: bytes) -> str:
        """Return the fingerprint of the held-out records; empty where there are none."""
        return "" if self.test is None else self.test.fingerprint(key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """Bounded rows with targets, one for each row as read, before clients are assigned; a dropped row is blank.

    ``client``: what the data say about owners; ``owned``: which rows have one (all, if the data say nothing);
    ``person``: whose each row is, where persons are protected; ``expires``: as in :class:`Loaded`.
    """

    features: Matrix
    targets: Vector
    client: Texts | None
    owned: Mask
    person: Texts | None = None
    expires: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    classes: int
    bound: float
    dropped_rows: int
    feature_names: tuple[str, ...]
    preparation: RowRule | None = None
    raw: RawRows | None = None
    cells: RawRows | None = None  # what the study reads of the rows that are not blank
    notes: tuple[str, ...] = ()

    def records(self, rows: Mask, owner: Indices, names: tuple[str, ...], clients: int) -> Records:
        """Return the records of some rows."""
        everything = bool(rows.all())
        return Records(
            features=self.features if everything else self.features[rows],
            targets=self.targets if everything else self.targets[rows],
            owner=owner,
            clients=clients,
            bound=self.bound,
            classes=self.classes,
            names=names,
        )


def load(
    source: Source,
    split: Split,
    held_out: HeldOut | None = None,
    *,
    base: Path,
    generator: Generators,
    whole_clients: bool = False,
    read_rows: "Callable[[Source, Split, Path], Prepared] | None" = None,
) -> Loaded:
    """Return the records that the data tables of a study describe. ``generator``: such as numpy's ``default_rng``.

    Who is held out and who holds what is drawn on the rows as they were read: no value of a record, nor whether one is
    missing, moves another record or changes a size. ``whole_clients``: clients are what is protected, so those that
    the data names are held out whole, or not at all. ``read_rows``: what reads a source in place of :func:`prepare`.
    """
    read_rows = prepare if read_rows is None else read_rows
    whole = read_rows(source, split, base)
    test, chosen, apart = None, np.zeros(len(whole.targets), dtype=np.bool_), None
    if held_out is not None and held_out.fraction is not None:
        chosen = _held_out(whole, held_out.fraction, held_out.seed, generator, whole_clients)
        test = _measured(whole, chosen & whole.owned)
    elif held_out is not None and held_out.source is not None:
        other = read_rows(held_out.source, split, base)
        same = (other.feature_names, other.classes, other.bound) == (whole.feature_names, whole.classes, whole.bound)
        rule = "have the same features, classes and bound as [data]"
        require(same, "[data.held_out]", rule, (len(other.feature_names), other.classes, other.bound))
        test, apart = _measured(other, other.owned), _apart(whole, other)
    rows = ~chosen & whole.owned
    require(bool(rows.any()), "data.held_out.fraction", "leave rows with a client to train on", "none")
    train = _trained(whole, rows, split, generator)
    if whole_clients and split.natural and test is not None and not (held_out is not None and held_out.public):
        _check_apart(train, test)
    return Loaded(
        train=train,
        test=test,
        test_public=held_out is not None and (held_out.public or (source.public and held_out.fraction is not None)),
        dropped_rows=whole.dropped_rows,
        feature_names=whole.feature_names,
        raw=whole.raw,
        preparation=whole.preparation,
        apart=apart,
        notes=whole.notes,
        rows=np.flatnonzero(rows).astype(np.int64),
        expires=whole.expires[rows] if whole.expires.size else whole.expires,
    )


def _apart(whole: Prepared, other: Prepared) -> HeldRows:
    """Return the rows of a held-out source, which are compared with the training source only when it is asked."""
    pairs = ((other.raw, whole.raw), (other.cells, whole.cells))
    return HeldRows(raw=other.raw, shared=lambda: shared_rows(pairs))


def shared_rows(pairs: Sequence[tuple[RawRows | None, RawRows | None]]) -> int:
    """Return how many held-out rows stand among the rows to train on, by the view that finds most of them.

    Rows are compared as they were read, and as the study reads them: a copy that has one more column, or that is
    written differently, holds the same records.
    """
    return max((held.found_in(train) for held, train in pairs if held is not None and train is not None), default=0)


def given_apart(train: Records, test: Records) -> HeldRows:
    """Return the held-out rows of a program that brings both kinds of records."""
    pairs = ((test.raw, train.raw), (_arrays(test), _arrays(train)))
    return HeldRows(raw=test.raw, shared=lambda: shared_rows(pairs))


def _arrays(records: Records) -> RawRows:
    known = records.present()
    columns = {str(place): known.features[:, place] for place in range(known.features.shape[1])}
    return rows_of({**columns, _TARGET: known.targets})


def cells_of(numbers: Mapping[str, Vector], texts: Mapping[str, Texts], targets: Vector, dropped: Mask) -> RawRows:
    """Return what a study reads of the rows that are not dropped: every feature, and what is to be predicted."""

    def parts() -> Iterator[Part]:
        kept = slice(None) if not dropped.any() else ~dropped
        columns = {**numbers, _TARGET: targets}
        yield {name: column[kept] for name, column in columns.items()} | {
            name: column.rows(kept) for name, column in texts.items()
        }

    return RawRows(parts)


def prepare(source: Source, split: Split, base: Path) -> Prepared:
    """Read a source and apply its public rule to every row separately."""
    table, source = read(source, base)
    client = client_of(table, source, split, base)
    filled = settle_missing(table, source)
    person = persons_of(table, source, client, filled.dropped)
    expires, left_out = expiry_of(table, source, filled.dropped)
    features, names = features_of(table, filled, source)
    targets, classes = targets_of(table, source, filled.dropped)
    nobody = without_client(table, source) if split.kind == "column" else np.zeros_like(filled.dropped)
    numbers = dict(zip(table.choice.numbers, filled.numbers.T, strict=True))
    return Prepared(
        features=features,
        targets=targets,
        client=client,
        owned=~nobody,
        person=person,
        expires=expires,
        classes=classes,
        bound=total_bound(source.feature_bound, source.intercept),
        dropped_rows=int(filled.dropped.sum()),
        feature_names=names,
        preparation=RowRule.of(source, table.choice, len(names)),
        raw=table.raw,
        cells=cells_of(numbers, filled.texts, targets, filled.dropped),
        notes=(*target_notes(table, source, filled.dropped), *left_out),
    )


def target_notes(table: Table, source: Source, dropped: Mask) -> tuple[str, ...]:
    """Say to the data holder how many rows were dropped, and how many targets of the others the stated range cuts."""
    gone = int(dropped.sum())
    why = "lack a value" if source.largest_person is None else "lack a value, or their person has too many,"
    why += "" if source.as_of is None else " or have expired"
    notes = [f"{gone:,} rows {why} and were dropped; they count as records without content."] if gone else []
    if source.labelling.target_scale is not None and table.predicted:
        low, high = source.labelling.target_scale
        target = table.numbers(None, source.reading.missing)[~dropped]
        outside = (target < low) | (target > high)
        if outside.any():
            told = f"{float(np.mean(outside)):.1%} of the targets lie outside data.target_scale, [{low:g}, {high:g}]"
            notes.append(f"{told}, and were cut to it: state a wider range if these targets matter.")
    return tuple(notes)


def _held_out(whole: Prepared, fraction: float, seed: int, generator: Generators, whole_clients: bool) -> Mask:
    """Return the rows kept from training, chosen by row number, or by name where clients or persons are protected."""
    names = whole.client if whole_clients else whole.person
    if names is None:
        return held_out_rows(whole.targets.size, fraction, generator(seed))
    chosen = np.zeros(whole.targets.size, dtype=np.bool_)
    what = "clients" if whole_clients else "persons"
    chosen[whole.owned] = held_out_whole(names.rows(whole.owned), fraction, seed, what)
    return chosen


def places_of(rows: Indices, wanted: Indices, name: str) -> Indices:
    """Return where rows of the source (from 0) stand among those that train, ``rows``; refuse any others."""
    require(rows.size > 0, name, "name rows of a source", "records without one")
    places = np.searchsorted(rows, wanted)
    inside = (places < rows.size) & (rows[np.minimum(places, rows.size - 1)] == wanted)
    stray = (wanted[~inside] + 1).tolist()
    hint = "Held-out rows and rows beyond the end train nothing, so there is nothing to forget."
    require(not stray, name, "be rows that the run was trained on, counted from 1", stray[:5], hint)
    return places.astype(np.int64)


def _trained(whole: Prepared, rows: Mask, split: Split, generator: Generators) -> Records:
    """Return the training records with their owners."""
    if whole.client is not None:
        owner, names = natural_owners(whole.client.rows(rows))
        return whole.records(rows, owner, names, len(names))
    if whole.person is None:
        owner, count = owners(split, whole.targets[rows], generator(split.seed))
    else:  # a person's rows stay together: persons are dealt, as if each were one row
        first, person = np.unique(whole.person.codes[rows], return_index=True, return_inverse=True)[1:]
        owner, count = owners(split, whole.targets[rows][first], generator(split.seed))
        owner = owner[person.reshape(-1)]
    named = split.kind != "record" and count <= MOST_NAMES
    return whole.records(rows, owner, tuple(f"client {index + 1}" for index in range(count)) if named else (), count)


def _check_apart(train: Records, test: Records) -> None:
    """Refuse to measure on private records of a client that is protected as a whole."""
    both = sorted(set(train.names) & set(test.names))
    hint = "Otherwise the metrics would be a release about clients that the guarantee covers."
    rule = "be about other clients, or public, when privacy.unit is client"
    require(not both, "[data.held_out]", rule, f"{len(both)} clients that train", hint)


def targets_of(table: Table, source: Source, dropped: Mask) -> tuple[Vector, int]:
    """The targets of all rows, NaN for those that are dropped, and the number of classes (0: a number)."""
    result = np.full(len(table), np.nan)
    if not table.predicted:
        result[~dropped] = 0.0
        return result, 0
    if source.labelling.target_scale is not None or source.labelling.label_above is not None:
        values = table.numbers(None, source.reading.missing)[~dropped]
        scale = source.labelling.target_scale
        result[~dropped] = (
            above(values, source.labelling.label_above or 0.0) if scale is None else scaled(values, scale)
        )
        return result, 0 if scale is not None else 2
    classes = source.labelling.classes if source.labelling.classes is not None else 0
    count = classes if isinstance(classes, int) else len(classes)
    name = f"column {table.choice.target!r}" if table.choice.target is not None else LABEL
    rows = np.flatnonzero(~dropped)
    place = table.place if rows.size == len(table) else lambda row: table.place(int(rows[row]))
    result[~dropped] = class_indices(table.texts(None).rows(~dropped), classes, name, place)
    return result, count


def client_of(table: Table, source: Source, split: Split, base: Path) -> Texts | None:
    """What the data says about owners, when the split asks it."""
    if split.kind == "file":
        folder = source.shipped is None and not source.database and (base / source.source).is_dir()
        require(folder, "data.source", 'be a folder when clients.kind is "file"', source.source)
        return Texts(client_names(table), table.file_of)
    if split.kind == "column":
        require(table.choice.client, "data.client_column", 'be given when clients.kind is "column"', None)
        return table.texts(table.choice.client)
    return None


def _measured(prepared: Prepared, rows: Mask) -> Records:
    """Return held-out records; clients that the data name keep their names, so that each can be measured."""
    usable = bool(np.any(rows & ~np.isnan(prepared.targets)))
    require(usable, "[data.held_out]", "have at least one row without a missing value", "none")
    if prepared.client is not None:
        owner, names = natural_owners(prepared.client.rows(rows))
        return prepared.records(rows, owner, names, len(names))
    return prepared.records(rows, np.zeros(int(rows.sum()), dtype=np.int64), ("held-out",), 1)
