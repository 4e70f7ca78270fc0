"""Where the books of a data set lie: where the study says, else in one place beside the source.

A source that is a file or a folder has its books in ``.fedveil/NAME.sqlite`` beside it, whatever study runs on it and
wherever its results go, so every run on the source is charged in the same books. Built-in data and arrays lie nowhere:
without a place of their own, each run has its books in its private folder.
"""

import os
from pathlib import Path

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.study import Study

FOLDER = ".fedveil"
POINTER = "books"  # in a run's private folder: the path of the books that were charged


def beside(source: Path) -> Path:
    """The default place of the books of a file or folder; links to it have the same."""
    real = source.resolve()
    return real.parent / FOLDER / f"{real.name}.sqlite"


def default_place(study: Study) -> Path | None:
    """Beside the study's source; None for data that lie nowhere."""
    if study.source is None or study.source.shipped is not None:
        return None
    return beside(study.base / study.source.source)


def books_of(study: Study, own: Path | None) -> Path | None:
    """The books that a run of this study is charged in; ``own``: a run's own, where nothing else is known."""
    if study.books.ledger is not None:
        return study.books.ledger
    if own is not None and own.exists():  # a run that was begun in books of its own goes on in them
        return own
    place = default_place(study)
    if place is None:
        hint = "These data lie nowhere that several runs could share, and a cap would bind each run alone."
        require(not study.books.caps, "books.ledger", "be given with a cap", None, hint)
        return own
    _make_room(place)
    return place


def _make_room(place: Path) -> None:
    """The folder of the books, closed to others."""
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
    """The books that a path means: a ledger, the folder of a run or a site, or a data set with books beside it."""
    require(given.exists(), "The ledger", "be a ledger, the folder of a run, or a data set", str(given))
    if given.is_file() and _database(given):
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
    if known:  # a folder with data sets in it: which one is meant?
        hint = f"There are books of what lies in it: name {' or '.join(str(given / path.stem) for path in known)}."
    require(place.is_file(), "The ledger", f"be found at {given}, or at {place}", "nothing there", hint)
    return place


def _database(path: Path) -> bool:
    """Whether this is meant as a ledger: an SQLite file, or a damaged one that has a head."""
    with path.open("rb") as file:
        if file.read(16) == b"SQLite format 3\0":
            return True
    return path.with_name(path.name + ".head").exists()
