"""A generator as one HTML file that needs nothing else: what it cost, what it measured, and how good its rows are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedveil.certificate.certify import Certificate
from fedveil.certificate.synthesis import SEES, SynthesisCertificate
from fedveil.guarantee import Adversary, finite_or_none
from fedveil.prepare.synthesis.cells import DateCells, NumberCells
from fedveil.prepare.synthesis.generator import Generator
from fedveil.prepare.synthesis.merging import added
from fedveil.report.blocks import code, column_page, figure, legend, note, paragraph, section, table
from fedveil.report.charts import Axis, Row, rows_chart
from fedveil.report.markup import Markup, tag

_CELL, _LETTERS, _MOST_COLUMNS = 24, 24, 24  # pixels of a square; letters of a name; columns in a picture
_BARS, _HEIGHT = 220, 46  # pixels of a small picture of one column


def synthesis_page(
    generator: Generator, certificate: SynthesisCertificate, quality: Mapping[str, Any] | None = None
) -> str:
    """Return the whole page as HTML; ``quality``: how rows compare with public records, where there are any."""
    target = certificate.plan.target
    facts = (
        f"Made from {generator.records:,} {target.unit}s by noised counts: epsilon {target.epsilon:g}, delta "
        f"{target.delta:g} for one {target.unit} ({target.neighbours}). Rows drawn from it cost nothing more."
    )
    heading = [tag("p", "Synthetic data", class_="kicker"), tag("h1", generator.name), tag("p", facts)]
    parts: list[Markup | None] = [_cost(certificate), _columns(generator), _pairs(generator)]
    if quality is None:
        words = "No public records were held out, so nothing here compares rows with records: that would be a release."
        parts.append(section("quality", "How good the rows are", note(words)))
    else:
        parts += [use(quality), distances(quality), dependence(generator.names, quality), _nearest(quality)]
    return column_page(f"Synthetic data: {generator.name}", heading, parts)


def _cost(certificate: SynthesisCertificate) -> Markup:
    return cost_section(certificate, SEES)


def cost_section(certificate: SynthesisCertificate | Certificate, sees: Mapping[Adversary, str]) -> Markup:
    """Return what each observer learns at most, from this and from all runs on the data, and whom the clients trust."""
    rows, total, plan = [], certificate.data_set, certificate.plan
    for one in certificate.guarantees:
        epsilon = finite_or_none(one.answer.epsilon)
        told = "nothing is promised" if epsilon is None else f"{epsilon:.6g}"
        rows.append([one.adversary, told, f"{one.answer.delta:.3g}", sees[one.adversary]])
    words = paragraph(
        "It was charged once in the ledger of these data, before anything was measured. ",
        code("fedveil certify"),
        " recomputes the certificate beside this page; ",
        code("fedveil sample"),
        " draws more rows.",
    )
    heads = ["observer", "epsilon", "delta", "sees"]
    costs = table("What each observer learns at most", heads, rows, numbers=(1, 2))
    whole = None if total is None else paragraph(total.sentence(plan.target.adversary))
    return section("cost", "What it cost", words, costs, whole, paragraph(plan.trust.told))


def _columns(generator: Generator) -> Markup:
    error = 1.96 * generator.errors["ones"]
    rows = []
    for place, cells in enumerate(generator.columns):
        held = added(generator.shares[place], generator.groups[place])
        if isinstance(cells, NumberCells):
            what = " to ".join(f"{end:g}" for end in cells.range.ends)
        elif isinstance(cells, DateCells):
            what = f"{cells.first} to {cells.last}"
        else:
            listed = [f"{cells.words[c]} {s:.0%}" for c, s in _strongest(generator.shares[place][: len(cells.words)])]
            what = ", ".join(listed)
        missing = float(generator.shares[place][-1])
        rows.append([cells.name, what, _bars(cells.name, held), "–" if missing == 0 else f"{missing:.1%}"])
    caption = f"Shares as measured, known to ±{error:.2%} of the records; cells that noise would drown are joined."
    heads = ["column", "values", "shares of its cells", "missing"]
    return section("columns", "Columns", table(caption, heads, rows, numbers=(3,)))


def _strongest(shares: "np.ndarray[Any, np.dtype[np.float64]]", most: int = 5) -> list[tuple[int, float]]:
    order = np.argsort(-shares, kind="stable")[:most]
    return [(int(place), float(shares[place])) for place in order if shares[place] > 0]


def _bars(name: str, shares: "np.ndarray[Any, np.dtype[np.float64]]") -> Markup:
    """A small picture of a column's shares, one bar a cell."""
    top, width = max(float(shares.max()), 1e-9), _BARS / shares.size
    inside = [
        tag(
            "rect",
            x=f"{width * place + 0.5:.1f}",
            y=f"{_HEIGHT * (1 - share / top):.1f}",
            width=f"{max(width - 1, 0.5):.1f}",
            height=f"{_HEIGHT * share / top:.1f}",
            class_="bar best",
        )
        for place, share in enumerate(shares.tolist())
    ]
    title = tag("title", f"Shares of the cells of {name}")
    return tag("svg", title, inside, role="img", viewBox=f"0 0 {_BARS} {_HEIGHT}", width=_BARS, height=_HEIGHT)


def _pairs(generator: Generator) -> Markup:
    names = generator.names
    rows = [[f"{place}", names[a], names[b]] for place, (a, b) in enumerate(generator.pairs, start=1)]
    told = f"The model holds {generator.model.tree.cells:,} numbers."
    if generator.limited:
        told += " More pairs were worth measuring, and were left out so that it fits in memory (generator.model_cells)."
    caption = "Pairs measured precisely, in the order of their choice by coarse counts of all pairs"
    shown = table(caption, ["", "column", "with"], rows) if rows else note("No pair depends enough to be measured.")
    return section("pairs", "What depends on what", paragraph(told), shown)


