"""A figure before it is drawn: curves in panels, sampled from bounds, as a tidy table; and the style of its lines.

Greys with one accent, distinguished in print by dashes and widths; labels that do not collide.
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedveil.accounting.last_iterate import evaluators
from fedveil.core.errors import require
from fedveil.privacy.guarantee import Status
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.numerics import REPORTED_DELTA, smallest_epsilon

Role = Literal["baseline", "paper", "rival", "step", "best"]
LogDelta = Callable[[float], float]

DELTA = 1e-5  # delta at which the figures quote epsilon
_POINTS = 12  # epsilons that a bound adds to the grid shared by all bounds of its panel
_CLIFF = math.log(100.0)  # largest fall of log delta between neighbouring points that is drawn as a line
_EXTRA = 60  # most points that a curve may gain to avoid larger falls
COLUMNS = ("figure", "panel", "curve", "status", "x", "y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: its name, its role, whether it is proved; ``value`` is quoted beside its name."""

    name: str
    role: Role
    status: Status
    x: tuple[float, ...]
    y: tuple[float, ...]
    value: float | None = None

    def __post_init__(self) -> None:
        require(len(self.x) == len(self.y) >= 1, "Curve.y", f"pair with x, {len(self.x)} numbers", len(self.y))


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves that share axes."""

    title: str
    curves: tuple[Curve, ...]

    def __getitem__(self, name: str) -> Curve:
        """Return the curve of this name."""
        match = next((curve for curve in self.curves if curve.name == name), None)
        require(match is not None, "curve", f"be one of {', '.join(c.name for c in self.curves)}", name)
        assert match is not None  # noqa: S101 - require has raised
        return match

    def epsilon(self, name: str) -> float:
        """Return the value quoted beside a curve."""
        value = self[name].value
        return math.inf if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A label with its unit, a scale, and limits if the data should not choose them (descending: reversed).

    ``mark``: where the values quoted beside the curves are read.
    """

    label: str
    log: bool = False
    limits: tuple[float, float] | None = None
    mark: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure before it is drawn. ``labels``: beside the curves' ends, or in a key below each panel."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    x: Axis
    y: Axis
    labels: Literal["ends", "key"] = "ends"


@dataclass(frozen=True, slots=True)
class NamedBound:
    """A bound on the logarithm of delta, and how a figure shows it."""

    name: str
    role: Role
    status: Status
    log_delta: LogDelta


def bounds_of(run: LastIterate, shown: Mapping[str, tuple[str, Role]]) -> list[NamedBound]:
    """Return the run's bounds that apply and are to be shown, as ``{bound: (name in the figure, role)}``."""
    bounds = []
    for evaluator in evaluators(run):
        if evaluator.name in shown and evaluator.log_delta is not None:
            name, role = shown[evaluator.name]
            bounds.append(NamedBound(name, role, evaluator.status, evaluator.log_delta))
    return sorted(bounds, key=lambda bound: [name for name, _ in shown.values()].index(bound.name))


def epsilon_at(bound: NamedBound, delta: float = DELTA) -> float:
    """Return the least epsilon of a bound at ``delta``, rounded up."""
    return smallest_epsilon(bound.log_delta, delta, tolerance=1e-5)


def profile_panel(title: str, bounds: Sequence[NamedBound]) -> Panel:
    """Return delta against epsilon, down to the least delta that is reported; proved bounds share their epsilons."""
    require(len(bounds) >= 1, "bounds", "name at least one that applies", list(bounds))
    ends = [smallest_epsilon(bound.log_delta, REPORTED_DELTA, tolerance=1e-4) for bound in bounds]
    reach = [end if 0 < end < math.inf else 1.0 for end in ends]
    proved = [end for bound, end in zip(bounds, reach, strict=True) if bound.status == "certified"]
    shared = _grid(proved)
    curves = [
        _profile(bound, shared if bound.status == "certified" else _grid([end]))
        for bound, end in zip(bounds, reach, strict=True)
    ]
    return Panel(title=title, curves=tuple(curves))


def _grid(ends: Sequence[float]) -> list[float]:
    shape = np.linspace(0.0, 1.0, _POINTS) ** 1.5  # bounds bend most near zero
    return np.unique(np.concatenate([end * shape for end in ends])).tolist() if ends else []


def _profile(bound: NamedBound, grid: Sequence[float]) -> Curve:
    """Return the curve of a bound, up to where it meets the floor.

    The true profile falls, so the least value so far is valid.
    """
    floor = math.log(REPORTED_DELTA)
    x: list[float] = []
    logs: list[float] = []
    for epsilon in grid:
        x.append(epsilon)
        logs.append(min([0.0, bound.log_delta(epsilon), *logs[-1:]]))
        if logs[-1] <= floor + 1e-9:
            logs[-1] = floor
            break
    _fill_cliffs(bound, x, logs)
    y = tuple(math.exp(value) if value > floor else REPORTED_DELTA for value in logs)
    value = epsilon_at(bound)
    return Curve(name=bound.name, role=bound.role, status=bound.status, x=tuple(x), y=y, value=value)


def _fill_cliffs(bound: NamedBound, x: list[float], logs: list[float]) -> None:
    """Add points between neighbours that are decades apart, where a line would mislead, as with Laplace noise."""
    for _ in range(_EXTRA):
        drops = [a - b if right - left > 1e-9 * x[-1] else 0.0 for (a, b), (left, right) in _steps(logs, x)]
        worst = max(range(len(drops)), key=drops.__getitem__, default=0)
        if not drops or drops[worst] <= _CLIFF:
            return
        middle = (x[worst] + x[worst + 1]) / 2
        x.insert(worst + 1, middle)
        logs.insert(worst + 1, min(logs[worst], max(bound.log_delta(middle), logs[worst + 1])))


def _steps(logs: Sequence[float], x: Sequence[float]) -> Iterable[tuple[tuple[float, float], tuple[float, float]]]:
    return zip(pairwise(logs), pairwise(x), strict=True)


def write_table(chart: Chart, path: Path) -> Path:
    """Write every point of every curve, one per row, in full precision."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for panel in chart.panels:
            for curve in panel.curves:
                head = (chart.name, panel.title, curve.name, curve.status)
                writer.writerows((*head, x, y) for x, y in zip(curve.x, curve.y, strict=True))
    return path


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
    return _push_apart(centres, sizes, order, low)


def _end(block: tuple[list[int], float], sizes: Sequence[float]) -> float:
    return block[1] + sum(sizes[i] for i in block[0])


def _mean_start(members: Sequence[int], wanted: Sequence[float], sizes: Sequence[float]) -> float:
    offset, total = 0.0, 0.0
    for i in members:
        total += wanted[i] - (offset + sizes[i] / 2)
        offset += sizes[i]
    return total / len(members)


def _push_apart(centres: list[float], sizes: Sequence[float], order: Sequence[int], low: float) -> list[float]:
    """Separate blocks that touch again inside the limits: push down from the top, then up from the floor."""
    for above, i in zip(order[::-1], order[-2::-1], strict=False):
        centres[i] = min(centres[i], centres[above] - (sizes[above] + sizes[i]) / 2)
    bottom = low
    for i in order:
        centres[i] = max(centres[i], bottom + sizes[i] / 2)
        bottom = centres[i] + sizes[i] / 2
    return [round(centre, 9) for centre in centres]
