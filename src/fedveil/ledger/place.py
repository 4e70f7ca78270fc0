"""Where the books of a data set lie: where the study says, otherwise in one place beside the source.

A source that is a file, a folder or an SQLite database has its books in ``.fedveil/NAME.sqlite`` beside it, whatever
study runs on it, however it reads it and wherever its results go, so every run on the source is charged in the same
books. If a study names another place, that file is a link to it, so a study that names none is charged there too. Rows,
or bytes, that already have books in that folder under another name (the source was renamed or copied) keep them.

A database has one set of books, whichever tables and rows a query selects: nobody can tell from its text whether two
queries are about the same people. A server's database lies in no folder, so a study on it names its books. Built-in
data and arrays have no place: unless a study names one, each run has its books in its private folder.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from fedveil.core.errors import BadValue, require
from fedveil.data.address import DUCKDB, server_of, sqlite_file
from fedveil.data.fingerprint import content_of
from fedveil.data.spec import Source
from fedveil.ledger.books import Fingerprint, Ledger, keyed_content
from fedveil.ledger.budget import Cap
from fedveil.ledger.store import APPLICATION, connect, head_file, identity, knows_content, plainly
from fedveil.planning.study import Books
from fedveil.privacy.target import Target

FOLDER = ".fedveil"
POINTER = "books"  # in a run's private folder: the path of the books that were charged


class Sited(Protocol):
    """Whoever is charged for looking at a source: a study, or a profile."""

    @property
    def source(self) -> Source | None: ...  # noqa: D102
    @property
    def base(self) -> Path: ...  # noqa: D102
    @property
    def books(self) -> Books: ...  # noqa: D102


def beside(source: Path) -> Path:
    """Return the default place of the books of a file or folder; a link to it has the same place."""
    real = source.resolve()
    return real.parent / FOLDER / f"{real.name}.sqlite"


def default_place(study: Sited) -> Path | None:
    """Return the place beside the study's source; None for data without a place."""
    path = _path(study)
    return None if path is None else beside(path)


def _path(study: Sited) -> Path | None:
    """Return the file or folder that holds the study's data; None where there is none on this machine."""
    source = study.source
    if source is None or source.shipped is not None or source.frame is not None:
        return None
    inside = sqlite_file(source.source)
    if inside is None and source.database and not source.source.startswith(DUCKDB):
        return None
    return study.base / (source.source.removeprefix(DUCKDB) if inside is None else inside)


def _identity(study: Sited, rows: Fingerprint) -> Fingerprint:
    """Return the fingerprint by which books know a source: its rows, or the name of the database that they are in."""
    source = study.source
    if source is None or not source.database or source.source.startswith(DUCKDB):
        return rows
    inside = sqlite_file(source.source)
    name = server_of(source.source) if inside is None else f"sqlite {(study.base / inside).resolve().name}"
    return lambda key: blake2b(name.encode(), key=key, digest_size=32, person=b"fedveil db").hexdigest()


def books_of(study: Sited, own: Path | None, *, begun: bool = False) -> Path | None:
    """Return the books in which a run of this study is charged; ``own``: the run's own books, if there are no others.

    ``begun``: the run is resumed, so if it has books of its own it continues in them.
    """
    if study.books.ledger is not None:
        return study.books.ledger
    if begun and own is not None and own.exists():
        return own
    place = default_place(study)
    if place is None and study.source is not None and study.source.database:
        raise BadValue(
            f"The ledger of {study.source.source} must be named, since a server's database lies in no folder beside "
            'which all studies would find it: [books] ledger = "PATH" in every study on it, or --ledger.'
        )
    if place is None:
        hint = "These data lie nowhere that several runs could share, and a cap would bind each run alone."
        require(not study.books.caps, "books.ledger", "be given with a cap", None, hint)
        return own
    _make_room(place)
    return place


def open_books(
    study: Sited,
    own: Path | None,
    fingerprint: Fingerprint,
    *,
    begun: bool = False,
    urandom: Callable[[int], bytes] = os.urandom,
) -> Ledger:
    """Open the books in which this study is charged; create them if necessary.

    ``fingerprint``: of the rows as they were read. ``own``, ``begun``: as for :func:`books_of`.
    """
    path = _path(study)
    content = None if path is None else content_of(path)
    place = resolve_ledger_path(study, own, fingerprint, content=content, begun=begun, urandom=urandom) or own
    require(place is not None, "[books] ledger", "be given for these data", None)
    assert place is not None  # noqa: S101  for the type checker
    return Ledger.open(place, _identity(study, fingerprint), content=content, urandom=urandom)


