"""The building blocks of a page: its head, tables that work on a phone and with a screen reader, figures, notes."""

from collections.abc import Sequence
from importlib.resources import files

from fedveil.report.charts import Kind
from fedveil.report.markup import Markup, tag

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


def legend(entries: Sequence[tuple[Kind | str, str]], *, shape: str) -> Markup:
    """Return a legend that explains the kinds of lines, bars or dots."""
    return tag("ul", [tag("li", _swatch(kind, shape), text) for kind, text in entries], class_="legend")


def _swatch(kind: str, shape: str) -> Markup:
    match shape:
        case "line":
            inside = tag("line", x1=0, x2=26, y1=7, y2=7, class_=f"line {kind}")
        case "dot":
            inside = tag("circle", cx=13, cy=7, r=5.5, class_=f"dot {kind}")
        case _:
            inside = tag("rect", x=1, y=1, width=24, height=12, class_=f"bar {kind}")
    return tag("svg", inside, width=26, height=14, aria_hidden="true", focusable="false", class_="swatch")


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
