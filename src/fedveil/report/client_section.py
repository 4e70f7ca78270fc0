"""The section of the page for methods that give each client its own promise."""

from fedveil.report import words
from fedveil.report.blocks import figure, paragraph, section, table
from fedveil.report.charts import Axis, Line, Row, axis, lines_chart, rows_chart
from fedveil.report.markup import Markup
from fedveil.report.view import View

_MOST_BARS = 16
_MOST_ROWS = 60


def clients(view: View) -> Markup | None:
    """Return each client's own epsilon; None if all clients have the same promise."""
    if not view.clients:
        return None
    what = "its records together" if view.plan.target.unit == "client" else "any one of its records"
    delta = words.plain(view.target.delta, 12)
    intro = paragraph(
        f"Clients differ in what they risk. The promise above is for all of them; here is each one's own, for {what}, "
        f"at delta {delta}, against the same observer."
    )
    ordered = sorted(view.clients, key=lambda row: (row[1] is not None, -(row[1] or 0.0), row[0]))
    return section("clients", "Client by client", intro, _extremes(ordered), _drawing(ordered))


def _extremes(ordered: list[tuple[int, float | None]]) -> Markup | None:
    without = sum(epsilon is None for _, epsilon in ordered)
    known = [(client, epsilon) for client, epsilon in ordered if epsilon is not None]
    if not known:
        return paragraph("No client has a guarantee.")
    (worst, most), (best, least) = known[0], known[-1]
    text = f"Epsilon lies between {words.up(least)} ({_name(best)}) and {words.up(most)} ({_name(worst)})."
    if without:
        text += f" For {without:,} client{'s' * (without > 1)} there is no guarantee."
    return paragraph(text)


def _drawing(ordered: list[tuple[int, float | None]]) -> Markup:
    shown = ordered if len(ordered) <= _MOST_ROWS else [*ordered[: _MOST_ROWS // 2], *ordered[-_MOST_ROWS // 2 :]]
    half = f" (the {_MOST_ROWS // 2} largest and the {_MOST_ROWS // 2} smallest)" if len(shown) < len(ordered) else ""
    rows = [(_name(client), words.epsilon_text(epsilon)) for client, epsilon in shown]
    data = table(f"Epsilon of each client{half}", ("client", "epsilon"), rows, numbers=(1,))
    known = [epsilon for _, epsilon in ordered if epsilon is not None]
    if not known:
        return data
    title, said = "Epsilon by client", f"From {words.up(known[0])} down to {words.up(known[-1])}."
    if len(ordered) <= _MOST_BARS:
        bars = [Row(_name(client), epsilon, words.epsilon_text(epsilon)) for client, epsilon in ordered]
        chart = rows_chart("by-client", title, said, bars, scale=axis(known))
        return figure(chart, "Epsilon of each client, largest first; smaller is better.", data)
    points = [(float(rank), epsilon) for rank, epsilon in enumerate(known, start=1)]
    line = [Line("", points, "other", dots=False)]
    x = Axis(1.0, float(len(known)) if len(known) > 1 else 2.0, whole=True)
    chart = lines_chart("by-client", title, said, line, x=x, y=axis(known), names=("clients", "epsilon"))
    return figure(chart, "Epsilon of all clients, largest first; smaller is better.", data)


def _name(client: int) -> str:
    return f"client {client + 1}"
