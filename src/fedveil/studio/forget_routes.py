"""Forgetting by clicking: say who leaves a finished run, see what it takes and costs, approve, and watch the rounds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedveil.core.errors import require
from fedveil.report import words
from fedveil.report.markup import Markup, concat, note, paragraph, section, table, tag
from fedveil.studio import jobs
from fedveil.studio.gate import form
from fedveil.studio.layout import Frame, address_of, button, chooser, failure, field, hidden_field, link
from fedveil.studio.sentences import Refused, sentence_of
from fedveil.studio.state import Studio, html_response


class Forgetting:
    """The pages of requests to forget, in one studio."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def routes(self) -> list[Route]:
        """Return the addresses."""
        return [Route("/forget", self.page), Route("/forget", self.start, methods=["POST"])]

    async def page(self, request: Request) -> Response:
        """Show the form, and what a request takes once somebody is named."""
        return await self._page(request.query_params)

    async def start(self, request: Request) -> Response:
        """Begin the rounds of a request that was approved."""
        given = await form(request, self._studio.known.form)
        folder = self._studio.folder
        try:
            into = folder.inside(given.get("into", ""), "The folder for the new model")
            free = not into.exists() or (into.is_dir() and not (into / "plan.toml").exists())
            require(free, "The folder for the new model", "be new", given["into"])
            name = begin(self._studio, {**_wish(given), "sign": given.get("sign") or None}, into, resume=False)
        except ValueError as error:
            return await self._page(QueryParams(given), sentence_of(error))
        return RedirectResponse(address_of("/watch", job=name), status_code=303)

    async def _page(self, given: QueryParams, sentence: str | None = None) -> Response:
        folder, design = self._studio.folder, None
        out = folder.existing(given.get("out", ""), "The run")
        if sentence is None and (given.get("rows") or given.get("client")):
            try:
                design = await self._studio.ask("forgetting", _wish(given), "forgetting")
            except (Refused, ValueError) as error:
                sentence = sentence_of(error)
        keys = [] if self._studio.key is None else [str(self._studio.key)]
        free = folder.name(folder.free(f"{out.name}-without", ""))
        page = forget_page(self._studio.frame, given, design, free, [*keys, *folder.keys()], sentence)
        return html_response(page, 200 if sentence is None else 400)


def begin(studio: Studio, wish: Mapping[str, Any], into: Path, *, resume: bool) -> str:
    """Start the process of a request and return the job's name; every path that it names is checked here."""
    folder, key = studio.folder, wish.get("sign")
    folder.existing(wish["out"], "The run")
    if key is not None and key != str(studio.key):
        key = str(folder.existing(key, "The signing key"))
    asked = {name: wish[name] for name in ("rows", "client", "epsilon")}
    asked |= {"kind": "forget", "of": wish["out"], "root": str(folder.root), "sign": key, "resume": resume}
    return jobs.begin(folder.root, {**asked, "out": str(into), "shown": folder.name(into)}, folder.modules)


def begin_again(studio: Studio, old: Mapping[str, Any]) -> str:
    """Go on with a request that was stopped or killed; what it named is checked anew, since others may have made it."""
    folder = studio.folder
    into = folder.inside(folder.name(Path(str(old["out"]))), "The run")
    key = old.get("sign")
    own = key is None or key == str(studio.key)
    wish = {name: old.get(name) for name in ("rows", "client", "epsilon")}
    wish |= {"out": old.get("of"), "sign": key if own else folder.name(Path(str(key)))}
    return begin(studio, wish, into, resume=(into / "plan.toml").exists())


def _wish(given: Mapping[str, str]) -> dict[str, Any]:
    """Return what the fields of the page ask for."""
    try:
        epsilon = float(given.get("epsilon") or "0.1")
    except ValueError:
        epsilon = 0.0
    require(epsilon > 0, "Epsilon", "be a number above 0", given.get("epsilon"))
    rows, client = given.get("rows", "").strip(), given.get("client", "").strip()
    require(bool(rows) != bool(client), "A request", "name rows or a client", "both" if rows else "neither")
    return {"out": given.get("out", ""), "rows": rows, "client": client, "epsilon": epsilon}


def forget_page(
    frame: Frame,
    given: Mapping[str, str],
    design: Mapping[str, Any] | None,
    into: str,
    keys: Sequence[str],
    sentence: str | None,
) -> str:
    """Return the page of a request; ``design``: what it takes, once somebody is named."""
    out = given.get("out", "")
    wanted = tag(
        "form",
        hidden_field("out", out),
        field(
            "Rows",
            tag("input", id="rows", name="rows", value=given.get("rows", ""), autocomplete="off"),
            "rows",
            "Rows of the data that leave, counted from 1 without the header, such as 17,41.",
        ),
        field(
            "or a client",
            tag("input", id="client", name="client", value=given.get("client", ""), autocomplete="off"),
            "client",
            "With all that it has.",
        ),
        field(
            "Epsilon",
            tag("input", id="epsilon", name="epsilon", value=given.get("epsilon", "0.1"), inputmode="decimal"),
            "epsilon",
            "What is to be left of them for whoever has the new model only.",
        ),
        button("Show what it takes", class_="" if design is not None else "main"),
        method="get",
        action="/forget",
        class_="narrow",
    )
    return frame.page(
        f"Forget: {out}",
        "/runs",
        None if sentence is None else failure(sentence),
        section("who", "Who leaves", wanted),
        None if design is None else _design(frame, given, design, into, keys),
        paragraph(link("Back to the run", "/run", out=out)),
        lead="Go on without them from a released model, or begin anew, until nobody can tell that they were there.",
    )


def _design(
    frame: Frame, given: Mapping[str, str], design: Mapping[str, Any], into: str, keys: Sequence[str]
) -> Markup:
    """Return what a request takes, beside training again, and the form that approves it."""
    rows = [
        (
            f"{one['rounds']:,}" + (", chosen" if one["chosen"] else ""),
            one["begins"],
            words.epsilon_text(one["epsilon"]),
            words.epsilon_text(one["others"]),
            words.percent(one["quality"], most=False),
        )
        for one in design["options"]
    ]
    again = design["again"]
    price, quality = words.epsilon_text(again["others"]), words.percent(again["quality"], most=False)
    rows.append((f"{again['rounds']:,}", "zeros: training again", "–", price, quality))
    heads = ("Rounds", "Begin with", "Left of them", "Charged to the others", "Expected quality")
    signers = [("", "nobody"), *((key, key) for key in keys)]
    approve = frame.form(
        "/forget",
        *(hidden_field(name, given.get(name, "")) for name in ("out", "rows", "client", "epsilon")),
        field(
            "Folder for the new model",
            tag("input", id="into", name="into", value=into, autocomplete="off", required=True),
            "into",
            "A new folder in the working folder.",
        ),
        field("Certificate and receipt signed by", chooser("sign", signers, ""), "sign"),
        paragraph("Approving charges everybody else once, before a record is used. The old model has to be withdrawn."),
        button("Approve and forget", class_="main", id="approve"),
        class_="narrow",
    )
    told = [note(text) for text in design["notes"]]
    parts = [table(None, heads, rows, numbers=(2, 3, 4)), Markup(design["curve"]), *told, approve]
    return section("takes", "What it takes", concat(parts))
