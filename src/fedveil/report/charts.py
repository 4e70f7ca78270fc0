"""Small charts as SVG inside the page: they follow its colours, its width and its print style. And small grey pictures.

The picture is the plot area itself: horizontal lengths are percentages, so text keeps its size on a phone; labels
extend over the edges into margins that the style sheet leaves free. Lines are drawn in a nested picture that is
stretched, with strokes that are not. A grey picture is a PNG of a few hundred bytes, as a data address.
"""

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedveil.core.errors import require
from fedveil.report.markup import Markup, concat, tag

Kind = Literal["best", "other", "weak"]
_ROW = 46  # height of a row of bars in pixels
_CELL, _LETTERS = 24, 18  # pixels of a square; letters of a name that are shown beside it
_BARS, _BAR_HEIGHT = 220, 46  # pixels of a picture inside a table
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Row:
    """One bar: its label, its length (None: no bound), the text beside it, its style, and its interval."""

    label: str
    value: float | None
    text: str
    kind: Kind = "other"
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """What took some time: its label, when it began, and how long it took."""

    label: str
    start: float
    length: float

    @property
    def end(self) -> float:
        """When it was over."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Line:
    """One line; the points need not be evenly spaced."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: Kind = "other"
    dots: bool = True


@dataclass(frozen=True, slots=True)
class Band:
    """The ends of a band around a line, at one place of the horizontal axis."""

    at: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Span:
    """What is shown to be reached, the most that is promised (None: nothing), and the text beside it."""

    label: str
    reached: float
    most: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Box:
    """One box plot: its label, and shares with their quantiles, in order."""

    label: str
    quantiles: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """The range of an axis, and how numbers are placed on it."""

    low: float
    high: float
    log: bool = False
    parts: int = 5  # approximate number of intervals between the grid lines
    whole: bool = False  # what is counted has no halves: grid lines at whole numbers only

    def share(self, value: float) -> float:
        """Return the position on the axis, in percent."""
        if self.log:
            return 100 * math.log(value / self.low) / math.log(self.high / self.low)
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return round numbers between the ends."""
        ticks = (_log_ticks if self.log else _linear_ticks)(self.low, self.high, self.parts)
        return [tick for tick in ticks if tick == round(tick)] if self.whole else ticks


def axis(values: Sequence[float], *, log: bool | None = None, parts: int = 5) -> Axis:
    """Return an axis from zero with room for all values; logarithmic if they differ too much for a linear one.

    >>> axis([1.0, 2.9]), axis([0.5, 500.0])
    (Axis(low=0.0, high=3.0, log=False, ...), Axis(low=0.1, high=1000.0, log=True, ...))
    """
    low, high = min(values), max(values)
    positive = [v for v in values if v > 0]
    if log is None:
        log = len(positive) == len(values) and high / low > 15
    if log:
        ends = (10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high)))
        return Axis(ends[0], ends[1] if ends[1] > ends[0] else 10 * ends[0], log=True, parts=parts)
    low = min(0.0, low)
    high = high if high > low else low + 1.0
    step = _step(low, high, parts)
    ends = (step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9))
    return Axis(float(f"{ends[0]:.12g}"), float(f"{ends[1]:.12g}"), parts=parts)


def picture(name: str, title: str, description: str, height: int, *inside: object, kind: str) -> Markup:
    """Return an SVG with a description for people who do not see it."""
    head, labels = _title_and_description(name, title, description)
    return tag("svg", head, *inside, id=name, class_=f"chart {kind}", role="img", height=height, **labels)


def rows_chart(
    name: str, title: str, description: str, rows: Sequence[Row], *, scale: Axis, mark: tuple[float, str] | None = None
) -> Markup:
    """Return bars in rows; dots on a logarithmic axis, where the length of a bar would have no meaning."""
    top = 0 if mark is None else 20
    height = top + _ROW * len(rows)
    parts: list[object] = [_across(scale, height)]
    if mark is not None:
        at, left = scale.share(mark[0]), scale.share(mark[0]) < 50
        x, anchor = f"{at:.2f}%", "start" if left else "end"
        parts.append(tag("line", x1=x, x2=x, y1=4, y2=top, class_="mark"))
        for index in range(len(rows)):  # beside the bars only, so that it strikes through no label
            y = top + _ROW * index
            parts.append(tag("line", x1=x, x2=x, y1=y + 21, y2=y + _ROW - 4, class_="mark"))
        parts.append(tag("text", mark[1], x=x, dx=5 if left else -5, y=12, text_anchor=anchor, class_="note"))
    parts += [_row(row, scale, top + _ROW * index) for index, row in enumerate(rows)]
    return picture(name, title, description, height + 26, *parts, kind="rows")


def _row(row: Row, scale: Axis, top: int) -> Markup:
    label = tag("text", row.label, x=0, y=top + 16, class_="label")
    middle, base = top + 31, max(scale.share(scale.low if scale.log else 0.0), 0.0)
    if row.value is None:
        bar = tag("rect", x=0, y=middle - 8, width="100%", height=16, class_="bar none")
        return concat([label, bar, _beside(row.text, 0.0, middle)])
    at = scale.share(row.value)
    if scale.log:
        guide = tag("line", x1=0, x2=f"{at:.2f}%", y1=middle, y2=middle, class_="guide")
        shape = [guide, tag("circle", cx=f"{at:.2f}%", cy=middle, r=6, class_=f"dot {row.kind}")]
    else:
        left, width = min(base, at), abs(at - base)
        shape = [
            tag("rect", x=f"{left:.2f}%", y=middle - 8, width=f"{width:.2f}%", height=16, class_=f"bar {row.kind}")
        ]
    end = at
    if row.interval is not None:
        low, high = (scale.share(v) for v in row.interval)
        shape.append(tag("line", x1=f"{low:.2f}%", x2=f"{high:.2f}%", y1=middle, y2=middle, class_="whisker"))
        end = max(at, high)
    return concat([label, shape, _beside(row.text, max(end, base), middle)])


def spans_chart(name: str, title: str, description: str, spans: Sequence[Span], *, scale: Axis) -> Markup:
    """Return one row each: a bar up to what is reached, an open bar for the rest, a line at what is promised."""
    height = _ROW * len(spans)
    parts = [_across(scale, height), *(_span(span, scale, _ROW * index) for index, span in enumerate(spans))]
    return picture(name, title, description, height + 26, *parts, kind="rows")


def stretches_chart(name: str, title: str, description: str, stretches: Sequence[Stretch]) -> Markup:
    """Return one row each: a bar from when it began to when it was over."""
    scale = axis([one.end for one in stretches], log=False)
    height = _ROW * len(stretches)
    parts: list[object] = [_across(scale, height)]
    for index, one in enumerate(stretches):
        label, middle = tag("text", one.label, x=0, y=_ROW * index + 16, class_="label"), _ROW * index + 31
        start, end = scale.share(max(one.start, 0.0)), scale.share(one.end)
        parts += [
            label,
            _bar(start, max(end, start + 0.3), middle, "bar best"),
            _beside(f"{one.length:.1f}", end, middle),
        ]
    return picture(name, title, description, height + 26, *parts, kind="rows")


def _span(span: Span, scale: Axis, top: int) -> Markup:
    label, middle = tag("text", span.label, x=0, y=top + 16, class_="label"), top + 31
    at = scale.share(min(span.reached, scale.high))
    over = span.most is not None and span.reached > span.most
    solid = _bar(0.0, at, middle, "bar broken" if over else "bar best")
    if span.most is None:
        return concat([label, _bar(at, 100.0, middle, "bar none"), solid, _beside(span.text, at, middle)])
    end = scale.share(span.most)
    room = None if over else _bar(at, end, middle, "bar room")
    x = f"{end:.2f}%"
    line = tag("line", x1=x, x2=x, y1=middle - 12, y2=middle + 12, class_="limit")
    return concat([label, room, solid, line, _beside(span.text, max(at, end), middle)])


def boxes_chart(name: str, title: str, description: str, boxes: Sequence[Box], *, scale: Axis) -> Markup:
    """Return a box plot in each row: a line over all quantiles, a box over the middle ones, a mark at the median."""
    height = _ROW * len(boxes)
    parts = [_across(scale, height), *(_box(box, scale, _ROW * index) for index, box in enumerate(boxes))]
    return picture(name, title, description, height + 26, *parts, kind="rows")


def _box(box: Box, scale: Axis, top: int) -> Markup:
    label, middle = tag("text", box.label, x=0, y=top + 16, class_="label"), top + 31
    places = [(share, scale.share(value)) for share, value in box.quantiles]
    ends = f"{places[0][1]:.2f}%", f"{places[-1][1]:.2f}%"
    parts = [label, tag("line", x1=ends[0], x2=ends[1], y1=middle, y2=middle, class_="whisker")]
    inner = [place for share, place in places if 0.2 <= share <= 0.8]
    if len(inner) > 1:
        parts.append(_bar(inner[0], inner[-1], middle, "bar best"))
    half = next((place for share, place in places if share == 0.5), None)
    if half is not None:
        parts.append(tag("line", x1=f"{half:.2f}%", x2=f"{half:.2f}%", y1=middle - 9, y2=middle + 9, class_="limit"))
    return concat(parts)


def _bar(start: float, end: float, middle: int, kind: str) -> Markup:
    return tag("rect", x=f"{start:.2f}%", y=middle - 8, width=f"{end - start:.2f}%", height=16, class_=kind)


def _beside(text: str, at: float, middle: int) -> Markup:
    return tag("text", text, x=f"{at:.2f}%", dx=10, y=middle + 5, class_="value")


def _across(scale: Axis, height: int) -> Markup:
    """Return grid lines and numbers of the horizontal axis."""
    parts = []
    for tick in scale.ticks():
        x = f"{scale.share(tick):.2f}%"
        parts.append(tag("line", x1=x, x2=x, y1=0, y2=height, class_="grid"))
        parts.append(tag("text", tick_text(tick, scale.log), x=x, y=height + 18, text_anchor="middle", class_="tick"))
    return concat(parts)


def lines_chart(
    name: str,
    title: str,
    description: str,
    lines: Sequence[Line],
    *,
    x: Axis,
    y: Axis,
    names: tuple[str, str],
    height: int = 240,
    mark: tuple[float, str] | None = None,
    band: Sequence[Band] = (),
    shares: Sequence[tuple[float, float]] = (),
    ends: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Return lines over two axes; ``names`` are the labels of the axes, ``mark`` is a horizontal level.

    ``band``: an area behind the lines; ``shares``: small bars at the bottom, for how much lies where; ``ends``: names
    of lines, written where they end on the right.
    """
    parts: list[object] = [_across(x, height), _upwards(y, height), _share_bars(shares, x, height)]
    if len(band) > 1:
        parts.append(_band(band, x, y, height))
    parts.append(tag("text", names[0], x="100%", y=height + 36, text_anchor="end", class_="note"))
    parts.append(tag("text", names[1], x=-46, y=-10, class_="note"))
    if mark is not None:
        level = height * (1 - y.share(mark[0]) / 100)
        parts.append(tag("line", x1=0, x2="100%", y1=f"{level:.1f}", y2=f"{level:.1f}", class_="mark"))
    parts += [_line(line, x, y, height) for line in lines]
    parts += _end_names(ends, y, height)
    if mark is not None:  # above the picture: inside it would lie on lines
        parts.append(tag("text", f"dashed: {mark[1]}", x="100%", y=-10, text_anchor="end", class_="note"))
    return picture(name, title, description, height + 42, *parts, kind="lines")


