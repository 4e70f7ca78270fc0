"""Documents are tests: their code runs, their commands print what they say, their links lead somewhere.

``python`` blocks of one file share a namespace; ``console`` blocks run their ``$ `` lines and compare what is
printed (``...`` matches anything); ``<!-- file: NAME -->`` before a block writes it to a file; all in one
temporary folder. Only ``<!-- not run: reason -->`` on the line before a block excuses it. A plain ``fedveil`` command
is called in this process, which saves loading the program; those of README.md go through a shell, as people run them.
"""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import called

from fedveil.stages.train.registry import KINDS

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES) if path.exists()]
OTHER_NAMES = {"py", "python3", "pycon", "bash", "sh", "shell", "zsh"}  # would escape being run
FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*([\w+-]*)")
COMMENT = re.compile(r"\s*<!--\s*(file|not run):\s*(.*?)\s*-->\s*")
TIMEOUT = 300  # seconds a command


@dataclass(frozen=True, slots=True)
class Block:
    line: int  # of its first line of content, from 1
    language: str
    text: str
    file: str = ""
    excuse: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    expected: tuple[str, ...]


def blocks_of(text: str) -> Iterator[Block]:
    lines, start, note = text.splitlines(), 0, ("", "")
    while start < len(lines):
        fence = FENCE.match(lines[start])
        if fence is None:
            comment = COMMENT.fullmatch(lines[start])
            if comment is not None:
                note = (comment[1], comment[2])
                assert note[1], f"line {start + 1}: '<!-- {note[0]}: -->' needs a text"
            elif lines[start].strip():
                note = ("", "")
            start += 1
            continue
        end = start + 1
        while end < len(lines) and not re.fullmatch(rf"\s*{fence[1]}{fence[1][0]}*\s*", lines[end]):
            end += 1
        body = textwrap.dedent("\n".join(lines[start + 1 : end])) + "\n"
        kind, value = note
        yield Block(
            line=start + 2,
            language=fence[2].lower(),
            text=body,
            file=value if kind == "file" else "",
            excuse=value if kind == "not run" else "",
        )
        start, note = end + 1, ("", "")


def commands_of(text: str) -> list[Command]:
    commands: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif commands and commands[-1][0].endswith("\\"):
            commands[-1] = (commands[-1][0] + "\n" + line.removeprefix("> "), [])
        elif commands:
            commands[-1][1].append(line)
        else:
            assert not line.strip(), f"a console block starts with a command: {line!r}"
    return [Command(text, tuple(expected)) for text, expected in commands]


def tidy(lines: list[str]) -> list[str]:
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n")


def matches(expected: list[str], actual: list[str]) -> bool:
    pattern = ""
    for line in tidy(expected):
        inside = ".*".join(re.escape(part) for part in line.split("..."))
        pattern += r"(?:.*\n)*?" if line.strip() == "..." else inside + "\n"
    return re.fullmatch(pattern, "\n".join(tidy(actual)) + "\n") is not None


def plain(text: str) -> list[str]:
    """The words of a ``fedveil`` command that neither needs a shell nor starts processes; else none."""
    words = shlex.split(text.replace("\\\n", " "))
    alone = words[:1] == ["fedveil"] and words[1] != "deploy" and not re.search(r"[|&;<>$*?`~(){}]", text)
    return words[1:] if alone else []


def run_command(command: Command, place: str, folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "MPLBACKEND": "Agg"}
    if (words := plain(command.text)) and not place.startswith(str(ROOT / "README.md")):
        done = called(*words, cwd=folder, settings=settings)
    else:
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=folder,
            env=os.environ | settings,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    story = f"{place}: $ {command.text}\n--- printed\n{done.stdout}--- complained\n{done.stderr}"
    assert done.returncode == 0, f"{story}--- ended with {done.returncode}"
    if any(line.strip() for line in command.expected):
        promised = "\n".join(command.expected)
        assert matches(list(command.expected), done.stdout.splitlines()), f"{story}--- promised\n{promised}"