def use(quality: Mapping[str, Any]) -> Markup | None:
    """Return how a model does that was trained on synthetic rows, beside one of public records."""
    model = quality["model"]
    if model is None:
        return None
    labels = {
        "real": "fitted to public records",
        "synthetic": "fitted to synthetic rows",
        "most_frequent": "always the most frequent class",
    }
    kinds = {"real": "other", "synthetic": "best", "most_frequent": "weak"}
    rows = [Row(labels[key], model[key], f"{model[key]:.1%}", kind=kinds[key]) for key in labels]  # type: ignore[arg-type]
    spoken = "; ".join(f"{labels[key]} {model[key]:.1%}" for key in labels)
    drawing = rows_chart("use", "Accuracy", spoken, rows, scale=Axis(0.0, 1.0))
    caption = "How often a linear model is right on half of the public held-out records. The other half is what the "
    caption += "model fitted to public records has seen."
    return section("use", "A model trained on the rows", figure(drawing, caption))


def distances(quality: Mapping[str, Any]) -> Markup:
    """Return how far columns and pairs of them are from those of public records."""
    ones: Mapping[str, float] = quality["ones"]
    worst = sorted(ones.items(), key=lambda one: -one[1])
    rows = [Row(name, value, f"{value:.1%}") for name, value in worst[:20]]
    spoken = "; ".join(f"{name} {value:.1%}" for name, value in worst[:5])
    high = max(0.1, *(value for _, value in worst))
    drawing = rows_chart("ones", "Distance of each column", spoken, rows, scale=Axis(0.0, high))
    pairs = sorted(quality["pairs"], key=lambda one: -one[2])[:20]
    listed = table(
        "The pairs that are farthest off",
        ["columns", "distance"],
        [[f"{a} – {b}", f"{value:.1%}"] for a, b, value in pairs],
        numbers=(1,),
    )
    told = (
        f"On average {quality['mean_one']:.1%} for single columns and {quality['mean_pair']:.1%} for pairs: the share "
        f"of rows that would have to move. {quality['held_out']:,} public records are themselves a sample, and differ "
        "by chance."
    )
    caption = "Total-variation distance between synthetic rows and public held-out records, column by column."
    return section("distances", "Marginals", paragraph(told), figure(drawing, caption, listed))


def dependence(names: Sequence[str], quality: Mapping[str, Any]) -> Markup:
    """Two triangles in one square: below the diagonal the public records, above it the synthetic rows."""
    real, made = quality["dependence"]["real"], quality["dependence"]["synthetic"]
    count = min(len(names), _MOST_COLUMNS)
    left = 40 + 7 * min(max(map(len, names)), _LETTERS)
    inside: list[Markup] = []
    for i in range(count):
        y = _CELL * (i + 1)
        label = f"{names[i][:_LETTERS]}{'…' if len(names[i]) > _LETTERS else ''}  {i + 1}"
        inside.append(tag("text", label, x=left - 8, y=y + 16, text_anchor="end", class_="label"))
        middle = left + _CELL * i + _CELL / 2
        inside.append(tag("text", str(i + 1), x=middle, y=16, text_anchor="middle", class_="tick"))
        for j in range(count):
            value = 0.0 if i == j else (real[i][j] if j < i else made[i][j])
            size = (_CELL - 4) * value**0.5
            if size >= 2:
                at = {"x": f"{left + _CELL * j + (_CELL - size) / 2:.1f}", "y": f"{y + (_CELL - size) / 2:.1f}"}
                kind = "bar other" if j < i else "bar best"
                inside.append(tag("rect", **at, width=f"{size:.1f}", height=f"{size:.1f}", class_=kind))
    width, height = left + _CELL * count + 8, _CELL * (count + 1) + 8
    gaps = [abs(real[i][j] - made[i][j]) for i in range(len(names)) for j in range(i)]
    spoken = f"The mean difference is {np.mean(gaps):.3f}."
    head = [tag("title", "Dependence of columns", id="links-title"), tag("desc", spoken, id="links-desc")]
    drawing = tag(
        "svg", head, inside, id="links", class_="chart", role="img", viewBox=f"0 0 {width} {height}",
        style=f"width: 100%; max-width: {width}px; height: auto", aria_labelledby="links-title links-desc",
    )  # fmt: skip
    caption = "Cramer's V of every pair of columns, as the area of a square: a symmetric picture is a perfect one. "
    keys = legend([("other", "public records (below)"), ("best", "synthetic rows (above)")], shape="bar")
    return section("dependence", "Correlations", figure(drawing, caption + spoken, legend=keys))


def _nearest(quality: Mapping[str, Any]) -> Markup:
    found = quality["nearest"]
    told = (
        f"The nearest of the synthetic rows differs from a public record in {found['mean']:.2f} columns on average; "
        f"{found['equal']:.1%} of these records are drawn exactly, cell by cell. Records that were never measured are "
        "met like that by chance alone."
    )
    rows = [paragraph(told)]
    if "membership_area" in found:
        rows.append(
            paragraph(
                "Membership by distance: a record that was measured is nearer to a synthetic row than one that was not "
                f"with chance {found['membership_area']:.3f}; a half is guessing. An attack proves nothing where it "
                "fails: the certificate above bounds all of them."
            )
        )
    return section("nearest", "Nearest rows", *rows)