def _line(line: Line, x: Axis, y: Axis, height: int) -> Markup:
    places = [(x.share(a), height * (1 - y.share(b) / 100)) for a, b in line.points]
    path = " ".join(f"{10 * a:.1f},{b:.1f}" for a, b in places)
    drawn = tag("polyline", points=path, class_=f"line {line.kind}", vector_effect="non-scaling-stroke")
    nested = tag(
        "svg",
        drawn,
        viewBox=f"0 0 1000 {height}",
        preserveAspectRatio="none",
        width="100%",
        height=height,
        class_="over",
    )
    dots = [tag("circle", cx=f"{a:.2f}%", cy=f"{b:.1f}", r=4, class_=f"dot {line.kind}") for a, b in places]
    return concat([nested if len(places) > 1 else None, dots if line.dots or len(places) == 1 else None])


def _end_names(ends: Sequence[tuple[float, str]], y: Axis, height: int) -> list[Markup]:
    """Return names at the right end, just above their levels; moved apart where they would lie on each other."""
    order = sorted(ends, reverse=True)
    places = [height * (1 - y.share(level) / 100) - 6 for level, _ in order]
    for k in range(1, len(places)):
        places[k] = max(places[k], places[k - 1] + 14)
    for k in reversed(range(len(places))):
        places[k] = min(places[k], height - 6 - 14 * (len(places) - 1 - k))
    return [
        tag("text", text, x="100%", y=f"{place:.1f}", text_anchor="end", class_="note")
        for (_, text), place in zip(order, places, strict=True)
    ]


