"""What each column adds to the score of a released model, as small pictures: curves for numbers, bars for words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.core.errors import FedveilError
from fedveil.planning.plan import Plan
from fedveil.release.bundle import FILE, Bundle
from fedveil.release.shapes import shapes_of
from fedveil.report import words
from fedveil.report.charts import Axis, Band, Line, Row, axis, lines_chart, rows_chart
from fedveil.report.markup import Markup, paragraph, section, table, tag

_MOST_WORDS = 6  # bars of a column of texts
_HEIGHT = 110


@dataclass(frozen=True, slots=True)
class Point:
    """The effect at a position of a column, or of a word; its noise band, and the share of the records there."""

    at: float | str
    effect: float
    low: float
    high: float
    share: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What one column adds to the score."""

    column: str
    points: tuple[Point, ...]

    @property
    def numbers(self) -> bool:
        """Whether it is the curve of a column of numbers."""
        return any(isinstance(point.at, float) for point in self.points)

    @property
    def importance(self) -> float:
        """How far the column moves the score of a typical record: the deviation of its effect over the records."""
        known = all(math.isfinite(point.share) for point in self.points)
        weights = [max(point.share, 0.0) if known else 1.0 for point in self.points]
        total = sum(weights) or 1.0
        mean = sum(w * p.effect for w, p in zip(weights, self.points, strict=True)) / total
        return math.sqrt(sum(w * (p.effect - mean) ** 2 for w, p in zip(weights, self.points, strict=True)) / total)


def shapes_in(folder: Path, plan: Plan) -> tuple[Shape, ...]:
    """Return the shapes of a run's model, those that matter most first; none where it has none, or several scores."""
    if not plan.model.linear or not (folder / FILE).exists():
        return ()
    try:
        return listed_shapes(shapes_of(Bundle.read(folder)))
    except FedveilError:  # a projected row, or a model whose columns nobody states, has no shapes
        return ()


def listed_shapes(columns: Mapping[str, Sequence[Any]]) -> tuple[Shape, ...]:
    """Return the shapes of a table of :func:`fedveil.release.shapes.shapes_of`."""
    if len(set(columns["score"])) > 1:
        return ()
    points: dict[str, list[Point]] = {}
    keys = ("column", "position", "word", "effect", "low", "high", "share")
    for name, position, word, effect, low, high, share in zip(*(columns[key] for key in keys), strict=True):
        at = float(position) if math.isfinite(position) else str(word) or "(empty)"
        points.setdefault(name, []).append(Point(at, effect, low, high, share))
    shapes = [Shape(name, tuple(own)) for name, own in points.items()]
    return tuple(sorted(shapes, key=lambda shape: -shape.importance))


def shape_section(shapes: Sequence[Shape], raised: str, most: int = 3) -> Markup | None:
    """Return the shapes that matter most; ``raised``: what a higher score speaks for. None where there are none."""
    if not shapes:
        return None
    shown = min(most, len(shapes))
    which = "The column that matters" if shown == 1 else f"The {shown} columns that matter"
    text = (
        f"{which} most, of {len(shapes):,}. Higher speaks for {raised}. The band shows what the added noise alone "
        "could do (95%); grey bars show where the records lie, as measured with noise."
    )
    drawn = [shape_figure(shape, place) for place, shape in enumerate(shapes[:most])]
    return section("shapes", "What the model learned", paragraph(text), tag("div", drawn, class_="panels three"))


def shape_figure(shape: Shape, place: int) -> Markup:
    """Return the picture of one shape; ``place`` makes its name unique on the page."""
    name = f"shape-{place}"
    drawing = _curve(name, shape) if shape.numbers else _bars(name, shape)
    return tag("figure", tag("figcaption", shape.column), drawing)


def _curve(name: str, shape: Shape) -> Markup:
    points = [(float(p.at), p) for p in shape.points if isinstance(p.at, float)]
    ends = [end for _, p in points for end in (p.low, p.high) if math.isfinite(end)] + [p.effect for _, p in points]
    band = [Band(at, p.low, p.high) for at, p in points if math.isfinite(p.low) and math.isfinite(p.high)]
    shares = [(at, p.share) for at, p in points if math.isfinite(p.share)]
    low, high = points[0][0], points[-1][0]
    said = "; ".join(f"{words.nearest(at)}: {p.effect:+.2f}" for at, p in points[:12]) + "."
    line = Line(shape.column, [(at, p.effect) for at, p in points], "best", dots=False)
    return lines_chart(
        name,
        f"Effect of {shape.column}",
        said,
        [line],
        x=Axis(low, high if high > low else low + 1, parts=3),
        y=axis(ends, log=False, parts=3),
        names=("", ""),
        height=_HEIGHT,
        band=band,
        shares=shares,
    )


def _bars(name: str, shape: Shape) -> Markup:
    ordered = sorted(shape.points, key=lambda p: -abs(p.effect) * math.sqrt(max(p.share, 0) or 1e-6))[:_MOST_WORDS]
    rows = [
        Row(
            str(p.at),
            p.effect,
            f"{p.effect:+.2f}",
            "best" if p.effect > 0 else "other",
            (p.low, p.high) if math.isfinite(p.low) and math.isfinite(p.high) else None,
        )
        for p in sorted(ordered, key=lambda p: -p.effect)
    ]
    ends = [end for row in rows for end in (row.value or 0.0, *(row.interval or ()))]
    said = "; ".join(f"{row.label}: {row.text}" for row in rows) + "."
    return rows_chart(name, f"Effect of {shape.column}", said, rows, scale=axis([*ends, 0.0], log=False, parts=3))


def importance_table(shapes: Sequence[Shape]) -> Markup:
    """Return how much every column matters."""
    rows = [(shape.column, f"{shape.importance:.3f}") for shape in shapes]
    return table("How far each column moves the score of a typical record", ("column", "effect"), rows, numbers=(1,))
