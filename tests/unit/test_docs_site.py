"""Pages as a site: links and anchors resolve, every page is in the navigation, lines are short, papers are listed.

The build itself (``make docs``) checks links once more, and that no page asks a network for anything.
"""

import inspect
import re
import shutil
import subprocess
import sys
import unicodedata
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType

import pytest

import fedveil

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
WIDTH = 120
SITE_TOOLS = all(find_spec(name) for name in ("material", "mkdocstrings", "latex2mathml"))
FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[`~]*[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+).*?\1|\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$", re.MULTILINE)
CITED = re.compile(r"\[[A-Z]+\d\d\]\s+([A-Z][^.\d]+?)(?: et al)?\.\s")


def prose(text: str) -> str:
    return CODE.sub("", FENCED.sub("", text))


def anchors(text: str) -> set[str]:
    """Headings as Python-Markdown names them, which agrees with the usual public hosts for plain words."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
        number, name = 0, slug
        while name in found:
            number += 1
            name = f"{slug}_{number}"
        found.add(name)
    return found


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        known = file.exists() and (not anchor or anchor in anchors(file.read_text(encoding="utf-8")))
        broken += [] if known else [link]
    return broken


def navigation() -> set[str]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return set(re.findall(r":\s+(\S+\.md)$", text, re.MULTILINE))


def long_lines(text: str) -> list[str]:
    """Lines of prose above the width: not rows of tables, code, formulas, or words that cannot be broken."""
    plain = re.sub(r"\$\$.*?\$\$", "", FENCED.sub("", text), flags=re.DOTALL)
    stays = ("|", "$", "    ")
    lines = (line for line in plain.splitlines() if len(line) > WIDTH and not line.startswith(stays))
    return [line for line in lines if max(map(len, line.split())) < WIDTH - 20]


def test_links_and_anchors_resolve() -> None:
    assert {str(page): broken for page in (*PAGES, *OUTSIDE) if (broken := broken_links(page))} == {}


def test_every_page_is_in_the_navigation_and_nothing_else() -> None:
    assert navigation() == {str(page.relative_to(DOCS)) for page in PAGES}


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^::: fedveil\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(fedveil.__all__)


def test_every_public_class_and_function_shows_an_example() -> None:
    public = {name: getattr(fedveil, name) for name in fedveil.__all__}
    texts = {name: inspect.getdoc(one) or "" for name, one in public.items() if isinstance(one, type | FunctionType)}
    assert [name for name, text in texts.items() if ">>>" not in text and "Example::" not in text] == []


def test_every_named_file_exists() -> None:
    """A path of the code may start at the repository or at the package; a page may make files of its own."""
    own = {"once/design.py", "once/acts.py", "once/method.py", "once/words.py"}
    starts = (ROOT, ROOT / "src", ROOT / "src" / "fedveil")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for path in set(re.findall(r"`([\w/-]+/[\w-]+\.py)`", page.read_text(encoding="utf-8"))) - own:
            assert any((start / path).is_file() for start in starts), f"{page.name} names {path}"


def test_lines_are_short() -> None:
    assert {str(page): long for page in PAGES if (long := long_lines(page.read_text(encoding="utf-8")))} == {}


def test_every_paper_that_the_code_cites_is_in_the_bibliography() -> None:
    listed = (DOCS / "bibliography.md").read_text(encoding="utf-8")
    cited = {
        names.partition(",")[0].strip()
        for path in (ROOT / "src").rglob("*.py")
        for names in CITED.findall(path.read_text(encoding="utf-8"))
    }
    assert len(cited) > 20
    assert sorted(name for name in cited if not re.search(rf"^(- )?{name}\b", listed, re.MULTILINE)) == []


def test_the_version_is_stated_once() -> None:
    places = ["pyproject.toml", "CITATION.cff", "mkdocs.yml", "Makefile", "src/fedveil/__init__.py"]
    stating = [name for name in places if fedveil.__version__ in (ROOT / name).read_text(encoding="utf-8")]
    assert stating == []
    assert f'__version__ = "{fedveil.__version__}"' in (ROOT / "src/fedveil/version.py").read_text(encoding="utf-8")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a copy of the site there; without --quiet, or warnings would not count."""
    for name in ("docs", "tools", "src", "mkdocs.yml"):
        source = ROOT / name
        if not (folder / name).exists():
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / name)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.skipif(not SITE_TOOLS, reason="needs the extra fedveil[docs]")
def test_the_site_builds_strictly_and_asks_no_network(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    assert "<math" in pages["transport.html"]
    assert "account_for" in pages["api.html"]
    assert not [name for name, text in pages.items() if "arithmatex" in text]
    scripts = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.js"))
    assert "unpkg" not in scripts
    assert "fonts.googleapis" not in scripts


@pytest.mark.slow
@pytest.mark.skipif(not SITE_TOOLS, reason="needs the extra fedveil[docs]")
@pytest.mark.parametrize(
    ("page", "text", "said"),
    [
        ("trust.md", "[x](glossary.md#nowhere)", "does not contain an anchor"),
        ("trust.md", "[x](nowhere.md)", "nowhere.md"),
        ("lost.md", "# Lost", "not included in the"),
        ("trust.md", '<img src="https://example.org/x.png">', "ask a network"),
    ],
)
def test_a_faulty_page_ends_the_build(page: str, text: str, said: str, tmp_path: Path) -> None:
    """Two pages will do, under the settings of the whole site."""
    (tmp_path / "docs").mkdir()
    shutil.copy(DOCS / "site.css", tmp_path / "docs")
    for name in ("trust.md", "glossary.md"):
        (tmp_path / "docs" / name).write_text(f"# {name}\n", encoding="utf-8")
    whole = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    few, count = re.subn(r"^nav:\n(?:[ #-].*\n)+", "nav: [trust.md, glossary.md]\n", whole, flags=re.MULTILINE)
    assert count == 1
    (tmp_path / "mkdocs.yml").write_text(few, encoding="utf-8")
    with (tmp_path / "docs" / page).open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert said in done.stderr


class TestTheseTests:
    """A checker that never complains is worse than none."""

    def test_a_wrong_anchor_is_seen(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("# A `b` c\n\n[x](#a-b-c) [y](#a-b) [z](other.md) `[k](l)`\n```\n# no\n[m](n)\n```\n")
        assert broken_links(page) == ["#a-b", "other.md"]

    def test_headings_of_one_name_are_told_apart(self) -> None:
        assert anchors("# Same\n## Same\n## Rényi privacy (1)\n") == {"same", "same_1", "renyi-privacy-1"}

    def test_a_long_line_is_seen(self) -> None:
        assert long_lines("word " * 30) == ["word " * 30]
        assert long_lines("| " + "word " * 30 + "|\n" + "x" * 130) == []
