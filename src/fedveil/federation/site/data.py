"""A site's data: a file with tables like a study's [data] and [clients], or arrays that a trial gave to it.

Where the file leaves open how columns become rows, the site keeps its cells, and a run learns the rule privately.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import BadValue, require, why
from fedveil.core.files import read_file
from fedveil.core.strict_json import read_object
from fedveil.core.tables import filled, known, read_tables, table
from fedveil.core.values import Indices
from fedveil.data.expiry import by_month, day_of, expired
from fedveil.data.fingerprint import RawRows
from fedveil.data.load import load, places_of
from fedveil.data.records import DataShape, Records
from fedveil.data.row_rule import RowRule
from fedveil.data.spec import HeldOut, Places, Source, Split
from fedveil.stages.prepare.columns import Columns, Outline, Words
from fedveil.stages.prepare.learned import LearnedRule, described_outline, read_outline
from fedveil.stages.prepare.loading import Reading, Unprepared, open_columns
from fedveil.stages.prepare.request import BOUND, PrepareRequest
from fedveil.wire.content import Content


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """The clients and records of a study that a site of a trial holds, if the same study is also simulated."""

    clients: Indices
    records: Indices


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The cells of a site's records, in their order, where the rule for rows is to be learned."""

    columns: Columns
    outline: Outline
    reading: Reading | None

    def described(self) -> dict[str, bytes]:
        """What the aggregator is told of the columns: names, types and what the site's file states, but no value."""
        told: dict[str, Any] = {"outline": described_outline(self.outline)}
        told |= {} if self.reading is None else {"reading": self.reading.table()}
        return {"columns": json.dumps(told, sort_keys=True, allow_nan=False).encode()}


@dataclass(frozen=True, slots=True, eq=False)
class SiteData:
    """The records of a site, with its own clients numbered from 0.

    ``places``, ``blank_rows``: what the certificate must say about them, as in a plan. ``cells``: where the
    rule for rows is to be learned; ``records`` then say whose each record is and what it is to predict, and hold no
    features. ``rule``: how they were made, where the site's file states it. ``held``: records of the same clients that
    never train, for a private evaluation; ``held_columns``: their cells, likewise. ``notes``: for the site's operator
    alone. ``person_column``, ``largest_person``: who says whose a record is, and the most records of a person that are
    not blank, where the site names persons.
    ``left``: how many records have left, by the site's file; they are blank. ``expires``: how many expire in each
    month.
    """

    records: Records
    fixed: Fixed | None = None
    places: Places | None = None
    blank_rows: bool = False
    raw: RawRows | None = None
    cells: Cells | None = None
    rule: RowRule | None = None
    held: Records | None = None
    held_columns: Columns | None = None
    notes: tuple[str, ...] = ()
    person_column: str | None = None
    largest_person: int | None = None
    left: int = 0
    expires: Mapping[str, int] = field(default_factory=dict)

    def fingerprint(self, key: bytes) -> str:
        """Return a keyed fingerprint of all rows of the source as they were read, or of the records of a trial."""
        return self.records_fingerprint(key) if self.raw is None else self.raw.fingerprint(key)

    def records_fingerprint(self, key: bytes) -> str:
        """Return a keyed fingerprint of the records, with their cells where there are no rows yet."""
        parts = [self.records.fingerprint(key)]
        parts += [] if self.cells is None else [self.cells.columns.fingerprint(key)]
        parts += [] if self.held is None else [self.held.fingerprint(key)]
        parts += [] if self.held_columns is None else [self.held_columns.fingerprint(key)]
        return "".join(parts)

    def description(self) -> Content:
        """Return the counts and the bound that a plan is made from, but no value of a record."""
        records, shape = self.records, self.shape()
        values: dict[str, Any] = {"features": shape.features, "classes": records.classes}
        told = {"blank_rows": self.blank_rows, "places": self.places, "left": self.left}
        values |= {"bound": shape.bound, **{name: value for name, value in told.items() if value}}
        rows: dict[str, Any] = {"sizes": records.sizes.astype(np.int64)}
        if self.held is not None:
            rows["held"] = self.held.sizes.astype(np.int64)
        if self.fixed is not None:
            rows |= {"numbers": self.fixed.clients, "positions": self.fixed.records}
            rows |= {"owner": records.owner.astype(np.int64)}
        return Content(values=values, rows=rows, blocks=self.described())

    def described(self) -> dict[str, bytes]:
        """Return what the aggregator is told about columns and rule: what the site's file states, but no value."""
        if self.cells is not None:
            return self.cells.described()
        if self.rule is None:
            return {}
        return {"rule": json.dumps(self.rule.table(), sort_keys=True, allow_nan=False).encode()}

    def shape(self, outline: Outline | None = None) -> DataShape:
        """Return the public quantities of the records; with an ``outline``, of the rows that it will make."""
        own = self.records.shape
        if self.cells is None:
            return own
        outline = outline or self.cells.outline
        return replace(own, features=outline.width, bound=outline.total)

    def prepared(self, learned: LearnedRule) -> Records:
        """Return the records with the rows that a learned rule makes of their cells."""
        return self.records if self.cells is None else _made(self.records, self.cells.columns, learned)

    def counted(self, learned: LearnedRule | None, *, held: bool) -> Records:
        """Return the records that an evaluation counts: those held out, or those that train."""
        records, columns = self.records, None if self.cells is None else self.cells.columns
        if held:
            if self.held is None:
                raise BadValue("The site's data file must hold records out to have them counted.")
            records, columns = self.held, self.held_columns
        return records if columns is None or learned is None else _made(records, columns, learned)


