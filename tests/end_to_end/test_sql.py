"""Data where they live: PostgreSQL, SQLite and folders of Parquet files, with passwords that show up nowhere."""

import csv
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="the extra fedveil[sql] is not installed")
pytest.importorskip("psycopg", reason="the extra fedveil[sql] is not installed")
pytest.importorskip("duckdb", reason="the extra fedveil[sql] is not installed")

import postgres
import pyarrow as pa
import pyarrow.parquet as pq
from wards import Command

import fedveil
from fedveil.core.errors import FedveilError
from fedveil.data import read_sql
from fedveil.data.load import load
from fedveil.data.sources import read
from fedveil.data.spec import Source, Split
from fedveil.ledger.books import Ledger
from fedveil.planning.study import study_of

QUERY = "SELECT age, ward, ill FROM visits ORDER BY id"
ROWS = 300


def rows(count: int = ROWS, seed: int = 4) -> list[tuple[int, float | None, str | None, str]]:
    draw = np.random.default_rng(seed)
    found: list[tuple[int, float | None, str | None, str]] = []
    for index in range(count):
        age, ward = float(np.round(draw.normal(50, 12), 2)), str(draw.choice(["A", "B", "C"]))
        ill = "yes" if age + 8 * (ward == "A") + draw.normal() > 53 else "no"
        found.append((index, None if index % 17 == 3 else age, None if index % 29 == 5 else ward, ill))
    return found


def as_csv(path: Path, found: list[tuple[Any, ...]]) -> Path:
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["age", "ward", "ill"])
        lines.writerows([["" if cell is None else cell for cell in row[1:]] for row in found])
    return path


def tables(source: str, **more: object) -> dict[str, Any]:
    stated = {"target": "ill", "classes": ["no", "yes"], **more}
    return {
        "data": {"source": source, **stated},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 4.0, "delta": 1e-3},
        "algorithm": {"kind": "dpsgd", "rate": 0.5, "rounds": 4},
        "prepare": {"kind": "private"},
    }


STATED = {
    "feature_bound": 1.0,
    "target": "ill",
    "classes": ["no", "yes"],
    "scale": {"age": [0.0, 100.0]},
    "categories": {"ward": ["A", "B", "C"]},
    "fill": {"age": 50.0, "ward": "A"},
}


def features(source: str, base: Path, **more: object) -> np.ndarray:
    given = Source.parse({"source": source, **STATED, **more})
    return load(given, Split(kind="record"), base=base, generator=np.random.default_rng).train.features


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.db"
    with sqlite3.connect(path) as books:
        books.execute("CREATE TABLE visits (id INTEGER, age REAL, ward TEXT, ill TEXT)")
        books.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows())
    books.close()
    return path


