"""The page on which a released model and its privacy are explored, and the addresses behind it."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedveil.core.errors import require
from fedveil.report.charts import Axis, Line, axis, legend, lines_chart
from fedveil.report.markup import Markup, concat, figure, paragraph, section, table, tag
from fedveil.report.words import nearest, percent, up
from fedveil.studio import gate
from fedveil.studio.layout import Frame, button
from fedveil.studio.state import Studio, html_response

# The explore page: privacy curves, trade-off functions with a game, and the papers' figures, each with sliders.

# name: title, sentence, sliders as (key, label, least, most, at, logarithmic, whole)
Slider = tuple[str, str, float, float, float, bool, bool]
PARTS: Final[dict[str, tuple[str, str, tuple[Slider, ...]]]] = {
    "curve": (
        "Privacy curves",
        "Every mechanism promises a whole curve of epsilon and delta. Here: sums with Gaussian noise, one a round, of "
        "batches that nobody learns, and of everybody. Exact composition, certified.",
        (
            ("noise", "Noise multiplier", 0.5, 10.0, 2.0, True, False),
            ("rate", "Share of the records in a batch", 0.001, 0.5, 0.02, True, False),
            ("rounds", "Rounds", 1.0, 3000.0, 500.0, True, True),
            ("delta", "Delta at which epsilon is read", 1e-9, 1e-3, 1e-5, True, False),
        ),
    ),
    "trade_off": (
        "Trade-off functions",
        "Somebody sees what was released, and says whether your record was used. Few false alarms cost many misses: "
        "no test gets below the curve.",
        (
            ("epsilon", "Epsilon", 0.1, 10.0, 1.0, True, False),
            ("delta", "Delta", 1e-9, 1e-2, 1e-5, True, False),
        ),
    ),
    "hidden-updates": (
        "Nobody knows a user's round",
        "Figure 2 of Asoodeh and Calmon (2020): one pass over 100 users in a secret order, last model seen.",
        (
            ("first", "Noise", 0.5, 5.0, 1.5, True, False),
            ("second", "Step", 0.05, 1.0, 0.5, False, False),
            ("third", "Rounds", 1.0, 50.0, 10.0, False, True),
        ),
    ),
    "places": (
        "Early records are hidden by later rounds",
        "Figure 2 of Asoodeh, Diaz and Calmon (2020): 40 rounds in a public order, and the record of one of them.",
        (
            ("first", "Noise", 0.5, 5.0, 2.0, True, False),
            ("second", "Step", 0.05, 1.0, 0.5, False, False),
            ("third", "Round of the record", 1.0, 40.0, 20.0, False, True),
        ),
    ),
    "renyi-conversion": (
        "Converting without loss",
        "From Renyi privacy of one order to epsilon at delta 1e-5, by three rules (Asoodeh et al.).",
        (("first", "Order alpha", 1.5, 30.0, 5.0, True, False),),
    ),
    "moments-accountant": (
        "Composing exactly",
        "The moments accountant, the lossless conversion, and exact composition of the same rounds, at delta 1e-5.",
        (
            ("first", "Noise multiplier", 1.0, 8.0, 4.0, True, False),
            ("second", "Share of the records in a batch", 0.001, 0.2, 0.04, True, False),
        ),
    ),
}


SLOW: Final = ("hidden-updates", "moments-accountant")  # drawn when the slider is let go


def explore_page(frame: Frame) -> str:
    """Return the whole page; its script fetches every figure, and again when a slider moves."""
    parts = [_part(name, *rest) for name, rest in PARTS.items()]
    return frame.page(
        "Explore",
        "/explore",
        *parts,
        scripts=("explore.js",),
        lead="What the numbers mean, with no data at all: nothing on this page is about anybody's records.",
    )


def _part(name: str, title: str, sentence: str, sliders: Sequence[Slider]) -> Markup:
    controls = [_slider(name, one) for one in sliders]
    game = _game() if name == "trade_off" else None
    return section(
        name,
        title,
        paragraph(sentence),
        tag("div", controls, class_="choices"),
        tag("div", paragraph("Working it out …"), id=f"{name}-figure", data_figure=name),
        game,
    )


def _slider(part: str, given: Slider) -> Markup:
    key, label, low, high, at, log, whole = given
    name = f"{part}-{key}"
    control = tag(
        "input",
        type="range",
        id=name,
        min=0,
        max=1000,
        step=1,
        value=_steps(low, high, at, log),
        data_part=part,
        data_key=key,
        data_low=repr(low),
        data_high=repr(high),
        data_log="yes" if log else None,
        data_whole="yes" if whole else None,
        data_slow="yes" if part in SLOW else None,
        aria_valuetext=f"{at:g}",
    )
    shown = tag("output", f"{at:g}", for_=name, id=f"{name}-value")
    return tag("div", tag("label", label, " ", shown, for_=name), control, class_="field")


def _steps(low: float, high: float, at: float, log: bool) -> int:
    scale = Axis(low, high, log=log)
    return round(10 * scale.share(at))


def _game() -> Markup:
    return tag(
        "div",
        tag("h3", "Play it yourself"),
        paragraph(
            "A number is shown: your record's part, 1 or 0 by the toss of a coin, behind the Gaussian noise that just "
            "meets epsilon and delta above. Was your record used?"
        ),
        tag(
            "p",
            button("Show a number", type="button", id="show"),
            " ",
            tag("output", "–", id="number", class_="number"),
            " ",
            button("It was used", type="button", id="used", disabled=True),
            " ",
            button("It was not", type="button", id="unused", disabled=True),
            class_="game",
        ),
        tag("p", "", id="score", role="status"),
    )


def figure_view(name: str, figures: Mapping[str, Any]) -> Markup:
    """Return a figure with its legend and its numbers."""
    title, _, _ = PARTS[name]
    lines = [
        Line(one["name"], [(x, y) for x, y in one["points"]], one["kind"], dots=False)
        for one in figures["lines"]
        if one["points"]
    ]
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    wide, tall = figures["log"]
    x = axis(xs, log=True) if wide else Axis(0.0, max(xs, default=1.0) or 1.0)
    y = Axis(1e-12, 1.0, log=True) if tall else Axis(0.0, max(ys, default=1.0) or 1.0)
    named = [
        (one["kind"], one["name"] + ("" if one["value"] is None else f": epsilon {up(one['value'])}"))
        for one in figures["lines"]
    ]
    said = "; ".join(text for _, text in named)
    picture = lines_chart(f"{name}-drawing", title, said, lines, x=x, y=y, names=(figures["x"], figures["y"]))
    rows = [(one["name"], nearest(px), nearest(py)) for one in figures["lines"] for px, py in one["points"][::4]]
    numbers = table("Some of the points", ("Curve", figures["x"], figures["y"]), rows, numbers=(1, 2))
    return concat([figure(picture, _caption(figures), numbers, legend(named, shape="line"))])


def _caption(figures: Mapping[str, Any]) -> str:
    best = figures.get("best")
    if best is None:
        return "Lower is better."
    return (
        f"Of guesses between used and not used at most {percent(best['promised'])} are right whatever the mechanism; "
        f"with Gaussian noise of deviation {figures['noise']:.3g}, {percent(best['gaussian'])}. A coin: 50%."
    )


# The membership game: a number is shown that holds one record's part or not, behind noise; the player guesses which.
#
# The coin and the noise are drawn by the system's randomness when a number is shown, and told only after the guess.

_MOST = 200  # games that are remembered
_draw = secrets.SystemRandom()


@dataclass(slots=True)
class _Game:
    noise: float
    used: bool = False
    waiting: bool = False
    played: int = 0
    right: int = 0


@dataclass(slots=True)
class Games:
    """All games that are being played, each with the noise that it began with."""

    known: "OrderedDict[str, _Game]" = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, noise: float) -> str:
        """Begin a game and return its name."""
        require(0 < noise < float("inf"), "noise", "be positive and finite", noise)
        name = secrets.token_hex(8)
        with self.lock:
            self.known[name] = _Game(noise)
            while len(self.known) > _MOST:
                self.known.popitem(last=False)
        return name

    def number(self, name: object) -> dict[str, Any]:
        """Toss the coin, and return the number that the player sees."""
        with self.lock:
            game = self._game(name)
            require(not game.waiting, "The game", "have its last number guessed first", "another number")
            game.used, game.waiting = _draw.random() < 0.5, True
            return {"number": game.used + _draw.gauss(0.0, game.noise)}

    def guess(self, name: object, used: object) -> dict[str, Any]:
        """Return whether the guess was right, and how many were so far."""
        with self.lock:
            game = self._game(name)
            require(game.waiting, "The game", "show a number before it is guessed", "no number")
            require(isinstance(used, bool), "The guess", "be true or false", str(used)[:20])
            game.waiting = False
            game.played += 1
            game.right += used == game.used
            return {"used": game.used, "played": game.played, "right": game.right}

    def _game(self, name: object) -> _Game:
        require(name in self.known, "The game", "be one that was begun here", str(name)[:40], "Begin a new one.")
        return self.known[str(name)]


# The addresses of the explore page: its figures, and its game.


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
        given = await gate.content(request, self._studio.known.form)
        name = given.get("name")
        require(name in PARTS, "The figure", f"be one of {', '.join(PARTS)}", str(name)[:40])
        kind = f"figure {name} {given.get('tab')}"
        figures = await self._studio.ask(*_question(str(name), given), kind, aside=True)
        return JSONResponse({"html": figure_view(str(name), figures), "noise": figures.get("noise")})

    async def game(self, request: Request) -> Response:
        """Begin a game, show a number, or take a guess."""
        given = await gate.content(request, self._studio.known.form)
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
