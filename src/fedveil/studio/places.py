"""The working folder: every path that a browser names must lie inside it, with all links followed."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.core.errors import BadValue, require
from fedveil.core.files import open_file, read_file
from fedveil.core.importing import Allowed, allowing, check_allowed
from fedveil.core.tables import read_tables
from fedveil.data.address import file_of

Stamps = tuple[tuple[int, int], ...]
TABLES = (".csv", ".tsv", ".csv.gz", ".parquet", ".feather")  # what may be opened or uploaded as data
_DEPTH, _MOST = 3, 2000  # how deep, and at how many names, the working folder is looked through
_PRIVATE = "private"  # the folder in which a run keeps what nobody may see
_NO_STUDIES = ("plan.toml", "deployment.toml")
CODE = ("data.feature_map", "generator.module", "model.criterion", "model.module")  # keys that name code
_HINT = "The studio works in one folder; start it in another with: fedveil studio FOLDER."


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder that the studio was started in; ``modules``: code that studies may name, by package.file:function."""

    root: Path
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.root.is_dir(), "FOLDER", "be a folder", str(self.root))
        object.__setattr__(self, "root", self.root.resolve())
        Allowed(frozenset(self.modules))  # refuses what names no code

    def inside(self, name: object, what: str = "The file") -> Path:
        """Return the path that a browser names; refuse one that leads out of the folder or to what is not shown."""
        printable = isinstance(name, str) and 0 < len(name) <= 1000 and name.isprintable()
        require(printable, what, "be named by a path in the working folder", str(name)[:60])
        path = Path(str(name))
        within = bool(path.parts) and not path.is_absolute() and ".." not in path.parts and self.holds(self.root / path)
        require(within, what, "lie in the working folder", str(name), _HINT)
        shown = not any(part.startswith(".") or part == _PRIVATE for part in path.parts)
        require(shown, what, "not be hidden or private", str(name))
        return self.root / path

    def existing(self, name: object, what: str = "The file") -> Path:
        """Return the path of something that is there."""
        path = self.inside(name, what)
        require(path.exists(), what, "be in the working folder", str(name))
        return path

    def holds(self, path: Path) -> bool:
        """Return whether a path lies in the folder after all links in it are followed."""
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):  # a name that is too long, or links in a circle
            return False

    def name(self, path: Path) -> str:
        """Return how the browser names a path in the folder."""
        return path.relative_to(self.root).as_posix()

    def free(self, stem: str, suffix: str) -> Path:
        """Return the path of a new file or folder: ``stem`` with a number added if that is taken."""
        for number in range(1, 1000):
            path = self.root / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
            if not os.path.lexists(path):
                return path
        raise BadValue(f"The working folder must have a free name like {stem}{suffix}; move some of them away.")

    def studies(self) -> list[str]:
        """Return the study files, as the browser names them."""
        studies = (path for path in self._files() if path.suffix == ".toml" and path.name not in _NO_STUDIES)
        return sorted(self.name(path) for path in studies if "[privacy]" in _beginning(path))

    def tables(self) -> list[str]:
        """Return the files of data."""
        return sorted(self.name(path) for path in self._files() if path.name.lower().endswith(TABLES))

    def runs(self) -> list[str]:
        """Return the folders that hold a run, newest first."""
        runs = [path.parent for path in self._files() if path.name == "plan.toml" and path.parent != self.root]
        return [self.name(path) for path in sorted(runs, key=_changed, reverse=True)]

    def keys(self) -> list[str]:
        """Return the files of signing keys: those that have a public key beside them."""
        return sorted(self.name(path) for path in self._files() if path.with_name(path.name + ".pub").is_file())

    def deployments(self) -> list[str]:
        """Return the folders of deployments."""
        deployments = [path.parent for path in self._files() if path.name == "deployment.toml"]
        return sorted(self.name(path) for path in deployments if path != self.root)

    def sites(self, deployment: str) -> list[str]:
        """Return the sites that a deployment names."""
        try:
            text = read_file(self.root / deployment / "deployment.toml").decode("utf-8")
            deployment_tables = read_tables(text, "deployment.toml")
        except (OSError, ValueError):
            return []
        sites = _table(deployment_tables, "deployment").get("sites", [])
        return [str(site) for site in sites] if isinstance(sites, list) else []

    def _files(self) -> Iterator[Path]:
        seen = 0
        for folder, folders, files in os.walk(self.root):
            here = Path(folder)
            deep = len(here.relative_to(self.root).parts) >= _DEPTH
            folders[:] = [] if deep else [one for one in folders if not one.startswith(".") and one != _PRIVATE]
            for name in files:
                seen += 1
                if seen > _MOST:
                    return
                if not name.startswith(".") and name.isprintable() and self.holds(here / name):
                    yield here / name


def _beginning(path: Path) -> str:
    try:
        with open_file(path) as file:
            return file.read(100_000).decode("utf-8", "replace")
    except OSError:
        return ""


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def check_paths(tables: Mapping[str, Any], base: Path, folder: Folder) -> None:
    """Refuse a study that names a file outside the working folder, a database elsewhere, or code that was not allowed.

    Planning runs code, and a page plans while one types, so the page says at once what the gate would refuse.
    """
    space = _table(_table(tables, "tune"), "space")
    with allowing(*folder.modules):
        for key in CODE:
            room, _, name = key.partition(".")
            tried = space.get(key)
            for code in (_table(tables, room).get(name), *(tried if isinstance(tried, list) else ())):
                if isinstance(code, str) and ":" in code:
                    check_allowed(code, key)
    data = _table(tables, "data")
    held = _table(data, "held_out")
    named = {"data.source": data.get("source"), "data.held_out.source": held.get("source")}
    for name, source in named.items():
        if isinstance(source, str):
            _check_source(name, source, base, folder)
    single = {"data.labels": data.get("labels"), "books.ledger": _table(tables, "books").get("ledger")}
    for name, path in single.items():
        if isinstance(path, str):
            require(folder.holds(base / path), name, "lie in the working folder", path, _HINT)
    pattern = data.get("files", "")
    free = isinstance(pattern, str) and (".." in pattern or pattern.startswith("/"))
    require(not free, "data.files", "stay in the source's folder", pattern)


def stamps(base: Path, sources: Iterable[str]) -> Stamps:
    """Return when the files of these sources were changed, and their sizes: so a plan that is out of date is known."""
    stamped = []
    for source in sources:
        path = base / (file_of(source) or source)
        for one in [] if not path.exists() else [path, *(sorted(path.iterdir()) if path.is_dir() else [])]:
            state = one.stat()
            stamped.append((state.st_mtime_ns, state.st_size))
    return tuple(stamped)


def sources_in(tables: Mapping[str, Any]) -> list[str]:
    """Return the sources that the tables of a study name."""
    data = _table(tables, "data")
    named = (data.get("source"), _table(data, "held_out").get("source"))
    return [source for source in named if isinstance(source, str)]


def _check_source(name: str, source: str, base: Path, folder: Folder) -> None:
    if source.startswith("sklearn:"):
        return
    inside = file_of(source)
    if inside is None:
        hint = "Plan and run it on the command line; the studio speaks to no network."
        require("://" not in source, name, "be in the working folder", source.partition("://")[0] + "://...", hint)
        inside = source
    path = base / inside
    require(folder.holds(path), name, "lie in the working folder", inside, _HINT)
    if path.is_dir():
        out = next((one.name for one in path.rglob("*") if not folder.holds(one)), None)
        require(out is None, name, "hold no link that leads out of the working folder", out)


def _table(tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inside = tables.get(key, {})
    return inside if isinstance(inside, Mapping) else {}