class TestSqlite:
    def test_its_rows_are_those_of_the_same_file(self, tmp_path: Path, sqlite: Path) -> None:
        as_csv(tmp_path / "v.csv", rows())
        found = features("sqlite:///clinic.db", tmp_path, query=QUERY)
        assert np.array_equal(found, features("v.csv", tmp_path))
        assert len(found) == ROWS

    def test_from_a_table_to_predictions(
        self, tmp_path: Path, sqlite: Path, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        said = command("profile", "sqlite:///clinic.db", "--query", QUERY, "--epsilon", 4, "--target", "ill", "--json")
        assert said.code == 0, said.err
        study = (tmp_path / "profile" / "study.toml").read_text()
        assert 'source = "sqlite:///../clinic.db"' in study
        text = study.replace("[privacy]", '[algorithm]\nkind = "dpsgd"\nrate = 0.5\nrounds = 4\n\n[privacy]')
        (tmp_path / "profile" / "study.toml").write_text(text)
        assert command("run", "profile/study.toml", "--out", "out", "--quiet").code == 0
        books = list((tmp_path / ".fedveil").glob("*.sqlite"))
        assert len(books) == 1  # of both, the profile and the run
        with Ledger.look(books[0]) as both:
            assert [entry.kind for entry in both.entries()].count("charge") == 2
        said = command("predict", "out", "sqlite:///clinic.db", "--query", QUERY, "--out", "p.csv")
        assert said.code == 0, said.err
        assert len((tmp_path / "p.csv").read_text().splitlines()) == ROWS + 1

    @pytest.mark.parametrize(
        ("source", "query", "told"),
        [
            ("sqlite:///clinic.db", None, r"data\.query must be given with a database"),
            ("sqlite:///clinic.db", "DROP TABLE visits", r"data\.query must be one SELECT"),
            ("sqlite:///clinic.db", "SELECT 1; DROP TABLE visits", r"data\.query must be one SELECT"),
            ("sqlite:///clinic.db", "SELECT agee FROM visits", r"clinic\.db must answer data\.query.*agee"),
            ("sqlite:///clinic.db", "SELECT age, age, ill FROM visits", "have different names"),
            ("sqlite:///clinic.db", "SELECT * FROM visits WHERE id < 0", "give at least one row"),
            ("sqlite:///none.db", QUERY, "name a database that exists"),
            ("mysql://host/db", QUERY, r"data\.source must be a path or one of postgresql"),
            ("postgresql://u@h/d?password=x", QUERY, "have no password among its parameters"),
            ("v.csv", QUERY, "go with a database"),
            ("duckdb:none", None, "name a Parquet file or a folder"),
        ],
    )
    def test_a_mistake_is_one_sentence(
        self, tmp_path: Path, sqlite: Path, source: str, query: str | None, told: str
    ) -> None:
        with pytest.raises(FedveilError, match=told):
            features(source, tmp_path, **({} if query is None else {"query": query}))

    def test_nothing_can_be_written(self, tmp_path: Path, sqlite: Path) -> None:
        query = "WITH x AS (SELECT 1) INSERT INTO visits SELECT 1, 1, 'A', 'no'"
        with pytest.raises(FedveilError):
            features("sqlite:///clinic.db", tmp_path, query=query)
        with sqlite3.connect(sqlite) as books:
            assert books.execute("SELECT count(*) FROM visits").fetchone() == (ROWS,)
        books.close()

    @pytest.mark.parametrize("name", ["a#b.db", "%41.db", "%2fx.db", "q?mode=rwc.db", "a b&c.db", "ä;ö.db", "50%.db"])
    def test_a_path_is_the_name_of_exactly_that_file(self, tmp_path: Path, sqlite: Path, name: str) -> None:
        sqlite.rename(tmp_path / name)
        for decoy in ("A.db", "a", "x.db", "q"):  # what the name would mean in an address
            (tmp_path / decoy).write_bytes(b"no database")
        before = sorted(one.name for one in tmp_path.iterdir())
        assert len(features(f"sqlite:///{name}", tmp_path, query=QUERY)) == ROWS
        assert sorted(one.name for one in tmp_path.iterdir()) == before

    @pytest.mark.parametrize(
        "source", ["sqlite://clinic.db", "sqlite+pysqlite:///clinic.db", "sqlite://host/clinic.db"]
    )
    def test_there_is_one_way_to_write_its_address(self, tmp_path: Path, sqlite: Path, source: str) -> None:
        with pytest.raises(FedveilError, match="after three slashes"):
            features(source, tmp_path, query=QUERY)

    @pytest.mark.parametrize(
        "query",
        [
            "WITH x AS (SELECT 1) UPDATE visits SET age = 0",
            "WITH x AS (SELECT 1) DELETE FROM visits",
            "SELECT load_extension('evil')",
            "SELECT writefile('evil', 'x')",
            "SELECT * FROM pragma_database_list",
            "SELECT zeroblob(100000000) AS age, 'A' AS ward, 'no' AS ill",
        ],
    )
    def test_a_query_reads_the_tables_and_does_nothing_else(self, tmp_path: Path, sqlite: Path, query: str) -> None:
        before = sqlite.read_bytes()
        with pytest.raises(FedveilError) as refused:
            features("sqlite:///clinic.db", tmp_path, query=query)
        assert "\n" not in str(refused.value)
        assert sqlite.read_bytes() == before
        assert [one.name for one in tmp_path.iterdir()] == ["clinic.db"]

    def test_no_other_database_is_attached(self, tmp_path: Path, sqlite: Path) -> None:
        for query in ("ATTACH 'other.db' AS x", "WITH x AS (SELECT 1) ATTACH 'other.db' AS x"):
            with pytest.raises(FedveilError):
                features("sqlite:///clinic.db", tmp_path, query=query)
        assert not (tmp_path / "other.db").exists()

    def test_a_query_without_end_is_ended(self, tmp_path: Path, sqlite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(read_sql, "_STEPS", 3)
        endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) AS age FROM c"
        with pytest.raises(FedveilError, match="interrupted"):
            features("sqlite:///clinic.db", tmp_path, query=endless)

    def test_a_column_of_numbers_and_texts_is_one_of_texts(self, tmp_path: Path) -> None:
        """SQLite's columns hold anything; the parts that are fetched together must not decide what a cell is."""
        path = tmp_path / "mixed.db"
        with sqlite3.connect(path) as books:
            books.execute("CREATE TABLE visits (age REAL, ward, ill TEXT)")
            wards = [3, *["A"] * 3, *[None] * 8000, 3.0, "B"]
            books.executemany("INSERT INTO visits VALUES (?, ?, 'no')", [(1.0, ward) for ward in wards])
        books.close()
        source = Source.parse({"source": "sqlite:///mixed.db", "query": "SELECT * FROM visits", **STATED})
        found = read(source, tmp_path)[0].texts("ward")
        assert [found.words[code] for code in found.codes[[0, 1, 4, 8004, 8005]]] == ["3", "A", "", "3", "B"]


class TestParquetFolders:
    @pytest.mark.parametrize(
        "query",
        [
            "SELECT content AS age, 'A' AS ward, 'no' AS ill FROM read_text('{outside}')",
            "SELECT * FROM '{outside}'",
            "SELECT column0 AS age, 'A' AS ward, 'no' AS ill FROM read_csv('{outside}', header = false)",
            "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
            "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
            "SELECT file AS ward FROM glob('{folder}/*')",
            "SELECT * FROM source",
            "WITH x AS (SELECT 1) INSERT INTO data SELECT * FROM data",
            "WITH x AS (SELECT * FROM read_blob('{outside}')) SELECT * FROM x",
            "SELECT * FROM sqlite_scan('{outside}', 'visits')",
            "COPY data TO '{folder}/copied.csv'",
            "ATTACH '{folder}/made.db'",
            "INSTALL httpfs",
            "SELECT 1 AS age; SELECT 2 AS age",
            "SET memory_limit = '900GB'",
            "SELECT repeat('x', 4000000000) AS ward FROM data",
        ],
    )
    def test_a_query_sees_its_folder_and_nothing_else(self, tmp_path: Path, query: str) -> None:
        outside = tmp_path / "outside.csv"
        outside.write_text("the secret of another file\n", encoding="utf-8")
        (tmp_path / "lake").mkdir()
        pq.write_table(
            pa.table({"age": [1.0, 2.0], "ward": ["A", "B"], "ill": ["no", "yes"]}), tmp_path / "lake/p.parquet"
        )
        before = sorted(one.name for one in tmp_path.rglob("*"))
        with pytest.raises(FedveilError) as refused:
            features("duckdb:lake", tmp_path, query=query.format(outside=outside, folder=tmp_path))
        assert "the secret of another" not in str(refused.value)
        assert "\n" not in str(refused.value)
        assert sorted(one.name for one in tmp_path.rglob("*")) == before

    def test_a_link_out_of_the_folder_is_not_followed(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"age": [1.0], "ward": ["A"], "ill": ["no"]}), tmp_path / "elsewhere.parquet")
        (tmp_path / "lake" / "deep").mkdir(parents=True)
        (tmp_path / "lake" / "deep" / "p.parquet").symlink_to(tmp_path / "elsewhere.parquet")
        with pytest.raises(FedveilError, match="hold no link that leads out of its folder"):
            features("duckdb:lake", tmp_path)

    def test_lists_and_structures_are_left_out(self, tmp_path: Path) -> None:
        table = {
            "age": [1.0, 2.0],
            "ward": ["A", "B"],
            "ill": ["no", "yes"],
            "more": [[1], [2, 3]],
            "by": [{"x": 1}] * 2,
        }
        pq.write_table(pa.table(table), tmp_path / "v.parquet")
        for source in ("duckdb:v.parquet", "v.parquet"):
            assert features(source, tmp_path).shape == (2, 5)

    def test_a_folder_of_folders_is_one_table(self, tmp_path: Path) -> None:
        import duckdb

        as_csv(tmp_path / "v.csv", rows())
        own = duckdb.connect(":memory:")
        for year, part in (("2020", "id < 100"), ("2021", "id >= 100")):
            (tmp_path / "lake" / f"year={year}").mkdir(parents=True)
            own.execute("CREATE OR REPLACE TABLE v (id INTEGER, age DOUBLE, ward VARCHAR, ill VARCHAR)")
            own.executemany("INSERT INTO v VALUES (?, ?, ?, ?)", rows())
            own.execute(f"COPY (SELECT * FROM v WHERE {part}) TO '{tmp_path}/lake/year={year}/part.parquet'")
        own.close()
        found = features("duckdb:lake", tmp_path, query="SELECT age, ward, ill FROM data ORDER BY id")
        assert np.array_equal(found, features("v.csv", tmp_path))
        stated = {"ignore": ["id", "year"]}
        assert features("duckdb:lake", tmp_path, **stated).shape == found.shape


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    import psycopg

    with postgres.server() as found:
        with psycopg.connect(found.address()) as connection:
            connection.execute("CREATE TABLE visits (id int, age numeric(6, 2), ward text, ill text)")
            connection.execute("CREATE SEQUENCE numbers")
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO visits VALUES (%s, %s, %s, %s)", rows())
        yield found


