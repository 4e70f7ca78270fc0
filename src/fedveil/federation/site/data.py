"""A site's data: a file with tables like a study's [data] and [clients], or arrays that a trial gave to it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.checks import require
from fedveil.data.fingerprint import RawRows
from fedveil.data.load import load
from fedveil.data.records import Records
from fedveil.data.spec import Places, Source, Split
from fedveil.errors import BadValue
from fedveil.tables import known, read_tables, table
from fedveil.values import Indices


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """The clients and records of a study that a site of a trial holds, if the same study is also simulated."""

    clients: Indices
    records: Indices


@dataclass(frozen=True, slots=True, eq=False)
class SiteData:
    """The records of a site, with its own clients numbered from 0.

    ``places``, ``blank_rows``: what the certificate must say about them, as in a plan (fedveil.plan).
    """

    records: Records
    fixed: Fixed | None = None
    places: Places | None = None
    blank_rows: bool = False
    raw: RawRows | None = None

    def fingerprint(self, key: bytes) -> str:
        """Return a keyed fingerprint of all rows of the source as they were read, or of the records of a trial."""
        return self.records.fingerprint(key) if self.raw is None else self.raw.fingerprint(key)


def read_site_data(path: Path) -> SiteData:
    """Read a site's data: a TOML file says where the data are and who owns them; an NPZ file was written by a trial."""
    if path.suffix == ".npz":
        return _read_dealt(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"--data must name a readable file: {error}.") from error
    tables = read_tables(text, "The site's data file")
    known(tables, ["data", "clients"], "a site's data file")
    require("data" in tables, "The site's data file", "have a [data] table", sorted(tables))
    source = Source.parse(dict(table(tables["data"], "data")))
    owners = table(tables.get("clients", {"kind": "equal", "count": 1}), "clients")
    split = Split.parse(dict(owners))
    hint = "Other sites see who answers and how many records each client has; or state data.public = true."
    free = split.places != "labels" or source.public
    require(free, "clients.kind", "be a split that does not depend on labels", split.kind, hint)
    loaded = load(source, split, None, base=path.parent, generator=np.random.default_rng)
    # Labels may decide only if the site's records are public, since they then reveal nothing to the others.
    places = split.places if split.natural else None
    return SiteData(loaded.train, places=places, blank_rows=source.drops_rows, raw=loaded.raw)


def write_dealt(path: Path, records: Records, clients: Indices) -> None:
    """Write the records of some clients of a study, for a trial on one machine."""
    chosen = np.flatnonzero(np.isin(records.owner, clients))
    np.savez(
        path,
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
    except (OSError, ValueError, KeyError) as error:
        raise BadValue(f"{path} must be what a trial dealt to a site: {error}.") from error
    records = Records(
        features=np.ascontiguousarray(arrays["features"]),
        targets=arrays["targets"],
        owner=arrays["owner"],
        clients=int(arrays["clients"].size),
        bound=float(arrays["bound"]),
        classes=int(arrays["classes"]),
    )
    return SiteData(records, Fixed(arrays["clients"], arrays["positions"]))
