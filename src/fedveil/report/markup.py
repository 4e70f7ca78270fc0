"""HTML and SVG without injection, the building blocks of a page, and our own Markdown as a page.

Every text is escaped unless it is already markup. Tables work on a phone and with a screen reader. The Markdown is that
of texts that come with the package, whose names are filled in; it knows no more than they use.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any, final

_EMPTY = {"br", "col", "hr", "img", "input", "link", "meta"}  # HTML elements without an end tag
_FOREIGN = {"circle", "line", "path", "polygon", "polyline", "rect", "use"}  # SVG elements that close themselves


@final
class Markup(str):
    """Text that is already markup, and so is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *inside: object, **attributes: object) -> Markup:
    """Return one element; ``None`` inside is left out.

    An attribute that is ``None`` or false is left out, and ``True`` gives a bare attribute. A trailing underscore is
    dropped from an attribute's name, others become dashes: ``class_``, ``aria_label``.

    >>> tag("p", "a < b", tag("b", "&"), class_="x", id=None)
    '<p class="x">a &lt; b<b>&amp;</b></p>'
    """
    start = "".join([f"<{name}", *(_attribute(key, value) for key, value in attributes.items())])
    if name in _EMPTY:
        return Markup(f"{start}>")
    if name in _FOREIGN and not inside:
        return Markup(f"{start}/>")
    return Markup(f"{start}>{concat(inside)}</{name}>")


def concat(parts: Iterable[object]) -> Markup:
    """Return all parts one after another, with texts escaped.

    >>> concat(["<", Markup("<br>"), None, 3, ["a", "&"]])
    '&lt;<br>3a&amp;'
    """
    return Markup("".join(_text(part) for part in parts))


def _text(part: Any) -> str:
    match part:
        case None:
            return ""
        case Markup():
            return part
        case str():
            return escape(part)
        case list() | tuple():
            return concat(part)
        case _:
            return escape(str(part))


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


Cells = Sequence[object]
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_WIDE = "max-width: 54rem"


def head(title: str) -> Markup:
    """Return the head of a page that loads nothing and sends nothing."""
    style = files("fedveil.report").joinpath("page.css").read_text(encoding="utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(style)),
    )


def column_page(title: str, heading: Sequence[object], inside: Sequence[object]) -> str:
    """Return a whole page of one column as HTML: ``heading`` at its top, what is ``inside``, and a line at its end.

    ``title`` is what a browser shows for the page; ``None`` inside is left out.
    """
    body = [
        tag("header", *heading, style=_WIDE),
        tag("div", tag("main", *inside, id="content"), class_="layout", style=f"display: block; {_WIDE}"),
        tag("footer", tag("p", "Written by fedveil. This page loads nothing and sends nothing."), style=_WIDE),
    ]
    return "<!doctype html>\n" + tag("html", head(title), tag("body", *body), lang="en") + "\n"


def section(name: str, title: str, *inside: object) -> Markup:
    """Return a section of the page with its heading."""
    return tag("section", tag("h2", title, id=f"{name}-heading"), *inside, id=name, aria_labelledby=f"{name}-heading")


def folded(name: str, title: str, *inside: object) -> Markup:
    """Return a section that a reader unfolds; a link to it unfolds it too, and paper shows it."""
    heading = tag("summary", tag("h2", title, id=f"{name}-heading"))
    opened = tag("details", heading, tag("div", *inside, id=name), class_="fold")
    return tag("section", opened, aria_labelledby=f"{name}-heading")


def table(caption: object, heads: Sequence[str], rows: Sequence[Cells], *, numbers: Sequence[int] = ()) -> Markup:
    """Return a table whose first column names the row; ``numbers`` are the columns aligned right.

    On a narrow screen every row becomes a small block, with each cell under its column's name. The roles are written
    out because that layout would remove them.
    """
    head = [
        tag("th", text, scope="col", role="columnheader", class_=_right(i, numbers)) for i, text in enumerate(heads)
    ]
    body = [tag("tr", _cells(row, heads, numbers), role="row") for row in rows]
    return tag(
        "table",
        None if caption is None else tag("caption", caption),
        tag("thead", tag("tr", head, role="row"), role="rowgroup"),
        tag("tbody", body, role="rowgroup"),
        role="table",
        class_=" ".join([*(["stack"] if len(heads) > 3 else []), *(["long"] if len(rows) > 12 else [])]) or None,
    )


def _cells(row: Cells, heads: Sequence[str], numbers: Sequence[int]) -> list[Markup]:
    first = tag("th", row[0], scope="row", role="rowheader", class_=_right(0, numbers))
    rest = [
        tag("td", tag("span", cell), role="cell", data_label=heads[i], class_=_right(i, numbers))
        for i, cell in enumerate(row[1:], start=1)
    ]
    return [first, *rest]


def _right(column: int, numbers: Sequence[int]) -> str | None:
    return "number" if column in numbers else None


def figure(drawing: Markup, caption: object, data: Markup | None = None, legend: Markup | None = None) -> Markup:
    """Return a drawing, its caption, and its numbers to unfold."""
    numbers = None if data is None else folded_numbers("The numbers of this picture", data)
    return tag("figure", legend, drawing, tag("figcaption", caption), numbers)


def folded_numbers(summary: str, data: Markup) -> Markup:
    """Return the numbers of a picture, to unfold on a screen; paper shows the picture only."""
    return tag("details", tag("summary", summary), data, class_="numbers")


def note(*inside: object, kind: str = "note") -> Markup:
    """Return a remark that is set apart."""
    return tag("p", *inside, class_=kind)


def badge(text: str, kind: str) -> Markup:
    """Return one word that marks a row; never by colour alone."""
    return tag("span", text, class_=f"badge {kind}")


def code(text: str) -> Markup:
    """Return a text that is typed or compared letter by letter; a long one may be broken anywhere."""
    return tag("code", text, class_="long" if len(text) > 30 else None)


def paragraph(*inside: object) -> Markup:
    """Return a paragraph element."""
    return tag("p", *inside)


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
        return concat([text])
    return concat([code(part) if index % 2 else part for index, part in enumerate(parts)])
