"""The explore page: privacy curves, trade-off functions with a game, and the papers' figures, each with sliders."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedveil.report.charts import Axis, Line, axis, legend, lines_chart
from fedveil.report.markup import Markup, concat, figure, paragraph, section, table, tag
from fedveil.report.words import nearest, percent, up
from fedveil.studio.layout import Frame, button

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
