"""Paths that a browser or a study names stay in the working folder, whatever they are made of."""

from pathlib import Path
from typing import Any

import pytest

from fedveil.core.errors import BadValue
from fedveil.studio.places import Folder, check_paths


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    inside, outside = tmp_path / "work", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.csv").write_text("a,b\n1,2\n")
    (inside / "good.csv").write_text("a,b\n1,2\n")
    (inside / "link.csv").symlink_to(outside / "secret.csv")
    (inside / "door").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    (inside / "near.csv").symlink_to(inside / "good.csv")
    return Folder(inside)


@pytest.mark.parametrize(
    "name",
    [
        "../outside/secret.csv",
        "/etc/passwd",
        "link.csv",
        "door/secret.csv",
        "door/new.csv",
        "a/../../outside/secret.csv",
        "",
        ".",
        "..",
        "loop",
        ".fedveil-studio/jobs",
        "x/.hidden",
        "run/private/key",
        "a\x00b",
        "a\nb",
        "x" * 1001,
        None,
        7,
    ],
    ids=repr,
)
def test_a_path_that_leads_out_or_is_hidden_is_refused(folder: Folder, name: object) -> None:
    with pytest.raises(BadValue, match=r"^The file must ") as refused:
        folder.existing(name)
    assert "\n" not in str(refused.value)


def test_a_plain_path_is_taken(folder: Folder) -> None:
    assert folder.existing("good.csv") == folder.root / "good.csv"
    assert folder.existing("near.csv").read_text() == "a,b\n1,2\n"
    assert folder.tables() == ["good.csv", "near.csv"]
    assert folder.free("good", ".csv").name == "good-2.csv"


def study(**more: Any) -> dict[str, Any]:
    return {"data": {"source": "good.csv"}, **more}


@pytest.mark.parametrize(
    "tables",
    [
        {"data": {"source": "/etc/passwd"}},
        {"data": {"source": "../outside/secret.csv"}},
        {"data": {"source": "link.csv"}},
        {"data": {"source": "door"}},
        {"data": {"source": "postgresql://ann:s3cret@db.example/clinic"}},
        {"data": {"source": "https://evil.example/x.csv"}},
        {"data": {"source": "sqlite:///../outside/x.db"}},
        {"data": {"source": "sqlite:////etc/x.db"}},
        {"data": {"source": "duckdb:../outside"}},
        {"data": {"source": "good.csv", "files": "../*"}},
        {"data": {"source": "good.csv", "labels": "../outside/secret.csv"}},
        {"data": {"source": "good.csv", "held_out": {"source": "/etc/passwd"}}},
        study(books={"ledger": "../ledger.sqlite"}),
        study(books={"ledger": "/tmp/ledger.sqlite"}),
    ],
    ids=str,
)
def test_a_study_that_names_something_outside_is_refused(folder: Folder, tables: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="must") as refused:
        check_paths(tables, folder.root, folder)
    assert "s3cret" not in str(refused.value)


def test_a_source_folder_with_a_link_that_leads_out_is_refused(folder: Folder) -> None:
    parts = folder.root / "parts"
    parts.mkdir()
    (parts / "a.csv").write_text("a,b\n1,2\n")
    check_paths({"data": {"source": "parts"}}, folder.root, folder)
    (parts / "b.csv").symlink_to(folder.root.parent / "outside" / "secret.csv")
    with pytest.raises(BadValue, match="hold no link that leads out"):
        check_paths({"data": {"source": "parts"}}, folder.root, folder)


@pytest.mark.parametrize(
    "source", ["good.csv", "near.csv", "sklearn:wine", "sqlite:///x.db", "duckdb:parts", "new.csv"]
)
def test_a_study_of_the_folder_is_taken(folder: Folder, source: str) -> None:
    check_paths({"data": {"source": source}, "books": {"ledger": "books.sqlite"}}, folder.root, folder)


@pytest.mark.parametrize("odd", [{"data": 7}, {"data": {"held_out": 1}}, {"books": []}, {"data": {"source": 1}}, {}])
def test_odd_tables_are_left_to_the_reader_of_studies(folder: Folder, odd: dict[str, Any]) -> None:
    check_paths(odd, folder.root, folder)
