"""Write figures: each as SVG and PNG, its numbers as CSV. No global plotting state."""

import difflib
import math
import re
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from fedveil.core.errors import require
from fedveil.core.files import PUBLIC, public_folder
from fedveil.report.catalogue import FIGURES
from fedveil.report.curves import (
    DOTS,
    FAINT,
    GRID,
    INK,
    LOOKS,
    SETTINGS,
    SMALL_SIZE,
    TEXT_SIZE,
    TITLE_SIZE,
    Axis,
    Chart,
    Curve,
    Panel,
    label_of,
    number,
    spread,
    text_colour,
    write_table,
)

# in inches
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.75, 0.25, 0.80, 0.50
_HEIGHT, _ROW, _LINE = 2.75, 0.19, 0.165


def write_figures(
    out: Path, only: Sequence[str] | None = None, progress: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """Write the figures (all, or those named in ``only``) into the folder ``out``; return the paths in order."""
    names = _chosen(only)
    require(out.is_dir() or not out.exists(), "out", "be a folder, or a path where one can be made", str(out))
    public_folder(out)
    written: list[Path] = []
    for position, name in enumerate(names, start=1):
        start = time.perf_counter()
        chart = FIGURES[name]()
        written += [*save_chart(chart, [out / f"{name}.svg", out / f"{name}.png"])]
        written.append(write_table(chart, out / f"{name}.csv"))
        for path in written[-3:]:
            path.chmod(PUBLIC)
        progress(f"{position}/{len(names)} {name} ({time.perf_counter() - start:.1f} s)")
    return written


def _chosen(only: Sequence[str] | None) -> list[str]:
    require(not isinstance(only, str), "only", "be a list of names", only)
    for name in only or ():
        near = difflib.get_close_matches(name, FIGURES, n=1, cutoff=0.3)
        hint = f"Did you mean {near[0]}?" if near else ""
        require(name in FIGURES, "only", f"name figures among {', '.join(FIGURES)}", name, hint)
    return [name for name in FIGURES if not only or name in only]


def save_chart(chart: Chart, paths: Sequence[Path]) -> Sequence[Path]:
    """Draw a chart into these files, each as its suffix says."""
    with mpl.rc_context(rc=SETTINGS):
        figure = draw(chart)
        for path in paths:
            if path.suffix == ".svg":
                figure.savefig(path, format="svg", metadata={"Date": None, "Title": chart.title})
            else:
                figure.savefig(path, format="png", dpi=DOTS, metadata={"Title": chart.title})
    return paths


def draw(chart: Chart) -> Figure:
    """Draw a chart: the finding on top, panels side by side, parameters below."""
    count, keyed = len(chart.panels), chart.labels == "key"
    width = {1: 5.2, 2: 3.6}.get(count, 2.75)
    gap = 0.55 if keyed else 0.45
    margin = 0.0 if keyed else max(_label_width(panel) for panel in chart.panels)
    total = _LEFT + count * (width + margin) + (count - 1) * gap + _RIGHT
    total = max(total, 0.4 + 0.125 * len(chart.title))
    key = _ROW * (1.3 + max(len(panel.curves) for panel in chart.panels)) if keyed else 0.0
    caption = _wrap(chart.caption, total - 0.4)
    below = _BOTTOM + key + _LINE * len(caption) + 0.22
    top = _TOP - (0.25 if not chart.panels[0].title else 0.0)
    height = top + _HEIGHT + below
    figure = Figure(figsize=(total, height), facecolor="white")
    FigureCanvasAgg(figure)
    for index, panel in enumerate(chart.panels):
        left = _LEFT + index * (width + margin + gap)
        axes = figure.add_axes((left / total, below / height, width / total, _HEIGHT / height))
        _draw_panel(axes, panel, chart, first=index == 0)
        if keyed:
            _key(axes, panel, width)
        else:
            _end_labels(axes, panel)
    size = TITLE_SIZE
    figure.text(0.2 / total, 1 - 0.18 / height, chart.title, size=size, weight="bold", color=INK, va="top")
    place = (0.2 / total, 0.1 / height)
    figure.text(*place, "\n".join(caption), size=SMALL_SIZE, color="#555555", va="bottom", linespacing=1.35)
    return figure


def _wrap(text: str, width: float) -> list[str]:
    """Return lines no longer than ``width`` inches; a letter and its value stay together."""
    joined = re.sub(r"(?<!\S)(\w) (?=\d)", "\\1\u00a0", text)
    return textwrap.wrap(joined, int(width / 0.063), break_on_hyphens=False)


def _label_width(panel: Panel) -> float:
    """Return the width to the right of a panel that its longest label needs."""
    longest = max(len(line) for curve in panel.curves for line in label_of(curve).split("\n"))
    return 0.25 + 0.0715 * longest


def _draw_panel(axes: Axes, panel: Panel, chart: Chart, *, first: bool) -> None:
    for curve in panel.curves:
        axes.plot(curve.x, curve.y, label=curve.name, clip_on=False, **LOOKS[curve.role].line())
    _scale(axes, chart, panel)
    _marks(axes, panel, chart)
    axes.set_title(panel.title, loc="left", size=TEXT_SIZE + 0.5, color=INK, pad=7)
    axes.set_xlabel(chart.x.label, color=INK)
    if first:
        axes.set_ylabel(chart.y.label, color=INK)
    axes.grid(True, which="major", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, colors="#444444", labelsize=SMALL_SIZE)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def _marks(axes: Axes, panel: Panel, chart: Chart) -> None:
    """Draw a thin line at the marked value of an axis, and a dot where each curve crosses it."""
    faint: dict[str, Any] = {"color": FAINT, "linewidth": 0.7, "zorder": 1}
    if chart.y.mark is not None:
        axes.axhline(chart.y.mark, **faint)
    if chart.x.mark is not None:
        axes.axvline(chart.x.mark, **faint)
    for curve in panel.curves:
        if curve.value is None or not 0 < curve.value < math.inf:
            continue
        dot: dict[str, Any] = {"color": LOOKS[curve.role].colour, "markersize": 4, "zorder": 5, "marker": "o"}
        if chart.y.mark is not None:
            axes.plot([curve.value], [chart.y.mark], **dot)
        if chart.x.mark is not None:
            axes.plot([chart.x.mark], [curve.value], **dot)


def _scale(axes: Axes, chart: Chart, panel: Panel) -> None:
    farthest = max(max(curve.x) for curve in panel.curves)
    highest = max(max(curve.y) for curve in panel.curves)
    for axis, which, end in ((chart.x, "x", farthest), (chart.y, "y", highest)):
        if axis.log:
            _log_scale(axes, axis, which)
        else:
            (axes.xaxis if which == "x" else axes.yaxis).set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        low, high = axis.limits or (0.0, 1.04 * end if end > 0 else 1.0)
        (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)


def _log_scale(axes: Axes, axis: Axis, which: str) -> None:
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    ticks = axes.xaxis if which == "x" else axes.yaxis
    low, high = sorted(axis.limits or (1e-12, 1.0))
    if low >= 1:  # counts read better in full
        ticks.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        ticks.set_major_locator(LogLocator(base=1000 if high / low > 1e7 else 10, numticks=20))
    ticks.set_minor_locator(NullLocator())
    ticks.set_minor_formatter(NullFormatter())


def _key(axes: Axes, panel: Panel, width: float) -> None:
    """Draw the key below the panel: line, name, epsilon at the marked delta, in the order of the curves."""
    top = -(_BOTTOM - 0.02) / _HEIGHT
    step = _ROW / _HEIGHT
    small: dict[str, Any] = {"size": SMALL_SIZE, "transform": axes.transAxes, "va": "center"}
    axes.text(1.0, top, "ε at δ = 10⁻⁵", ha="right", color="#555555", **small)
    for row, curve in enumerate(panel.curves, start=1):
        y = top - row * step
        look = LOOKS[curve.role].line()
        axes.add_line(Line2D([0.0, 0.42 / width], [y, y], transform=axes.transAxes, clip_on=False, **look))
        value = "" if curve.value is None else number(curve.value)
        note = "" if curve.status == "certified" else " (not certified)"
        colour = text_colour(curve)
        axes.text(0.52 / width, y, curve.name + note, color=colour, **small)
        axes.text(1.0, y, value, ha="right", color=colour, weight="bold" if curve.role == "best" else None, **small)


def _end_labels(axes: Axes, panel: Panel) -> None:
    """Write names beside the curves' right ends, moved apart if they would overlap."""
    labels = [label_of(curve) for curve in panel.curves]
    ends = [_end(axes, curve) for curve in panel.curves]
    sizes = [(label.count("\n") + 1) * _LINE / _HEIGHT for label in labels]
    centres = spread(ends, sizes, -0.02, 1.04)
    for curve, label, end, centre in zip(panel.curves, labels, ends, centres, strict=True):
        colour = text_colour(curve)
        xs, ys = [1.005, 1.03], [end, centre]
        leader = Line2D(xs, ys, transform=axes.transAxes, clip_on=False, color=colour, linewidth=0.6)
        axes.add_line(leader)
        weight = "bold" if curve.role == "best" else None
        place: dict[str, Any] = {"transform": axes.transAxes, "va": "center", "linespacing": 1.0}
        axes.text(1.04, centre, label, color=colour, size=SMALL_SIZE + 0.5, weight=weight, **place)


def _end(axes: Axes, curve: Curve) -> float:
    """Return the height of a curve's last point, as a share of the panel."""
    x, y = axes.transData.transform((curve.x[-1], curve.y[-1]))
    height: float = axes.transAxes.inverted().transform((x, y))[1]
    return float(height)