def _made(records: Records, columns: Columns, learned: LearnedRule) -> Records:
    """Return records with the rows that a learned rule makes of their cells."""
    rows = learned.rows(columns)
    rows[records.blank] = 0.0
    return replace(records, features=rows, bound=learned.outline.total)


def read_site_data(path: Path) -> SiteData:
    """Read a site's data: a TOML file says where the data are and who owns them; an NPZ file was written by a trial."""
    if path.suffix == ".npz":
        return _read_dealt(path)
    try:
        text = read_file(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"--data must name a readable file: {why(error)}.") from error
    tables = read_tables(text, "The site's data file")
    known(tables, ["data", "clients", "prepare", "left"], "a site's data file")
    require("data" in tables, "The site's data file", "have a [data] table", sorted(tables))
    wanted, given = _wanted(tables), dict(table(tables["data"], "data"))
    if wanted is not None:
        given.setdefault("feature_bound", BOUND)
    asked = given.pop("held_out", None)
    source = Source.parse(given)
    held_out = None if asked is None else _held_out(asked, source)
    hint = "The plan of a federated run does not name a map: compute the features first, and state them as the data."
    require(source.feature_map is None, "data.feature_map", "be left out at a site", source.feature_map, hint)
    owners = dict(table(tables.get("clients", {}), "clients"))
    split = Split.parse(owners or {"kind": "equal", "count": 1})  # unless it says otherwise, a site is one client
    hint = "Other sites see who answers and how many records each client has; or state data.public = true."
    free = split.places != "labels" or source.public
    require(free, "clients.kind", "be a split that does not depend on labels", split.kind, hint)
    # Labels may decide only if the site's records are public, since they then reveal nothing to the others.
    places = split.places if split.natural else None
    base, draw, left = path.parent, np.random.default_rng, Left.parse(tables.get("left", {}))
    if wanted is not None:
        source = replace(source, learned="all" if wanted.kind == "private" else "unstated")
        # What a site says of its columns goes to the others, so its cells do not decide it.
        result = open_columns(source, split, held_out, wanted, base=base, generator=draw, from_cells=False)
        gone = left.places(result.rows, result.expires)
        if gone.size:
            result = result.without(gone)
        cells = Cells(result.training_columns, result.outline, result.reading)
        return SiteData(
            result.train,
            places=places,
            blank_rows=source.drops_rows,
            raw=result.raw,
            cells=cells,
            held=same_clients(result.train, result.test),
            held_columns=result.held_columns,
            notes=result.notes,
            person_column=source.person_column,
            largest_person=source.largest_person,
            left=int(gone.size),
            expires=by_month(result.expires, left.expired),
        )
    loaded = load(source, split, held_out, base=base, generator=draw)
    rule, held = loaded.preparation, same_clients(loaded.train, loaded.test)
    gone = left.places(loaded.rows, loaded.expires)
    return SiteData(
        loaded.train.without(gone) if gone.size else loaded.train,
        places=places,
        blank_rows=source.drops_rows,
        raw=loaded.raw,
        rule=rule,
        held=held,
        notes=loaded.notes,
        person_column=source.person_column,
        largest_person=source.largest_person,
        left=int(gone.size),
        expires=by_month(loaded.expires, left.expired),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """Who has left by the site's [left] table: rows of the source, from 0, and all that expired by a day."""

    rows: Indices
    expired: date | None

    @classmethod
    def parse(cls, given: Any) -> "Left":
        """Return what the table says."""
        own = table(given, "left")
        known(own, ["rows", "expired"], "a site's [left] table")
        rows, day = own.get("rows", []), own.get("expired")
        right = isinstance(rows, list) and all(type(row) is int and row >= 1 for row in rows)
        require(right, "left.rows", "list numbers of rows, from 1", rows)
        numbers = np.array(sorted({row - 1 for row in rows}), dtype=np.int64)
        return cls(numbers, None if day is None else day_of("left.expired", day))

    def places(self, rows: Indices, expires: Indices) -> Indices:
        """Return their places among the records that train; ``rows``, ``expires``: as in Loaded."""
        result = places_of(rows, self.rows, "left.rows") if self.rows.size else self.rows
        if self.expired is None:
            return result
        hint = "Name a column of dates: data.expires_column."
        require(
            expires.size > 0, "left.expired", "come with data that say when records expire", str(self.expired), hint
        )
        return np.union1d(result, expired(expires, self.expired)).astype(np.int64)


def _held_out(given: Any, source: Source) -> HeldOut:
    """The part of its records that a site keeps from training, which an evaluation counts."""
    result = HeldOut.parse(table(given, "data.held_out"), source)
    hint = "The books of a site are about the rows of one source."
    require(result.fraction is not None, "[data.held_out]", "state a fraction at a site", "a source", hint)
    hint = "Public records need no private evaluation: give them to the aggregator."
    require(not result.public, "data.held_out.public", "be left out at a site", result.public, hint)
    return result


def same_clients(train: Records, held: Records | None) -> Records | None:
    """Return the held-out records, which must be of the same clients, each with some; None where there are none."""
    if held is None:
        return None
    alone = train.clients == held.clients == 1
    same = train.names == held.names and train.clients == held.clients
    hint = "Take another fraction or seed, name the clients by a column, or make the site one client."
    lacking = sorted(set(train.names) ^ set(held.names))[:5]
    rule = "leave every client records on both sides, each client being known by its name across sites"
    require(alone or same, "[data.held_out]", rule, f"not so for {lacking}", hint)
    return replace(held, names=train.names)


def _wanted(tables: Mapping[str, Any]) -> PrepareRequest | None:
    """What is left to be learned: as in a study; without [prepare], where the file states no feature bound."""
    if "prepare" not in tables:
        return None if "feature_bound" in table(tables["data"], "data") else PrepareRequest()
    given = table(tables["prepare"], "prepare")
    known(given, ["kind", "numbers", "texts"], "a site's [prepare] table")
    result: PrepareRequest = filled(PrepareRequest, given, "prepare")
    return None if result.kind == "stated" else result


def write_dealt(path: Path, given: Records | Unprepared, clients: Indices, held: Records | None = None) -> None:
    """Write the records of some clients of a study, for a trial on one machine; ``held``: those that they hold out."""
    records = given.train if isinstance(given, Unprepared) else given
    chosen = np.flatnonzero(np.isin(records.owner, clients))
    more: dict[str, Any] = {}
    if isinstance(given, Unprepared):
        columns = given.training_columns.rows(chosen)
        told: dict[str, Any] = {
            "outline": described_outline(given.outline),
            "spelt": {name: word.spelt for name, word in columns.texts.items()},
        }
        told["reading"] = None if given.reading is None else given.reading.table()
        codes = [words.codes for words in columns.texts.values()]
        more["numbers"] = columns.numbers
        more["codes"] = np.column_stack(codes) if codes else np.zeros((chosen.size, 0), dtype=np.int64)
        if held is not None and given.held_columns is not None:
            theirs = given.held_columns.rows(np.flatnonzero(np.isin(held.owner, clients)))
            told["held_spelt"] = {name: word.spelt for name, word in theirs.texts.items()}
            codes = [words.codes for words in theirs.texts.values()]
            more["held_numbers"] = theirs.numbers
            more["held_codes"] = np.column_stack(codes) if codes else np.zeros((len(theirs), 0), dtype=np.int64)
        more["columns"] = np.array(json.dumps(told, allow_nan=False))
    if held is not None:
        kept = np.flatnonzero(np.isin(held.owner, clients))
        more |= {"held_features": held.features[kept], "held_targets": held.targets[kept]}
        more["held_owner"] = np.searchsorted(clients, held.owner[kept]).astype(np.int64)
    np.savez(
        path,
        **more,
        features=records.features[chosen],
        targets=records.targets[chosen],
        owner=np.searchsorted(clients, records.owner[chosen]).astype(np.int64),
        clients=clients.astype(np.int64),
        positions=chosen.astype(np.int64),
        bound=np.array(records.bound),
        classes=np.array(records.classes),
    )
    path.chmod(0o600)


def _read_dealt(path: Path) -> SiteData:
    names = ("features", "targets", "owner", "clients", "positions", "bound", "classes")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in names}
            cells = _dealt_cells(archive) if "columns" in archive.files else None
            kept = _dealt_held(archive) if "held_owner" in archive.files else None
    except (OSError, ValueError, KeyError) as error:
        raise BadValue(f"{path} must be what a trial dealt to a site: {why(error)}.") from error
    records = Records(
        features=np.ascontiguousarray(arrays["features"]),
        targets=arrays["targets"],
        owner=arrays["owner"],
        clients=int(arrays["clients"].size),
        bound=float(arrays["bound"]),
        classes=int(arrays["classes"]),
    )
    fixed = Fixed(arrays["clients"], arrays["positions"])
    if kept is None:
        return SiteData(records, fixed, cells=cells)
    rows, columns = kept
    return SiteData(records, fixed, cells=cells, held=replace(records, **rows), held_columns=columns)


def _dealt_held(archive: Any) -> tuple[dict[str, Any], Columns | None]:
    rows = {name: np.ascontiguousarray(archive[f"held_{name}"]) for name in ("features", "targets", "owner")}
    if "held_numbers" not in archive.files:
        return rows, None
    spelt = read_object(str(archive["columns"]), "columns")["held_spelt"]
    return rows, _dealt_columns(archive["held_numbers"], archive["held_codes"], spelt)


def _dealt_cells(archive: Any) -> Cells:
    told = read_object(str(archive["columns"]), "columns")
    columns = _dealt_columns(archive["numbers"], archive["codes"], told["spelt"])
    reading = None if told["reading"] is None else Reading.read(told["reading"])
    return Cells(columns, read_outline(told["outline"]), reading)


def _dealt_columns(numbers: Any, codes: Any, spelt: Mapping[str, Any]) -> Columns:
    texts = {
        name: Words(spelt=tuple(words), codes=np.ascontiguousarray(codes[:, place]))
        for place, (name, words) in enumerate(spelt.items())
    }
    return Columns(numbers=np.ascontiguousarray(numbers), texts=texts)