def resolve_ledger_path(
    study: Sited,
    own: Path | None,
    fingerprint: Fingerprint,
    *,
    content: bytes | None = None,
    begun: bool = False,
    urandom: Callable[[int], bytes] = os.urandom,
) -> Path | None:
    """Return the books of this study's rows; create them if necessary. ``content``: a digest of the source's bytes.

    They are the only books of these rows in the folder beside the source. Rows that have books there under another name
    keep them. A study that names other books is refused, since neither would know what was spent in the other.
    """
    place, usual = books_of(study, own, begun=begun), default_place(study)
    if place is None or usual is None or place == own:
        return place
    try:
        _make_room(usual)
    except BadValue:  # the place beside the source is not writable, so the place that the study names is the only one
        return place
    fingerprint = cache(_identity(study, fingerprint))
    with _alone(usual.parent):
        lost = usual.is_symlink() and not usual.exists()
        if lost and not (study.books.ledger is not None and place.exists()):
            raise BadValue(
                f"The books of these rows must be where they were, {usual.readlink()}, and they are gone. Bring them "
                f'back, or say where they are now: [books] ledger = "PATH".'
            )
        known = None if lost else _known(usual, fingerprint, content)
        if study.books.ledger is None:
            place = usual if usual.exists() or known is None else known
        elif known is not None and known != place.resolve():
            raise BadValue(
                f"The ledger of a study must be the one that its rows have, {known}, got {place}: neither would know "
                "what was spent in the other. Name that one, or none, in [books] ledger; if new books are meant, move "
                "that one away first."
            )
        Ledger.open(place, fingerprint, content=content, urandom=urandom).close()
        if lost or not usual.exists():
            _link(usual, place.resolve())
    return place


def _known(usual: Path, fingerprint: Fingerprint, content: bytes | None) -> Path | None:
    """Return the books in this folder that met these rows or bytes, preferring the usual name; links are followed.

    Books that cannot be read might be these, so they raise an error.
    """
    others = sorted(path for path in usual.parent.glob("*.sqlite") if path != usual)
    for path in (usual, *others):
        if path.is_file():
            with plainly(path), closing(connect(path, patience=60.0)) as connection:
                _, key, stated = identity(connection)
                same = content is not None and knows_content(connection, keyed_content(key, content))
            if same or fingerprint(key) == stated:
                return path.resolve()
    return None


def _link(usual: Path, place: Path) -> None:
    """Make the usual place a link to the books; without support for links, each study has to name them."""
    part = usual.with_name(f".{usual.name}.link")
    with suppress(OSError):
        part.unlink(missing_ok=True)
        part.symlink_to(place)
        part.replace(usual)  # at once: without a link, another study would begin books of its own


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time look for books in this folder and create them."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # held until the handle is closed
        yield
    finally:
        os.close(handle)


def _make_room(place: Path) -> None:
    """Create the folder of the books, accessible to its owner only."""
    if place.exists():
        return
    try:
        place.parent.mkdir(mode=0o700, exist_ok=True)
        usable = os.access(place.parent, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        raise BadValue(
            f"The books of {place.name.removesuffix('.sqlite')} must lie beside it, and {place.parent.parent} cannot "
            'be written to. Name one place for all runs on these data in the study: [books] ledger = "PATH".'
        )


def find(given: Path) -> Path:
    """Return the books that a path means.

    The path may be a ledger, the folder of a run or a site, or a data set with books beside it.
    """
    require(given.exists(), "The ledger", "be a ledger, the folder of a run, or a data set", str(given))
    if given.is_file() and _database(given) and not (beside(given).is_file() and not _ours(given)):
        return given
    if given.is_dir():
        pointer = given / "private" / POINTER
        if pointer.is_file():
            return Path(pointer.read_text(encoding="utf-8").strip())
        for name in (Path("private") / "ledger.sqlite", Path("ledger.sqlite")):
            if (given / name).is_file():
                return given / name
    place = beside(given)
    known = sorted((given / FOLDER).glob("*.sqlite")) if given.is_dir() else []
    hint = "No run was charged there, or its books lie where a study says: [books] ledger."
    if known:  # a folder with several data sets: it is not clear which one is meant
        hint = f"There are books of what lies in it: name {' or '.join(str(given / path.stem) for path in known)}."
    require(place.is_file(), "The ledger", f"be found at {given}, or at {place}", "nothing there", hint)
    return place


def _database(path: Path) -> bool:
    """Return whether this is meant as a ledger: an SQLite file, or a damaged one that has a head."""
    with path.open("rb") as file:
        if file.read(16) == b"SQLite format 3\0":
            return True
    return head_file(path).exists()


def _ours(path: Path) -> bool:
    """Return whether an SQLite file bears the mark of a ledger; a database of somebody's data does not."""
    with path.open("rb") as file:
        return file.read(72)[68:] == APPLICATION.to_bytes(4, "big")


def caps_of(books: Books, target: Target) -> list[Cap]:
    """Return the caps that a study states, for the unit and the neighbours of its target."""
    return [
        Cap(adversary=who, unit=target.unit, neighbours=target.neighbours, epsilon=epsilon, delta=delta)
        for who, epsilon, delta in books.caps
    ]
