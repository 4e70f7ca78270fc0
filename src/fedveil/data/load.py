"""From what a study states to records: read, settle, cut, hold out, split."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.data.features import features_of
from fedveil.data.fingerprint import RawRows
from fedveil.data.labels import above, class_indices, scaled
from fedveil.data.missing import settle_missing
from fedveil.data.records import Records
from fedveil.data.rows import Matrix, Vector, total_bound
from fedveil.data.sources import client_names, read
from fedveil.data.spec import HeldOut, Source, Split
from fedveil.data.split import held_out_rows, natural_owners, owners
from fedveil.data.table import Array, Table

Generators = Callable[[int], np.random.Generator]  # a seed of the study to a generator
MOST_NAMES = 10_000  # beyond this, clients that we dealt are called by their number alone


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """Records to train on, and those held out. The number of dropped rows is for the data holder, not for release."""

    train: Records
    test: Records | None
    test_public: bool
    dropped_rows: int
    feature_names: tuple[str, ...]
    raw: RawRows | None = None

    def fingerprint(self, key: bytes) -> str:
        """Of all rows of the source, as they were read; of the records, if that is all there is."""
        return self.train.fingerprint(key) if self.raw is None else self.raw.fingerprint(key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """Bounded rows with targets, before anyone owns them; ``client``: what the data says about owners."""

    features: Matrix
    targets: Vector
    client: Array | None
    classes: int
    bound: float
    dropped_rows: int
    feature_names: tuple[str, ...]
    raw: RawRows | None = None

    def records(self, rows: NDArray[np.bool_] | None, owner: Array, names: tuple[str, ...], clients: int) -> Records:
        """The records of some rows."""
        features = self.features if rows is None else self.features[rows]
        targets = self.targets if rows is None else self.targets[rows]
        return Records(
            features=features,
            targets=targets,
            owner=owner,
            clients=clients,
            bound=self.bound,
            classes=self.classes,
            names=names,
        )


def load(source: Source, split: Split, held_out: HeldOut | None = None, *, base: Path, generator: Generators) -> Loaded:
    """Everything that the data part of a study states. ``generator`` makes one from a seed: numpy's ``default_rng``."""
    whole = prepare(source, split, base)
    chosen, test = None, None
    if held_out is not None and held_out.fraction is not None:
        natural = None if whole.client is None else natural_owners(whole.client)[0]
        chosen = held_out_rows(whole.targets.size, held_out.fraction, natural, generator(held_out.seed))
        test = _measured(whole, chosen)
    elif held_out is not None and held_out.source is not None:
        other = prepare(held_out.source, split, base)
        same = (other.feature_names, other.classes, other.bound) == (whole.feature_names, whole.classes, whole.bound)
        rule = "have the same features, classes and bound as [data]"
        require(same, "[data.held_out]", rule, (len(other.feature_names), other.classes, other.bound))
        test = _measured(other, None)
    rows = None if chosen is None else ~chosen
    client = whole.client if whole.client is None or rows is None else whole.client[rows]
    if client is not None:
        owner, names = natural_owners(client)
        count = len(names)
    else:
        targets = whole.targets if rows is None else whole.targets[rows]
        owner, count = owners(split, targets, generator(split.seed))
        named = split.kind != "record" and count <= MOST_NAMES
        names = tuple(f"client {index + 1}" for index in range(count)) if named else ()
    return Loaded(
        train=whole.records(rows, owner, names, count),
        test=test,
        test_public=held_out is not None and held_out.public,
        dropped_rows=whole.dropped_rows,
        feature_names=whole.feature_names,
        raw=whole.raw,
    )


def prepare(source: Source, split: Split, base: Path) -> Prepared:
    """Read a source and apply its public rule."""
    table, source = read(source, base)
    raw = table.raw  # before anything is filled in or dropped
    named = _client(table, source, split, base)
    table, dropped = settle_missing(table, source)
    client = _client(table, source, split, base)
    if dropped and named is not None and client is not None:
        lost = sorted(set(named.tolist()) - set(client.tolist()))
        hint = "Fill missing values in, or leave the client out."
        require(not lost, "data.fill", "leave every client a row", f"none left for {lost[:1]}", hint)
    features, names = features_of(table, source)
    targets, classes = _targets(table, source)
    return Prepared(
        features=features,
        targets=targets,
        client=client,
        classes=classes,
        bound=total_bound(source.feature_bound, source.intercept),
        dropped_rows=dropped,
        feature_names=names,
        raw=raw,
    )


def _targets(table: Table, source: Source) -> tuple[Vector, int]:
    if source.target_scale is not None:
        return scaled(table.target, source.target_scale), 0
    if source.label_above is not None:
        return above(table.target, source.label_above), 2
    classes = source.classes if source.classes is not None else 0
    name = f"column {table.choice.target!r}" if table.choice.target is not None else "label"
    count = classes if isinstance(classes, int) else len(classes)
    return class_indices(table.target, classes, name, table.place), count


def _client(table: Table, source: Source, split: Split, base: Path) -> Array | None:
    """What the data says about owners, when the split asks it."""
    if split.kind == "file":
        folder = source.shipped is None and (base / source.source).is_dir()
        require(folder, "data.source", 'be a folder when clients.kind is "file"', source.source)
        return np.array(client_names(table))[table.file_of]
    if split.kind == "column":
        require(table.client is not None, "data.client_column", 'be given when clients.kind is "column"', None)
        return table.client
    return None


def _measured(prepared: Prepared, rows: NDArray[np.bool_] | None) -> Records:
    """Held-out records; the clients that the data names keep their names, so that each can be measured."""
    if prepared.client is not None:
        owner, names = natural_owners(prepared.client if rows is None else prepared.client[rows])
        return prepared.records(rows, owner, names, len(names))
    count = prepared.targets.size if rows is None else int(rows.sum())
    return prepared.records(rows, np.zeros(count, dtype=np.int64), ("held-out",), 1)