def run_document(path: Path, folder: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__document__"}
    for block in blocks_of(path.read_text(encoding="utf-8")):
        place = f"{path}:{block.line}"
        if block.excuse:
            continue
        assert block.language not in OTHER_NAMES, f"{place}: call it python or console, so that it is run"
        if block.file:
            target = (folder / block.file).resolve()
            assert target.is_relative_to(folder.resolve()), f"{place}: {block.file} leaves the folder"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            shifted = "\n" * (block.line - 1) + block.text  # so that a traceback names the document's line
            exec(compile(shifted, str(path), "exec"), namespace)
        elif block.language == "console":
            for command in commands_of(block.text):
                run_command(command, place, folder)


def links_of(text: str) -> Iterator[str]:
    """Relative link targets, without anchors; code and formulas are not prose."""
    prose = re.sub(r"^\s*(`{3,}|~{3,}).*?^\s*\1[`~]*\s*$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"(`+).*?\1|\$[^$\n]+\$", "", prose)
    for match in re.finditer(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\s*\[[^\]]+\]:\s+(\S+)", prose, re.MULTILINE):
        target = (match[1] or match[2]).partition("#")[0]
        if target and not re.match(r"[a-z][a-z0-9+.-]*:", target):
            yield target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_does_what_it_says(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    known = list(KINDS)
    try:
        run_document(path, tmp_path)
    finally:
        KINDS[:] = known  # a document that adds an algorithm adds it for itself only


def test_every_page_is_in_the_index() -> None:
    listed = {(INDEX.parent / link).resolve() for link in links_of(INDEX.read_text(encoding="utf-8"))}
    missing = [str(page.relative_to(ROOT)) for page in PAGES if page != INDEX and page.resolve() not in listed]
    assert not missing


PRIVATE = re.compile(
    "|".join(
        [
            "--(?:extra-)?" + "index-url",
            "://[^\\s\"']+/" + "simple\\b",
            "(?<![\\w.])/" + "(?:" + "|".join(["work", "farm", "root"]) + ")/",
        ]
    )
)


def test_no_file_names_a_package_index_or_a_build_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    ask = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(ask, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    found = []
    for path in (ROOT / name for name in names if name):
        text = path.read_bytes().decode("utf-8", errors="ignore") if path.is_file() else ""
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in PRIVATE.finditer(text)]
    assert not found


class TestTheseTests:
    """A checker that never complains is worse than none."""

    @pytest.mark.parametrize(
        ("expected", "actual", "same"),
        [
            (["a", "b"], ["a ", "b", ""], True),
            (["a"], ["a", "b"], False),
            (["a", "...", "c"], ["a", "c"], True),
            (["a", "...", "c"], ["a", "x", "y", "c"], True),
            (["a...z (1.5)"], ["a to z (1.5)"], True),
            (["a...z"], ["a", "z"], False),
            (["x.y"], ["xzy"], False),
        ],
    )
    def test_dots_match(self, expected: list[str], actual: list[str], same: bool) -> None:
        assert matches(expected, actual) is same

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("fedveil run 'a b' \\\n  --out c", ["run", "a b", "--out", "c"]),
            ("fedveil certify a | cat", []),
            ("fedveil deploy init", []),
            ("cat fedveil", []),
        ],
    )
    def test_only_plain_commands_need_no_shell(self, text: str, words: list[str]) -> None:
        assert plain(text) == words

    def test_blocks_share_names_and_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        page = tmp_path / "page.md"
        page.write_text(
            "```python\nx = 2\n```\n<!-- file: a/plan.toml -->\n\n```toml\nkey = 1\n```\n"
            "```console\n$ cat a/plan.toml\nkey = 1\n$ true\n$ echo a \\\n    b\na b\n```\n"
            "- item\n  ```python\n  assert x == 2\n  ```\n"
            "<!-- not run: needs a network -->\n```python\n1 / 0\n```\n"
        )
        run_document(page, tmp_path)

    @pytest.mark.parametrize(
        "text",
        [
            "```python\nassert False\n```",
            "text\n<!-- not run: old -->\nmore\n```python\nassert False\n```",
            "<!-- not run: -->\n```python\n```",
            "```console\n$ echo a\nb\n```",
            "```console\n$ false\n```",
            "```bash\ntrue\n```",
            "<!-- file: ../x -->\n```toml\n```",
        ],
    )
    def test_a_wrong_page_fails(self, text: str, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text(text)
        with pytest.raises(AssertionError):
            run_document(page, tmp_path)
