"""The addresses of the explore page: its figures, and its game."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedveil.core.errors import require
from fedveil.studio import reading
from fedveil.studio.explore_page import PARTS, explore_page, figure_view
from fedveil.studio.game import Games
from fedveil.studio.state import Studio, html_response


class Explore:
    """The explore page of one studio."""

    def __init__(self, studio: Studio) -> None:
        self._studio, self._games = studio, Games()

    def routes(self) -> list[Route]:
        """Return the addresses."""
        return [
            Route("/explore", self.page),
            Route("/api/figure", self.figure, methods=["POST"]),
            Route("/api/game", self.game, methods=["POST"]),
        ]

    def page(self, request: Request) -> Response:
        """Show the page."""
        return html_response(explore_page(self._studio.frame))

    async def figure(self, request: Request) -> Response:
        """Return a figure at the sliders' values."""
        given = await reading.content(request, self._studio.known.form)
        name = given.get("name")
        require(name in PARTS, "The figure", f"be one of {', '.join(PARTS)}", str(name)[:40])
        kind = f"figure {name} {given.get('tab')}"
        figures = await self._studio.ask(*_question(str(name), given), kind, aside=True)
        return JSONResponse({"html": figure_view(str(name), figures), "noise": figures.get("noise")})

    async def game(self, request: Request) -> Response:
        """Begin a game, show a number, or take a guess."""
        given = await reading.content(request, self._studio.known.form)
        if "guess" in given:
            return JSONResponse(self._games.guess(given.get("game"), given["guess"]))
        name = given.get("game")
        if name is None:
            figures = await self._studio.ask(*_question("trade_off", given))
            name = self._games.begin(figures["noise"])
        return JSONResponse({"game": name, **self._games.number(name)})


def _question(name: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the question and its numbers, each within the range of its slider."""
    values: dict[str, Any] = {}
    for key, label, low, high, _, _, whole in PARTS[name][2]:
        value = given.get(key)
        right = isinstance(value, int | float) and low * 0.999 <= value <= high * 1.001
        require(right, label, f"lie between {low:g} and {high:g}", str(value)[:40])
        values[key] = min(max(float(value or 0), low), high)
        values[key] = float(round(values[key])) if whole else values[key]
    if name in ("curve", "trade_off"):
        return name, values
    return "figure", {"first": 0.0, "second": 0.0, "third": 0.0, **values, "name": name}