def _band(band: Sequence[Band], x: Axis, y: Axis, height: int) -> Markup:
    ends = [(one.at, one.high) for one in band] + [(one.at, one.low) for one in reversed(band)]
    places = [(10 * x.share(at), height * (1 - y.share(end) / 100)) for at, end in ends]
    area = tag("polygon", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in places), class_="band")
    box = f"0 0 1000 {height}"
    return tag("svg", area, viewBox=box, preserveAspectRatio="none", width="100%", height=height, class_="over")


def _share_bars(shares: Sequence[tuple[float, float]], x: Axis, height: int) -> Markup | None:
    """Return a bar for each share, the largest a quarter of the picture high."""
    top = max((share for _, share in shares), default=0.0)
    if top <= 0:
        return None
    width = max(100 / (3 * len(shares)), 1.0)
    return concat(
        tag(
            "rect",
            x=f"{min(max(x.share(at) - width / 2, 0.0), 100 - width):.2f}%",
            y=f"{height * (1 - max(share, 0.0) / top / 4):.1f}",
            width=f"{width:.2f}%",
            height=f"{height * max(share, 0.0) / top / 4:.1f}",
            class_="share",
        )
        for at, share in shares
    )


def _upwards(scale: Axis, height: int) -> Markup:
    parts = []
    for tick in scale.ticks():
        level = f"{height * (1 - scale.share(tick) / 100):.1f}"
        parts.append(tag("line", x1=0, x2="100%", y1=level, y2=level, class_="grid"))
        parts.append(tag("text", tick_text(tick, scale.log), x=-8, y=level, dy=4, text_anchor="end", class_="tick"))
    return concat(parts)


