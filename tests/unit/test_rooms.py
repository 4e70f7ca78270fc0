"""The shape of the house: how many rooms and layers it has, and how often code asks who draws the noise."""

import ast
import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedveil"


def test_there_are_at_most_twenty_rooms() -> None:
    rooms = {path.parent for path in SOURCE.glob("*/__init__.py")}
    assert 15 <= len(rooms) <= 20
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Rooms")[1].split("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert {room.name for room in rooms} <= named


def test_there_are_at_most_fourteen_layers() -> None:
    rules = ConfigParser()
    rules.read(ROOT / ".importlinter")
    layers = rules["importlinter:contract:layers"]["layers"].split("\n")
    assert len([line for line in layers if line]) <= 14


def test_trust_answers_and_is_hardly_asked() -> None:
    """What differs where one party draws the noise is a method of Trust, or a pair of values that its noise names."""
    asked = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "shared" and ast.unparse(node.value).endswith("trust")
    ]
    assert len(asked) <= 5, asked
    named = [path for path in SOURCE.rglob("*.py") if "CENTRAL" in path.read_text(encoding="utf-8")]
    compared = [path for path in named if "== CENTRAL" in path.read_text(encoding="utf-8")]
    assert not compared


def walk(title: str) -> list[str]:
    """Return the files that a section of the architecture page names, each once, in order."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    return list(dict.fromkeys(re.findall(r"`([\w/]+\.py)`", section)))


def test_the_page_names_the_files_that_a_record_and_an_update_pass() -> None:
    record, update = walk("One record, from study to certificate"), walk("One update, through a deployment")
    assert [name for name in (*record, *update) if not (SOURCE / name).is_file()] == []
    assert 20 <= len(update) < 28
    assert record[0] == "jobs/local.py"
    assert update[-1] == "run/checkpoint.py"


def test_every_file_of_an_update_is_reached_from_another_of_them() -> None:
    """A file that the page names is imported by one named on it, or started by a command or the registry."""
    update = walk("One update, through a deployment")
    texts = {name: (SOURCE / name).read_text(encoding="utf-8") for name in update}
    started = {"jobs/remote.py", "federation/flower/relay.py", "federation/flower/executor.py"}
    started |= {"federation/site/socket.py", "federation/site/guard.py", "algorithms/hidden/acts.py"}
    for name in update:
        module = "fedveil." + name.removesuffix(".py").replace("/", ".")
        room, _, last = module.rpartition(".")
        said = re.compile(rf"{re.escape(module)}\b|from {re.escape(room)} import [\w, ()]*\b{last}\b")
        assert name in started or any(said.search(text) for other, text in texts.items() if other != name), name
