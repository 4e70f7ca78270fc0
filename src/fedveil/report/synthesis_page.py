"""A generator as one HTML file that needs nothing else: what it cost, what it measured or drew, how good its rows are.

There is a page for a generator made of noisy tables, and one for a torch module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.certificate.certify import Certificate, MeasuredCertificate
from fedveil.report.charts import Axis, Greys, Row, legend, rows_chart, small_bars, squares_chart, strip
from fedveil.report.costs import cost_section
from fedveil.report.markup import Markup, code, column_page, figure, note, paragraph, section, table, tag
from fedveil.stages.synthesise.generator import Generator
from fedveil.stages.synthesise.table import DateCells, NumberCells, added

_MOST_COLUMNS = 24  # in a picture


def synthesis_page(
    generator: Generator, certificate: MeasuredCertificate, quality: Mapping[str, Any] | None = None
) -> str:
    """Return the whole page as HTML; ``quality``: how rows compare with public records, where there are any."""
    target = certificate.plan.target
    facts = (
        f"Made from {generator.records:,} {target.counted}s by noised counts: epsilon {target.epsilon:g}, delta "
        f"{target.delta:g} for one {target.unit} ({target.neighbours}). Rows drawn from it cost nothing more."
    )
    heading = [tag("p", "Synthetic data", class_="kicker"), tag("h1", generator.name), tag("p", facts)]
    parts: list[Markup | None] = [_cost(certificate), _columns(generator), _pairs(generator)]
    if quality is None:
        words = "No public records were held out, so nothing here compares rows with records: that would be a release."
        parts.append(section("quality", "How good the rows are", note(words)))
    else:
        near = quality["nearest"]
        away = (
            f"The nearest of the synthetic rows differs from a public record in {near['mean']:.2f} columns on average; "
            f"{near['equal']:.1%} of these records are drawn exactly, cell by cell. Records that were never measured "
            "are met like that by chance alone."
        )
        parts += [
            use(quality),
            distances(quality),
            dependence(generator.names, quality),
            nearest(quality, away, "measured"),
        ]
    return column_page(f"Synthetic data: {generator.name}", heading, parts)


def _cost(certificate: MeasuredCertificate | Certificate) -> Markup:
    """Return what each observer learns at most, and whom the clients trust."""
    words = paragraph(
        "It was charged once in the ledger of these data, before anything was measured. ",
        code("fedveil certify"),
        " recomputes the certificate beside this page; ",
        code("fedveil sample"),
        " draws more rows.",
    )
    return cost_section(certificate, words, paragraph(certificate.plan.trust.sentences))


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
        bars = small_bars(f"Shares of the cells of {cells.name}", held.tolist())
        rows.append([cells.name, what, bars, "–" if missing == 0 else f"{missing:.1%}"])
    caption = f"Shares as measured, known to ±{error:.2%} of the records; cells that noise would drown are joined."
    heads = ["column", "values", "shares of its cells", "missing"]
    return section("columns", "Columns", table(caption, heads, rows, numbers=(3,)))


def _strongest(shares: "np.ndarray[Any, np.dtype[np.float64]]", most: int = 5) -> list[tuple[int, float]]:
    order = np.argsort(-shares, kind="stable")[:most]
    return [(int(place), float(shares[place])) for place in order if shares[place] > 0]


def _pairs(generator: Generator) -> Markup:
    names = generator.names
    rows = [[f"{place}", names[a], names[b]] for place, (a, b) in enumerate(generator.pairs, start=1)]
    sentence = f"The model holds {generator.model.tree.cells:,} numbers."
    if generator.limited:
        sentence += (
            " More pairs were worth measuring, and were left out so that it fits in memory (generator.model_cells)."
        )
    caption = "Pairs measured precisely, in the order of their choice by coarse counts of all pairs"
    shown = table(caption, ["", "column", "with"], rows) if rows else note("No pair depends enough to be measured.")
    return section("pairs", "What depends on what", paragraph(sentence), shown)


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
    sentence = (
        f"On average {quality['mean_one']:.1%} for single columns and {quality['mean_pair']:.1%} for pairs: the share "
        f"of rows that would have to move. {quality['held_out']:,} public records are themselves a sample, and differ "
        "by chance."
    )
    caption = "Total-variation distance between synthetic rows and public held-out records, column by column."
    return section("distances", "Marginals", paragraph(sentence), figure(drawing, caption, listed))


def dependence(names: Sequence[str], quality: Mapping[str, Any]) -> Markup:
    """Two triangles in one square: below the diagonal the public records, above it the synthetic rows."""
    real, made = quality["dependence"]["real"], quality["dependence"]["synthetic"]
    gaps = [abs(real[i][j] - made[i][j]) for i in range(len(names)) for j in range(i)]
    spoken = f"The mean difference is {np.mean(gaps):.3f}."

    def square(i: int, j: int) -> tuple[float, str]:
        below = j < i
        return 0.0 if i == j else (real if below else made)[i][j], "bar other" if below else "bar best"

    drawing = squares_chart(
        "links",
        "Dependence of columns",
        spoken,
        names[:_MOST_COLUMNS],
        square,
        style="width: 100%; max-width: {width}px; height: auto",
    )
    caption = "Cramer's V of every pair of columns, as the area of a square: a symmetric picture is a perfect one. "
    keys = legend([("other", "public records (below)"), ("best", "synthetic rows (above)")], shape="bar")
    return section("dependence", "Correlations", figure(drawing, caption + spoken, legend=keys))


def nearest(quality: Mapping[str, Any], sentence: str, used: str) -> Markup:
    """Return how near rows come to public records; ``used``: what was done with the records of the generator."""
    rows = [paragraph(sentence)]
    if "membership_area" in quality["nearest"]:
        rows.append(
            paragraph(
                f"Membership by distance: a record that was {used} is nearer to a synthetic row than one that was not "
                f"with chance {quality['nearest']['membership_area']:.3f}; a half is guessing. An attack proves "
                "nothing where it fails: the certificate above bounds all of them."
            )
        )
    return section("nearest", "Nearest rows", *rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Album:
    """Pictures of one class: drawn ones, and public ones where there are any."""

    name: str
    drawn: Sequence[Greys]
    public: Sequence[Greys] = ()


def deep_page(
    name: str, certificate: Certificate, albums: Sequence[Album], quality: Mapping[str, Any] | None = None
) -> str:
    """Return the whole page as HTML; ``quality``: how rows compare with public records, where there are any."""
    plan = certificate.plan
    facts = (
        f"A torch generator of {plan.model.parameters or 0:,} parameters, trained on {plan.data.records:,} records by "
        f"{plan.method.kind}: epsilon {plan.target.epsilon:g}, delta {plan.target.delta:g} for one {plan.target.unit} "
        f"({plan.target.neighbours}). Rows drawn from it cost nothing more."
    )
    heading = [tag("p", "Synthetic data", class_="kicker"), tag("h1", name), tag("p", facts)]
    parts: list[Markup | None] = [_cost(certificate), _pictures(albums)]
    if quality is None:
        words = "No public records were held out, so nothing here compares rows with records: that would be a release."
        parts.append(section("quality", "How good the rows are", note(words)))
    else:
        mean = quality["nearest"]["mean"]
        away = f"The synthetic row nearest to a public record is {mean:.3g} away on average, in the scaled columns."
        parts += [
            use(quality),
            distances(quality),
            dependence(quality["names"], quality),
            nearest(quality, away, "trained on"),
        ]
    return column_page(f"Synthetic data: {name}", heading, parts)


def _pictures(albums: Sequence[Album]) -> Markup | None:
    if not albums:
        return None
    public = any(album.public for album in albums)
    heads = ["class", "drawn", *(["public held-out records"] if public else [])]
    rows = []
    for album in albums:
        row: list[object] = [album.name, strip(album.drawn, f"{len(album.drawn)} drawn pictures of {album.name}")]
        if public:
            there = strip(album.public, f"Public pictures of {album.name}") if album.public else "–"
            row.append(there)
        rows.append(row)
    caption = "Pictures drawn at random, not chosen; the same ones every time the page is written."
    return section("pictures", "Pictures", figure(table("Pictures of each class", heads, rows), caption))
