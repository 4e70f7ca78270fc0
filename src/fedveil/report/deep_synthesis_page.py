"""A torch generator as one HTML file that needs nothing else: what it cost, pictures, and how good its rows are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.certificate.certify import SEES, Certificate
from fedveil.report.blocks import column_page, figure, note, paragraph, section, table
from fedveil.report.markup import Markup, tag
from fedveil.report.pictures import Greys, strip
from fedveil.report.synthesis_page import cost_section, dependence, distances, use


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
    parts: list[Markup | None] = [cost_section(certificate, SEES), _pictures(albums)]
    if quality is None:
        words = "No public records were held out, so nothing here compares rows with records: that would be a release."
        parts.append(section("quality", "How good the rows are", note(words)))
    else:
        parts += [use(quality), distances(quality), dependence(quality["names"], quality), _nearest(quality)]
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


def _nearest(quality: Mapping[str, Any]) -> Markup:
    found = quality["nearest"]
    told = (
        f"The synthetic row nearest to a public record is {found['mean']:.3g} away on average, in the scaled columns."
    )
    rows = [paragraph(told)]
    if "membership_area" in found:
        rows.append(
            paragraph(
                "Membership by distance: a record that was trained on is nearer to a synthetic row than one that was "
                f"not with chance {found['membership_area']:.3f}; a half is guessing. An attack proves nothing where "
                "it fails: the certificate above bounds all of them."
            )
        )
    return section("nearest", "Nearest rows", *rows)
