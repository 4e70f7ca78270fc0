"""The addresses of the design page: its pages, and what its script asks while a slider moves or a letter is typed."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from fedveil.core.errors import BadValue, require
from fedveil.report.markup import Markup, table
from fedveil.report.words import epsilon_text
from fedveil.studio import gate
from fedveil.studio.answer_view import answer_view
from fedveil.studio.choices import chosen, with_choice
from fedveil.studio.design_page import compare_page, design_page, start_page, table_page
from fedveil.studio.edit import tables_in
from fedveil.studio.layout import address_of
from fedveil.studio.places import TABLES, check_paths, sources_in, stamps
from fedveil.studio.sentences import Refused, sentence_of
from fedveil.studio.state import Point, Studio, frame_of, html_response, target_of

EXAMPLES = {
    "hospitals": "Tumours: four hospitals, columns nobody has described",
    "wine": "Wine: three classes, stated ranges",
    "diabetes": "Diabetes: a number to predict",
    "phones": "Digits: 300 phones, each protected as a whole",
    "untrusted-server": "Tumours: a server that sees masked sums only",
}


class Design:
    """The design page of one studio."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def routes(self) -> list[Route]:
        """Return the addresses."""
        return [
            Route("/", self.start),
            Route("/design", self.design),
            Route("/table", self.table),
            Route("/table", self.draft, methods=["POST"]),
            Route("/example", self.example, methods=["POST"]),
            Route("/upload", self.upload, methods=["POST"]),
            Route("/compare", self.compare_page),
            Route("/api/choose", self.choose, methods=["POST"]),
            Route("/api/check", self.check, methods=["POST"]),
            Route("/api/plan", self.plan, methods=["POST"]),
            Route("/api/about", self.about, methods=["POST"]),
            Route("/api/save", self.save, methods=["POST"]),
            Route("/api/compare", self.compare, methods=["POST"]),
        ]

    def start(self, request: Request) -> Response:
        """Show what can be opened."""
        folder = self._studio.folder
        return html_response(start_page(self._studio.frame, folder.studies(), folder.tables(), EXAMPLES))

    def design(self, request: Request) -> Response:
        """Show a study."""
        name = request.query_params.get("study")
        _, text, seen = self._studio.study(name)
        return html_response(design_page(self._studio.frame, str(name), text, seen))

    async def table(self, request: Request) -> Response:
        """Show the columns of a table by type."""
        data = request.query_params.get("data", "")
        columns = await self._studio.ask("columns", {"data": data})
        return html_response(table_page(self._studio.frame, data, columns))

    async def draft(self, request: Request) -> Response:
        """Draft the study for a table, and show it."""
        given = await gate.form(request, self._studio.known.form)
        data, folder = given.get("data", ""), self._studio.folder
        stem = folder.existing(data, "The table").name.partition(".")[0] or "study"
        out = folder.name(folder.free(stem, ".toml"))
        try:
            between = [_number(word) for word in _listed(given.get("between", ""))]
            require(len(between) in (0, 2), "Its range", "be two numbers, separated by a comma", between)
            asked = {
                "data": data,
                "target": given.get("target") or None,
                "classes": _listed(given.get("classes", "")),
                "between": between,
                "client": given.get("client") or None,
                "ignore": _listed(given.get("ignore", "")),
                "out": out,
            }
            await self._studio.ask("draft", asked)
        except (Refused, ValueError) as error:
            columns = await self._studio.ask("columns", {"data": data})
            return html_response(table_page(self._studio.frame, data, columns, sentence_of(error)), 400)
        return _to("/design", study=out)

    async def example(self, request: Request) -> Response:
        """Copy an example into the working folder, and show it."""
        given = await gate.form(request, self._studio.known.form)
        name = given.get("name", "")
        require(name in EXAMPLES, "The example", f"be one of {', '.join(EXAMPLES)}", name[:60])
        text = files("fedveil.studio").joinpath("examples", f"{name}.toml").read_text(encoding="utf-8")
        path = self._studio.folder.free(name, ".toml")
        self._studio.save(self._studio.folder.name(path), text, None)
        return _to("/design", study=self._studio.folder.name(path))

    async def upload(self, request: Request) -> Response:
        """Copy a table into the working folder."""
        name = request.query_params.get("name", "")
        right = name.lower().endswith(TABLES) and "/" not in name
        require(right, "The file", f"be a table: {', '.join(TABLES)}", name[:60])
        path = self._studio.folder.inside(name)
        require(not path.exists(), "The file", "have a new name", name, "Nothing is overwritten.")
        await gate.upload(request, self._studio.known.form, path, self._studio.upload_limit)
        return JSONResponse({"open": address_of("/table", data=name)})

    async def choose(self, request: Request) -> Response:
        """Write a choice into the study's text."""
        given = await self._given(request)
        text = with_choice(gate.text_in(given, "text"), given.get("name"), given.get("value"))
        return JSONResponse({"text": text, "chosen": chosen(text)})

    async def check(self, request: Request) -> Response:
        """Say whether the text is a study, as the command line would."""
        given = await self._given(request)
        arguments = self._asked(given)
        await self._studio.ask("check", arguments, f"check {given.get('tab')}")
        return JSONResponse({"chosen": chosen(arguments["text"])})

    async def plan(self, request: Request) -> Response:
        """Return the exact plan; what the sliders need around it is worked out meanwhile."""
        given = await self._given(request)
        arguments, studio = self._asked(given), self._studio
        at, frame = target_of(arguments["text"]), self._frame(arguments)
        answer = None if at is None else studio.sliders.exact(frame, at)
        if answer is None:
            answer = await studio.ask("plan", arguments, f"plan {given.get('tab')}")
        if at is not None:
            studio.sliders.keep(frame, at, answer)
            studio.later.submit(studio.sliders.work_out, frame, at, lambda point: self._knot(arguments, point))
        return JSONResponse({"state": "exact", "html": answer_view(answer, "exact"), "hash": answer["hash"]})

    def _knot(self, arguments: dict[str, Any], point: Point) -> dict[str, Any]:
        asked = {**arguments, "root": str(self._studio.folder.root), "epsilon": point[0], "delta": point[1]}
        answer: dict[str, Any] = self._studio.background.ask("plan", asked, "knot")
        return answer

    async def about(self, request: Request) -> Response:
        """Return at once what is known near a target."""
        given = await self._given(request)
        arguments = self._asked(given)
        at = float(_number(given.get("epsilon"))), float(_number(given.get("delta")))
        require(1e-4 <= at[0] <= 40 and 1e-12 <= at[1] < 1, "The target", "be one that a study may have", at)
        answer, state = self._studio.sliders.about(self._frame(arguments), at)
        return JSONResponse({"state": state, "html": None if answer is None else answer_view(answer, state)})

    async def save(self, request: Request) -> Response:
        """Write the study file."""
        given = await self._given(request)
        seen = self._studio.save(given.get("study"), gate.text_in(given, "text"), given.get("seen"))
        return JSONResponse({"seen": seen})

    def compare_page(self, request: Request) -> Response:
        """Show what can be compared."""
        name = request.query_params.get("study")
        self._studio.study(name)
        return html_response(compare_page(self._studio.frame, str(name)))

    async def compare(self, request: Request) -> Response:
        """Plan every candidate, and return them side by side."""
        given = await self._given(request)
        view = given.get("view")
        require(view in ("algorithms", "trust"), "view", "be algorithms or trust", str(view)[:40])
        path, text, _ = self._studio.study(given.get("study"))
        rows = await self._studio.ask("compare", {"text": text, "base": str(path.parent), "view": view})
        return JSONResponse({"html": _side_by_side(rows)})

    async def _given(self, request: Request) -> dict[str, Any]:
        return await gate.content(request, self._studio.known.form)

    def _frame(self, asked: dict[str, Any]) -> str:
        """Return the name under which the sliders keep answers about this text and these data."""
        try:
            tables = tables_in(asked["text"])
            check_paths(tables, Path(asked["base"]), self._studio.folder)
            return frame_of(asked["text"], asked["base"], stamps(Path(asked["base"]), sources_in(tables)))
        except BadValue:
            return frame_of(asked["text"], asked["base"])

    def _asked(self, given: dict[str, Any]) -> dict[str, Any]:
        path = self._studio.folder.inside(given.get("study"), "The study file")
        return {"text": gate.text_in(given, "text"), "base": str(path.parent)}


def _side_by_side(rows: list[dict[str, Any]]) -> Markup:
    heads = ("", "Algorithm", "Observer", "Epsilon", "Rounds", "Noise", "Expected risk")
    cells = [
        (row["label"], "refused", row["adversary"], "–", "–", "–", row["refused"])
        if row["refused"] is not None
        else (
            row["label"],
            row["algorithm"],
            row["adversary"],
            epsilon_text(row["epsilon"]),
            f"{row['rounds']:,}",
            "–" if row["noise"] is None else f"{row['noise']:.3g}",
            "not known" if row["risk"] is None else f"{row['risk']:.3g}",
        )
        for row in rows
    ]
    caption = "Noise: on each coordinate of a round's averaged gradient. Risk: expected, smaller is better."
    return table(caption, heads, cells, numbers=(3, 4, 5))


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        require(False, "A number", "be given", str(value)[:40])
        raise


def _to(address: str, **query: str) -> Response:
    return RedirectResponse(address_of(address, **query), status_code=303)
