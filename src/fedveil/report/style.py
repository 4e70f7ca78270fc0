"""The style of figures: greys with one accent, distinguished in print by dashes and widths.

Labels that do not collide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.report.curves import Curve, Role

ACCENT = "#9c1c2e"
INK = "#1f1f1f"
FAINT = "#8a8a8a"
GRID = "#e6e6e6"

TITLE_SIZE = 12.5
TEXT_SIZE = 9.0
SMALL_SIZE = 8.0
DOTS = 130  # dots per inch of a PNG

SETTINGS: Any = {  # keys that matplotlib lists one by one
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT_SIZE,
    "svg.fonttype": "none",  # text stays text: small and searchable
    "svg.hashsalt": "fedveil",  # so that the same figure gives the same file
    "axes.unicode_minus": False,
    "path.simplify": False,
}


@dataclass(frozen=True, slots=True)
class Look:
    """The style of one kind of line."""

    colour: str
    width: float
    dashes: tuple[float, ...]  # on and off, in line widths; empty for a solid line
    order: float  # drawing order

    def line(self) -> dict[str, Any]:
        """Return the style as arguments for matplotlib."""
        style: Any = (0, self.dashes) if self.dashes else "-"
        return {
            "color": self.colour,
            "linewidth": self.width,
            "linestyle": style,
            "zorder": self.order,
            "solid_capstyle": "butt",
        }


LOOKS: dict[Role, Look] = {
    "baseline": Look("#c2c2c2", 4.0, (), 2.0),
    "paper": Look("#4a4a4a", 1.8, (4.0, 1.8), 3.0),
    "rival": Look("#757575", 1.6, (1.0, 1.4), 2.5),
    "step": Look(INK, 0.9, (), 4.5),
    "best": Look(ACCENT, 2.6, (), 4.0),
}


def text_colour(curve: Curve) -> str:
    """Return the colour of a label: that of its line, dark enough to read."""
    return {"baseline": "#6b6b6b", "rival": "#5e5e5e"}.get(curve.role, LOOKS[curve.role].colour)


def number(value: float) -> str:
    """Return three significant digits, as a reader expects them.

    >>> number(4.377178), number(0.0), number(0.00132), number(0.98), number(123.456), number(math.inf)
    ('4.38', '0', '0.0013', '0.980', '123', 'none')
    """
    if not math.isfinite(value):
        return "none"
    if value < 5e-5:
        return "0"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.2g}" if value < 0.01 else f"{value:#.3g}"


def label_of(curve: Curve) -> str:
    """Return the name, its value, and a warning if nothing is proved; names that share a line are put below it."""
    first, *others = curve.name.split(" = ")
    value = "" if curve.value is None else f"  {number(curve.value)}"
    warning = [] if curve.status == "certified" else ["(not certified)"]
    return "\n".join([first + value, *(f"= {other}" for other in others), *warning])


def spread(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Return centres as near to ``wanted`` as possible, in order, without overlaps, inside [low, high] if they fit.

    Overlapping neighbours are merged into blocks that share their mean displacement.

    >>> spread([0.5, 0.5, 0.9], [0.2, 0.2, 0.1], 0.0, 1.0)
    [0.4, 0.6, 0.9]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[list[int], float]] = []  # members in order, and the lower end of the block
    for i in order:
        members, start = [i], wanted[i] - sizes[i] / 2
        while blocks and _end(blocks[-1], sizes) > start:
            earlier, _ = blocks.pop()
            members = earlier + members
            start = _mean_start(members, wanted, sizes)
        blocks.append((members, start))
    centres = [0.0] * len(wanted)
    for members, start in blocks:
        length = sum(sizes[i] for i in members)
        edge = max(low, min(start, high - length))
        for i in members:
            centres[i] = round(edge + sizes[i] / 2, 9)
            edge += sizes[i]
    return _pushed(centres, sizes, order, low)


def _end(block: tuple[list[int], float], sizes: Sequence[float]) -> float:
    return block[1] + sum(sizes[i] for i in block[0])


def _mean_start(members: Sequence[int], wanted: Sequence[float], sizes: Sequence[float]) -> float:
    offset, total = 0.0, 0.0
    for i in members:
        total += wanted[i] - (offset + sizes[i] / 2)
        offset += sizes[i]
    return total / len(members)


def _pushed(centres: list[float], sizes: Sequence[float], order: Sequence[int], low: float) -> list[float]:
    """Separate blocks that touch again inside the limits: push down from the top, then up from the floor."""
    for above, i in zip(order[::-1], order[-2::-1], strict=False):
        centres[i] = min(centres[i], centres[above] - (sizes[above] + sizes[i]) / 2)
    bottom = low
    for i in order:
        centres[i] = max(centres[i], bottom + sizes[i] / 2)
        bottom = centres[i] + sizes[i] / 2
    return [round(centre, 9) for centre in centres]