def hundred(name: str, title: str, description: str, chance: int, more: int) -> Markup:
    """Return a hundred dots: right by chance, right at most because of the release, wrong."""
    kinds = ["chance"] * chance + ["best"] * more + ["wrong"] * (100 - chance - more)
    dots = [
        tag("circle", cx=9 + 18 * (i % 20), cy=9 + 18 * (i // 20), r=6.5, class_=f"dot {kind}")
        for i, kind in enumerate(kinds)
    ]
    head, labels = _title_and_description(name, title, description)
    return tag("svg", head, dots, id=name, class_="hundred", role="img", viewBox="0 0 360 90", **labels)


def squares_chart(
    name: str,
    title: str,
    description: str,
    columns: Sequence[str],
    square: Callable[[int, int], tuple[float, str]],
    *,
    style: str,
) -> Markup:
    """Return a table of squares, a row and a column for each of ``columns``.

    ``square``: the area of each from 0 to 1, and its class. ``style`` may use the width of the picture as ``{width}``.
    """
    count, left = len(columns), 52 + 8 * max(len(_short(one)) for one in columns)
    inside: list[Markup] = []
    for i, label in enumerate(columns):
        y, middle = _CELL * (i + 1), left + _CELL * i + _CELL / 2
        inside.append(tag("text", f"{_short(label)}  {i + 1}", x=left - 8, y=y + 16, text_anchor="end", class_="label"))
        inside.append(tag("text", str(i + 1), x=middle, y=16, text_anchor="middle", class_="tick"))
        for j in range(count):
            area, kind = square(i, j)
            size = (_CELL - 4) * area**0.5
            if size >= 2:
                at = {"x": f"{left + _CELL * j + (_CELL - size) / 2:.1f}", "y": f"{y + (_CELL - size) / 2:.1f}"}
                inside.append(tag("rect", **at, width=f"{size:.1f}", height=f"{size:.1f}", class_=kind))
    width, height = left + _CELL * count + 8, _CELL * (count + 1) + 8
    head, labels = _title_and_description(name, title, description)
    box = f"0 0 {width} {height}"
    shape = style.format(width=width)
    return tag("svg", head, inside, id=name, class_="chart", role="img", viewBox=box, style=shape, **labels)


def _short(name: str) -> str:
    """A name with its middle left out, if it is long: names often differ at their ends alone."""
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS // 2]}…{name[-(_LETTERS // 2 - 1) :]}"


def small_bars(title: str, shares: Sequence[float]) -> Markup:
    """Return a picture of one bar for each share, small enough to stand in a table."""
    top, width = max(*shares, 1e-9), _BARS / len(shares)
    inside = [
        tag(
            "rect",
            x=f"{width * place + 0.5:.1f}",
            y=f"{_BAR_HEIGHT * (1 - share / top):.1f}",
            width=f"{max(width - 1, 0.5):.1f}",
            height=f"{_BAR_HEIGHT * share / top:.1f}",
            class_="bar best",
        )
        for place, share in enumerate(shares)
    ]
    box = f"0 0 {_BARS} {_BAR_HEIGHT}"
    return tag("svg", tag("title", title), inside, role="img", viewBox=box, width=_BARS, height=_BAR_HEIGHT)


def _title_and_description(name: str, title: str, description: str) -> tuple[list[Markup], dict[str, str]]:
    """Return title and description of a picture for people who do not see it, and what refers to them."""
    head = [tag("title", title, id=f"{name}-title"), tag("desc", description, id=f"{name}-desc")]
    return head, {"aria_labelledby": f"{name}-title {name}-desc"}


def legend(entries: Sequence[tuple[str, str]], *, shape: str) -> Markup:
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


def tick_text(value: float, log: bool) -> str:
    """Return the text of a number at an axis.

    >>> tick_text(1e-5, True), tick_text(0.25, False), tick_text(20.0, True), tick_text(2e6, False)
    ('10⁻⁵', '0.25', '20', '2·10⁶')
    """
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        power = math.floor(math.log10(abs(value)) + 1e-9)
        lead = round(value / 10.0**power, 6)
        shown = "10" + str(power).translate(_SUPERSCRIPT)
        return shown if log and lead == 1 else f"{lead:g}·{shown}"
    return f"{value:.6g}"


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    step = _step(low, high, most)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _step(low: float, high: float, most: int) -> float:
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    every = max(1, math.ceil((last - first) / most))
    return [10.0**k for k in range(first, last + 1) if (last - k) % every == 0]


Greys = Sequence[Sequence[int]]
_GAP = (0, 0)  # a transparent gap between two pictures
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY_AND_ALPHA = 4


def strip(pictures: Sequence[Greys], alt: str) -> Markup:
    """Return pictures of one size side by side, as one image with a text for people who do not see it."""
    require(alt.strip() != "", "alt", "say what the pictures show", alt)
    rows = side_by_side(pictures)
    address = "data:image/png;base64," + base64.b64encode(png(rows)).decode("ascii")
    return tag("img", src=address, alt=alt, width=len(rows[0]), height=len(rows), class_="greys")


def side_by_side(pictures: Sequence[Greys]) -> list[list[tuple[int, int]]]:
    """Return rows of (grey, opacity), with one transparent column between two pictures."""
    require(len(pictures) >= 1, "pictures", "be at least one", len(pictures))
    height, width = len(pictures[0]), len(pictures[0][0]) if pictures[0] else 0
    same = all(len(p) == height and all(len(row) == width for row in p) for p in pictures)
    require(same and height * width > 0, "pictures", "be of one size", [len(p) for p in pictures])
    levels = all(isinstance(v, int) and 0 <= v <= 255 for p in pictures for row in p for v in row)
    require(levels, "pictures", "hold whole numbers from 0 to 255", "something else")
    rows: list[list[tuple[int, int]]] = []
    for y in range(height):
        line: list[tuple[int, int]] = []
        for picture in pictures:
            line += [*([_GAP] if line else []), *((value, 255) for value in picture[y])]
        rows.append(line)
    return rows


def png(rows: Sequence[Sequence[tuple[int, int]]]) -> bytes:
    """Return the PNG file: 8-bit grey with opacity, no filter; the same rows give the same bytes."""
    lines = b"".join(b"\0" + bytes(value for point in row for value in point) for row in rows)
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, _GREY_AND_ALPHA, 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
