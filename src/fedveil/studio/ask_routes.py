"""Questions about a table by clicking: choose columns, see the expected precision while epsilon moves, approve, run."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from fedveil.core.errors import require
from fedveil.core.tables import write_tables
from fedveil.report.markup import Markup, note, paragraph, section, table, tag
from fedveil.report.words import epsilon_text
from fedveil.studio import jobs
from fedveil.studio.design_page import TYPES_ONLY, slider
from fedveil.studio.gate import content, form
from fedveil.studio.layout import Frame, address_of, button, failure, hidden_field, link
from fedveil.studio.sentences import Refused, sentence_of
from fedveil.studio.state import Studio, html_response

KINDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "numbers": (("", "–"), ("quantiles", "box plot"), ("mean", "mean"), ("total", "total"), ("missing", "gaps")),
    "texts": (("", "–"), ("words", "frequent words"), ("missing", "gaps")),
}
_OF: Final = "of "  # begins the name of a field that says what is asked of a column


class Asking:
    """The pages that ask about the tables of one studio."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def routes(self) -> list[Route]:
        """Return the addresses."""
        return [
            Route("/ask", self.page),
            Route("/ask", self.start, methods=["POST"]),
            Route("/api/questions", self.expected, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """Show the tables, or the columns of one."""
        data = request.query_params.get("data")
        if data is None:
            return html_response(tables_page(self._studio.frame, self._studio.folder.tables()))
        return html_response(await self._page(data))

    async def _page(self, data: str, given: Mapping[str, str] | None = None, sentence: str | None = None) -> str:
        columns = await self._studio.ask("columns", {"data": data})
        return ask_page(self._studio.frame, data, columns, given or {}, sentence)

    async def expected(self, request: Request) -> Response:
        """Return how precise the answers would be, and what they would cost."""
        given = await content(request, self._studio.known.form)
        text = question_text(given)
        arguments = {"text": text, "base": str(self._studio.folder.root)}
        result = await self._studio.ask("questions", arguments, f"questions {given.get('tab')}")
        return JSONResponse({"html": precision_view(result)})

    async def start(self, request: Request) -> Response:
        """Save the questions that were approved, and have them answered."""
        given = await form(request, self._studio.known.form)
        folder, data = self._studio.folder, given.get("data", "")
        try:
            text = question_text(given)
            await self._studio.ask("questions", {"text": text, "base": str(folder.root)})
            stem = folder.existing(data, "The table").name.partition(".")[0] or "table"
            path, out = folder.free(f"questions-{stem}", ".toml"), folder.free(f"answers-{stem}", "")
            self._studio.save(folder.name(path), text, None)
        except (Refused, ValueError) as error:
            return html_response(await self._page(data, given, sentence_of(error)), 400)
        wanted = {"kind": "ask", "study": str(path), "out": str(out), "shown": folder.name(out), "resume": False}
        name = jobs.begin(folder.root, wanted, folder.modules)
        return RedirectResponse(address_of("/watch", job=name), status_code=303)


def question_text(given: Mapping[str, Any]) -> str:
    """Return the question file that the fields of the page state."""
    asked: list[dict[str, Any]] = []
    for name, kind in given.items():
        if not name.startswith(_OF) or not kind:
            continue
        column = name.removeprefix(_OF)
        known = any(kind == one for listed in KINDS.values() for one, _ in listed)
        require(known, column, "be asked about in a known way", str(kind)[:40])
        own = {"kind": "count", "where": [f"`{column}` is missing"]} if kind == "missing" else {"kind": kind}
        asked.append({"name": f"{column}: {kind}"[-60:], **own} | ({} if kind == "missing" else {"column": column}))
    require(asked, "The questions", "be about at least one column", 0, "Choose what to ask of a column.")
    try:
        epsilon, delta = float(given.get("epsilon", "")), float(given.get("delta", ""))
    except ValueError:
        epsilon = delta = 0.0
    require(epsilon > 0 and 0 < delta < 1, "Epsilon and delta", "be numbers above 0", given.get("epsilon"))
    text = write_tables({"data": {"source": str(given.get("data"))}, "privacy": {"epsilon": epsilon, "delta": delta}})
    return text + "".join("\n" + write_tables({"question": one}).replace("[question]", "[[question]]") for one in asked)


def tables_page(frame: Frame, tables: list[str]) -> str:
    """Return the tables that can be asked about."""
    listed = [tag("li", link(name, "/ask", data=name)) for name in tables]
    none = paragraph("There is none in the working folder yet: copy one into it on the first page.")
    lead = "Counts, means, box plots and frequent words of a table, with intervals, charged in its ledger."
    return frame.page("Ask about a table", "/ask", tag("ul", listed) if listed else none, lead=lead)


def ask_page(
    frame: Frame, data: str, columns: Mapping[str, Any], given: Mapping[str, str], sentence: str | None
) -> str:
    """Return the columns of a table, what may be asked of each, and how precise the answers would be."""
    chosen, rows = dict(given), []
    for place, (name, kind) in enumerate(columns["columns"].items()):
        options = KINDS["numbers" if kind in ("numbers", "empty") else "texts"]
        own = f"{_OF}{name}"
        listed = [tag("option", shown, value=one, selected=one == chosen.get(own, "")) for one, shown in options]
        control = tag("select", listed, id=f"q{place}", name=own, aria_label=f"Ask of {name}", data_question=name)
        rows.append((name, kind, control))
    delta = min(1e-5, 0.1 / max(int(columns["records"]), 1))
    inside = frame.form(
        "/ask",
        hidden_field("data", data),
        hidden_field("delta", f"{delta:.1g}"),
        section(
            "columns",
            "What to ask",
            table(None, ("Column", "Holds", "Ask for"), rows),
            tag("p", button("All columns", type="button", id="all"), class_="row"),
        ),
        section(
            "cost",
            "What it costs",
            slider("epsilon", "Epsilon", 1.0, -1.0, 1.0),
            hidden_field("epsilon", "1"),
            tag("p", "", id="said", role="status", class_="sentence"),
            tag("div", paragraph("Choose what to ask of a column."), id="answer", aria_live="polite"),
        ),
        paragraph("Approving charges this epsilon in the ledger of the data, once, before a record is used."),
        button("Approve and ask", class_="main", id="approve"),
        id="ask",
        data_data=data,
    )
    return frame.page(
        f"Ask about {data}",
        "/ask",
        None if sentence is None else failure(sentence),
        note(f"{columns['records']:,} rows. {TYPES_ONLY}"),
        inside,
        scripts=("ask.js",),
    )


def precision_view(found: Mapping[str, Any]) -> Markup:
    """Return how wide each interval will be, and what is spent."""
    rows = [
        (one["question"], one["what"], "no interval" if one["width"] is None else f"±{one['width']:.3g} {one['unit']}")
        for one in found["rows"]
    ]
    noise = {"laplace": "Laplace", "gaussian": "Gaussian"}[found["noise"]]
    return Markup(
        table("Expected 95% intervals of the noise", ("Question", "About", "Half-width"), rows)
        + paragraph(f"Epsilon {epsilon_text(found['epsilon'])} in all, {noise} noise. {found['ledger']}")
    )
