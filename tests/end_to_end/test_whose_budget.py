"""The budget belongs to the database, the file or the folder, and not to the words by which a study reads it."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="the extra fedveil[sql] is not installed")
pytest.importorskip("duckdb", reason="the extra fedveil[sql] is not installed")

from fedveil import run_study
from fedveil.core.errors import BadValue
from fedveil.data.address import server_of
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import CapExceeded
from fedveil.ledger.place import beside, books_of, default_place, find
from fedveil.planning.study import study_of

CAP = {"books": {"cap": {"final-model": [1.0, 1e-4]}}}
NAMED = {"books": {"ledger": "other.sqlite"}}
ALL = "SELECT a, b, y FROM visits"


def rows() -> list[tuple[float, float, int]]:
    draw = np.random.default_rng(1).normal(size=(120, 2)).round(6)
    return [(float(a), float(b), int(a > 0)) for a, b in draw]


def study(source: str, data: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    given = {"source": source, "target": "y", "classes": 2, "feature_bound": 2.0, **(data or {})}
    return {
        "data": given,
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {"epsilon": 1.0, "delta": 1e-4},
        "algorithm": {"kind": "dpsgd", "rate": 0.5, "rounds": 2},
        **more,
    }


def database(path: Path) -> Path:
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE visits (a REAL, b REAL, y INTEGER)")
        made.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows())
    made.close()
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    database(tmp_path / "clinic.db")
    return tmp_path


def charged(source: str) -> int:
    with Ledger.look(find(Path(source))) as ledger:
        return sum(entry.kind == "charge" for entry in ledger.entries())


class TestDatabasesInAFile:
    @pytest.mark.parametrize(
        "query",
        [
            "SELECT a, y FROM visits",
            "select  a, b, y  from visits",
            "SELECT b, y, a FROM visits ORDER BY a",
            "SELECT a, b, y FROM visits WHERE a > -1",
            "SELECT a + 0 AS a, y FROM visits",
            "SELECT v.a, v.y FROM visits v",
        ],
    )
    def test_another_query_is_charged_to_the_same_budget(self, folder: Path, query: str) -> None:
        run_study(study("sqlite:///clinic.db", {"query": ALL}, **CAP), folder / "one")
        with pytest.raises(CapExceeded):
            run_study(study("sqlite:///clinic.db", {"query": query}), folder / "two")

    def test_a_study_that_moves_keeps_the_budget(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run_study(study("sqlite:///clinic.db", {"query": ALL}, **CAP), folder / "one")
        (folder / "elsewhere").mkdir()
        (folder / "elsewhere" / "link.db").symlink_to(folder / "clinic.db")
        monkeypatch.chdir(folder / "elsewhere")
        for place, name in (("../clinic.db", "a"), (f"{folder}/clinic.db", "b"), ("link.db", "c")):
            with pytest.raises(CapExceeded):
                run_study(study(f"sqlite:///{place}", {"query": ALL}), folder / name)
        assert charged(str(folder / "clinic.db")) == 1

    @pytest.mark.parametrize("how", ["renamed", "copied", "moved with its ledger"])
    def test_a_database_under_another_name_keeps_the_budget(self, folder: Path, how: str) -> None:
        run_study(study("sqlite:///clinic.db", {"query": ALL}, **CAP), folder / "one")
        old, new = folder / "clinic.db", folder / "ward.db"
        if how == "copied":
            new.write_bytes(old.read_bytes())
        elif how == "renamed":
            old.rename(new)
        else:
            (folder / "there").mkdir()
            new = old.rename(folder / "there" / "ward.db")
            (folder / ".fedveil").rename(folder / "there" / ".fedveil")
        with pytest.raises(CapExceeded):
            run_study(study(f"sqlite:///{new}", {"query": "SELECT a, y FROM visits"}), folder / "two")

    def test_rows_that_come_later_do_not_give_a_new_budget(self, folder: Path) -> None:
        run_study(study("sqlite:///clinic.db", {"query": ALL}, **CAP), folder / "one")
        with sqlite3.connect(folder / "clinic.db") as more:
            more.execute("INSERT INTO visits VALUES (0.5, 0.5, 1)")
        more.close()
        with pytest.raises(CapExceeded):
            run_study(study("sqlite:///clinic.db", {"query": ALL}), folder / "two")
        with pytest.raises(BadValue, match="must be the one that its rows have"):
            run_study(study("sqlite:///clinic.db", {"query": ALL}, **NAMED), folder / "three")

    def test_two_databases_of_one_folder_have_a_budget_each(self, folder: Path) -> None:
        run_study(study("sqlite:///clinic.db", {"query": ALL}, **CAP), folder / "one")
        with sqlite3.connect(database(folder / "other.db")) as other:
            other.execute("DELETE FROM visits WHERE a > 1")
        other.close()
        run_study(study("sqlite:///other.db", {"query": ALL}), folder / "two")
        assert charged("clinic.db") == charged("other.db") == 1


class TestServers:
    def test_the_ledger_is_asked_for(self, folder: Path) -> None:
        found = study_of(study("postgresql://ann@db.example/clinic", {"query": ALL}), base=folder, name="s")
        with pytest.raises(BadValue, match=r"\[books\] ledger"):
            books_of(found, folder / "own.sqlite")
        assert default_place(found) is None

    @pytest.mark.parametrize(
        "other",
        [
            "postgresql://bob@DB.example:5432/clinic",
            "postgresql+psycopg://db.example/clinic?sslmode=require",
            "postgresql://ann:secret@db.example./clinic",
            "postgresql://ann@/clinic?host=db.example",
        ],
    )
    def test_one_database_has_one_name(self, other: str) -> None:
        assert server_of(other) == server_of("postgresql://ann@db.example/clinic")

    @pytest.mark.parametrize(
        "other",
        [
            "postgresql://ann@db.example:5433/clinic",
            "postgresql://ann@db.example/ward",
            "postgresql://ann@db2.example/clinic",
        ],
    )
    def test_another_database_has_another(self, other: str) -> None:
        assert server_of(other) != server_of("postgresql://ann@db.example/clinic")

    def test_the_ways_to_this_machine_are_one(self) -> None:
        ways = ("localhost", "127.0.0.1", "[::1]", "", "LOCALHOST:5432")
        assert len({server_of(f"postgresql://ann@{way}/clinic") for way in ways}) == 1


class TestFiles:
    def csv(self, path: Path, apart: str = ",") -> Path:
        lines = [apart.join(map(str, row)) for row in rows()]
        path.write_text("\n".join([apart.join("aby"), *lines]) + "\n", encoding="utf-8")
        return path

    @pytest.mark.parametrize("named", [{}, NAMED])
    @pytest.mark.parametrize(
        "data",
        [
            {"header": False, "target": 2, "missing": ["a", "b", "y"], "default_fill": "drop-row"},
            {"missing": ["1.0"], "default_fill": "drop-row"},
            {"ignore": ["b"]},
            {"format": "csv", "delimiter": ","},
        ],
    )
    def test_another_way_to_read_a_file_is_charged_to_the_same_budget(
        self, folder: Path, data: dict[str, Any], named: dict[str, Any]
    ) -> None:
        self.csv(folder / "data.csv")
        run_study(study("data.csv", **CAP), folder / "one")
        with pytest.raises((CapExceeded, BadValue), match=r"is spent|are spent|must be the one that its rows have"):
            run_study(study("data.csv", data, **named), folder / "two")
        assert charged("data.csv") == 1

    def test_a_parquet_file_of_the_same_rows_has_the_same_budget(self, folder: Path) -> None:
        import duckdb

        self.csv(folder / "data.csv")
        run_study(study("data.csv", **CAP), folder / "one")
        duckdb.sql("SELECT * FROM read_csv('data.csv')").write_parquet("data.parquet")
        with pytest.raises(CapExceeded):
            run_study(study("data.parquet"), folder / "two")
        for number, query in enumerate(("SELECT a, b, y FROM data", "SELECT a, y FROM data")):
            with pytest.raises(CapExceeded):
                run_study(study("duckdb:data.parquet", {"query": query}), folder / f"three{number}")

    def test_a_query_of_a_folder_is_charged_to_the_folder(self, folder: Path) -> None:
        import duckdb

        (folder / "lake").mkdir()
        self.csv(folder / "data.csv")
        duckdb.sql("SELECT * FROM read_csv('data.csv')").write_parquet("lake/one.parquet")
        run_study(study("duckdb:lake", **CAP), folder / "one")
        for number, query in enumerate(("SELECT a, y FROM data", "SELECT * FROM data WHERE a > -1")):
            for name, books in (("plain", {}), ("named", NAMED)):
                with pytest.raises((CapExceeded, BadValue)):
                    run_study(study("duckdb:lake", {"query": query}, **books), folder / f"{name}{number}")

    def test_a_pattern_for_some_files_of_a_folder_is_charged_to_the_folder(self, folder: Path) -> None:
        (folder / "site").mkdir()
        self.csv(folder / "site" / "a.csv")
        self.csv(folder / "site" / "b.csv")
        run_study(study("site", {"files": "*.csv"}, **CAP), folder / "one")
        with pytest.raises((CapExceeded, BadValue)):
            run_study(study("site", {"files": "a*.csv"}, **NAMED), folder / "two")
        with pytest.raises(CapExceeded):
            run_study(study("site/", {"files": "a*.csv"}), folder / "three")
        assert beside(folder / "site").is_file()
