"""The part of the page about a private evaluation."""

from fedveil.report import words
from fedveil.report.blocks import note, paragraph, table
from fedveil.report.counted import Counted, Estimate
from fedveil.report.markup import Markup, tag


def counted_parts(found: Counted) -> tuple[Markup | None, ...]:
    """Return what noisy counts say: a table with intervals, and whether the probabilities can be trusted."""
    what = f"{found.units:,} clients, each as one" if found.unit == "client" else f"{found.units:,} {found.on} records"
    text = (
        f"Counted on {what}, with noise of deviation {words.plain(found.noise)} on every sum, within the same "
        "promise as the model. The intervals hold the noise and the choice of records, each in 95% of all cases."
    )
    if found.on == "training":
        text += " These records trained the model, so it may look better on them than it is on others."
    rows = [(one.name, _shown(one.value), ends_text(one)) for one in found.estimates]
    data = table("What noisy counts say", ("", "estimate", "95% interval"), rows, numbers=(1, 2))
    unclear = None if found.unclear is None else note(found.unclear, kind="warning")
    return tag("h3", "Measured privately"), paragraph(text), unclear, data, _curve(found)


def _curve(found: Counted) -> Markup | None:
    if not found.curve:
        return None
    rows = [(words.plain(said), _shown(one.value), ends_text(one)) for said, one in found.curve]
    heads = ("said, on average", "so", "95% interval")
    data = table("Probabilities that were given, and how often it was so", heads, rows, numbers=(0, 1, 2))
    return tag("details", tag("summary", "Can its probabilities be trusted?"), data)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def ends_text(one: Estimate) -> str:
    """Return an interval in words."""
    return "nothing is known" if one.interval is None else f"{one.interval[0]:.3g} to {one.interval[1]:.3g}"