@pytest.mark.skipif(postgres.why_not() is not None, reason=str(postgres.why_not()))
class TestPostgres:
    def test_its_rows_are_those_of_the_same_file(self, tmp_path: Path, server: postgres.Server) -> None:
        as_csv(tmp_path / "v.csv", rows())
        assert np.array_equal(features(server.address(), tmp_path, query=QUERY), features("v.csv", tmp_path))

    def test_the_password_may_come_from_the_environment(
        self, tmp_path: Path, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PGPASSWORD", server.password)
        assert len(features(server.address(password=False), tmp_path, query=QUERY)) == ROWS

    def test_a_run_and_a_profile_leave_the_password_nowhere(
        self, tmp_path: Path, server: postgres.Server, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        asked = ("--query", QUERY, "--epsilon", 4, "--target", "ill")
        homeless = command("profile", server.address(), *asked, "--out", "h")
        assert homeless.code == 2
        assert "[books] ledger" in homeless.err
        assert server.password not in homeless.err
        said = command("profile", server.address(), *asked, "--ledger", "books.sqlite")
        assert said.code == 0, said.err
        drawn = command("init", server.address(), "--query", QUERY, "--out", "s.toml")
        books = {"books": {"ledger": "books.sqlite"}}
        other = QUERY.replace("ward, ", "")  # another query of the same database
        fedveil.run_study(tables(server.address(), query=other) | books, tmp_path / "out")
        with Ledger.look(tmp_path / "books.sqlite") as both:
            assert [entry.kind for entry in both.entries()].count("charge") == 2
        told = said.out + said.err + drawn.out + drawn.err
        wrong = command("profile", server.address("nowhere"), "--query", QUERY, "--epsilon", 4, "--out", "w", "--json")
        assert wrong.code == 2
        assert "nowhere" in wrong.err
        assert server.password not in told + wrong.out + wrong.err
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) > 15
        assert [path for path in files if server.password.encode() in path.read_bytes()] == []
        assert f"postgresql://postgres@127.0.0.1:{server.port}/postgres" in (tmp_path / "s.toml").read_text()

    def test_a_wrong_password_is_one_sentence_without_it(self, tmp_path: Path, server: postgres.Server) -> None:
        wrong = server.address().replace(server.password, "not-the-right-one")
        with pytest.raises(FedveilError, match="password authentication failed") as refused:
            features(wrong, tmp_path, query=QUERY)
        assert "not-the-right-one" not in str(refused.value)
        assert refused.value.__cause__ is None

    def test_held_out_rows_come_from_the_same_database(
        self, tmp_path: Path, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        held = {"source": server.address(), "query": QUERY.replace("visits", "visits WHERE id < 50"), "public": True}
        given = tables(server.address(), query=QUERY.replace("visits", "visits WHERE id >= 50"), held_out=held)
        found = fedveil.run_study(given | {"books": {"ledger": "books.sqlite"}}, tmp_path / "out")
        assert found.metrics["test"]["records"] == 50

    def test_nothing_can_be_written(self, tmp_path: Path, server: postgres.Server) -> None:
        deleted = "WITH x AS (DELETE FROM visits RETURNING *) SELECT age, ward, ill FROM x"
        with pytest.raises(FedveilError, match=r"must answer data\.query, and it does not"):
            features(server.address(), tmp_path, query=deleted)
        loosened = "SELECT set_config('transaction_read_only', 'off', false) AS age, 'A' AS ward, 'no' AS ill"
        with pytest.raises(FedveilError):
            features(server.address(), tmp_path, query=loosened)
        with pytest.raises(FedveilError, match="set no options of the server"):
            features(server.address() + "?options=-cdefault_transaction_read_only%3Doff", tmp_path, query=QUERY)
        counted = "SELECT nextval('numbers') AS age, 'A' AS ward, 'no' AS ill"
        with pytest.raises(FedveilError, match="read-only transaction"):
            features(server.address(), tmp_path, query=counted)
        assert len(features(server.address(), tmp_path, query=QUERY)) == ROWS


def test_a_password_is_not_part_of_a_source_or_a_study() -> None:
    study = study_of(tables("postgresql://ann:s3cr%40t@db.example/clinic", query=QUERY), base=Path())
    assert study.source is not None
    assert study.source.secret == "s3cr@t"
    assert study.source.source == "postgresql://ann:***@db.example/clinic"
    assert "s3cr" not in repr(study)
    assert "s3cr" not in json.dumps(study.source.table())
