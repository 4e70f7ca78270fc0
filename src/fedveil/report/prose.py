"""The project's own plain Markdown as a page: headings, paragraphs, lists, tables, blocks and words of code.

It is for texts that come with the package, whose names are filled in; it knows no more of Markdown than they use.
Every text is escaped, so a name that looks like markup stays text.
"""

import re
from collections.abc import Iterator

from fedveil.report.blocks import code, column_page, table
from fedveil.report.markup import Markup, joined, tag

_ITEM = re.compile(r"(?:- |\d+\. )")


def prose_page(text: str, kicker: str) -> str:
    """Return the whole page; the first heading is its title."""
    blocks = [block for block in text.strip().split("\n\n") if block.strip()]
    title = blocks[0].removeprefix("# ").strip()
    heading = [tag("p", kicker, class_="kicker"), tag("h1", title)]
    return column_page(title, heading, list(_blocks(blocks[1:])))


def _blocks(blocks: list[str]) -> Iterator[Markup]:
    for block in blocks:
        while block.startswith("#"):  # a heading may stand right above its text
            line, _, block = block.partition("\n")
            yield tag("h2", line.lstrip("# "))
        if block.startswith("|"):
            yield _table(block.split("\n"))
        elif _ITEM.match(block):
            yield _list(block)
        elif block.strip():
            yield tag("p", words_of(block))


def _list(block: str) -> Markup:
    items: list[str] = []
    for line in block.split("\n"):
        if _ITEM.match(line):
            items.append(_ITEM.sub("", line, count=1))
        else:
            items[-1] += "\n" + line.strip()
    return tag("ul" if block.startswith("- ") else "ol", [tag("li", words_of(item)) for item in items])


def _table(lines: list[str]) -> Markup:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return table(None, rows[0], [[words_of(cell) for cell in row] for row in rows[2:]])


def words_of(text: str) -> Markup:
    """Return a text whose words in backquotes are code.

    >>> words_of("run `a < b` now")
    'run <code>a &lt; b</code> now'
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd number of backquotes marks nothing
        return joined([text])
    return joined([code(part) if index % 2 else part for index, part in enumerate(parts)])
