"""Answers to questions as one HTML page that a clinician reads: a picture for each answer, and what it cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.certificate.certify import MeasuredCertificate
from fedveil.report.charts import Axis, Box, Line, Row, axis, boxes_chart, lines_chart, rows_chart, squares_chart
from fedveil.report.costs import cost_section
from fedveil.report.markup import (
    Markup,
    code,
    column_page,
    figure,
    folded_numbers,
    note,
    paragraph,
    section,
    table,
    tag,
)

Rows = Sequence[Mapping[str, Any]]
_MEASURED = ("estimate", "low", "high", "population_low", "population_high")
_MOST_BARS = 60
_MOST_ROWS = 500
_OF_NOISE = "Whiskers hold the number of these records in 95% of answers: they are the noise alone."
_OF_BOTH = "Whiskers are 95% intervals of noise and sampling together."


def ask_page(answers: Mapping[str, Any], certificate: MeasuredCertificate) -> str:
    """Return the whole page as HTML."""
    target, name = certificate.plan.target, certificate.plan.name
    facts = (
        f"{answers['records']:,} records. Every number on this page was measured with noise: epsilon "
        f"{target.epsilon:g}, delta {target.delta:g} for one {target.unit} ({target.neighbours})."
    )
    heading = [tag("p", "Private statistics", class_="kicker"), tag("h1", name), tag("p", facts)]
    parts = [_answer(place, one) for place, one in enumerate(answers["answers"])]
    return column_page(f"Private statistics: {name}", heading, [*parts, _cost(certificate)])


def _answer(place: int, answer: Mapping[str, Any]) -> Markup:
    question, rows = answer["question"], answer["tables"][""]
    words = [paragraph(_sentence(question)), *(note(one) for one in answer["notes"])]
    if not rows:
        return section(f"answer-{place}", question["name"], *words)
    kind, name = question["kind"], f"picture-{place}"
    tables = [_table(part or question["name"], own) for part, own in answer["tables"].items() if own]
    drawings = {"survival": _curves, "quantiles": _boxes, "correlation": _squares, "regression": _forest}
    drawing, caption = drawings.get(kind, _bars)(name, question, rows)
    shown = figure(drawing, caption, folded_numbers("The numbers", tag("div", *tables)))
    return section(f"answer-{place}", question["name"], *words, shown)


def _sentence(question: Mapping[str, Any]) -> str:
    """The question in words."""
    kind = question["kind"]
    about = question.get("columns") or [question.get("column") or question.get("time") or "records"]
    words = f"{question.get('model', '')} {kind} of {' and '.join(about)}".strip()
    if kind == "regression":
        words = f"{question.get('model', 'linear')} model of {question.get('column') or question.get('time')}"
        words = f"{words} from {', '.join(question['columns'])}"
    words += f" by {question['by']}" if "by" in question else ""
    words += f", where {' and '.join(question['where'])}" if "where" in question else ""
    return words[0].upper() + words[1:] + "."


def _label(row: Mapping[str, Any]) -> str:
    marks = {key: value for key, value in row.items() if isinstance(value, str) or key in ("site", "quantile")}
    return (
        ", ".join(str(value) if isinstance(value, str) else f"{key} {value}" for key, value in marks.items()) or "all"
    )


def _bars(name: str, question: Mapping[str, Any], rows: Rows) -> tuple[Markup, str]:
    shown = [row for row in rows if question["kind"] != "crosstab" or "all" not in row.values()][:_MOST_BARS]
    both = question["kind"] == "mean"
    low, high = ("population_low", "population_high") if both else ("low", "high")
    bars = [Row(_label(row), row["estimate"], f"{row['estimate']:.4g}", "best", (row[low], row[high])) for row in shown]
    scale = axis([0.0, *(end for row in shown for end in (row[low], row[high]))], log=False)
    spoken = "; ".join(f"{bar.label} {bar.text}" for bar in bars[:12])
    return rows_chart(name, question["name"], spoken, bars, scale=scale), _OF_BOTH if both else _OF_NOISE


def _boxes(name: str, question: Mapping[str, Any], rows: Rows) -> tuple[Markup, str]:
    groups: dict[str, dict[float, float]] = {}
    for row in rows:
        own = ", ".join(str(value) for key, value in row.items() if key not in (*_MEASURED, "quantile")) or "all"
        groups.setdefault(own, {})[row["quantile"]] = row["estimate"]
    boxes = [Box(label, sorted(own.items())) for label, own in groups.items()]
    values = [value for box in boxes for _, value in box.quantiles]
    spoken = "; ".join(f"{box.label}: {', '.join(f'{q:g} {v:.4g}' for q, v in box.quantiles)}" for box in boxes)
    drawing = boxes_chart(name, question["name"], spoken, boxes, scale=axis(values, log=False))
    return drawing, "Each box reaches over the middle quantiles that were asked for, its line over all of them."


def _curves(name: str, question: Mapping[str, Any], rows: Rows) -> tuple[Markup, str]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        own = ", ".join(str(value) for key, value in row.items() if key not in (*_MEASURED, "time")) or "all"
        groups.setdefault(own, []).append(row)
    lines = []
    for place, (label, curve) in enumerate(groups.items()):
        lines.append(Line(label, _stairs(curve, "estimate"), "best" if place == 0 else "other", dots=False))
        lines += [Line(label, _stairs(curve, key), "weak", dots=False) for key in ("population_low", "population_high")]
    last = max(row["time"] for row in rows)
    spoken = "; ".join(f"{label} {one[-1]['estimate']:.0%} at {one[-1]['time']:g}" for label, one in groups.items())
    names, frame = (question["time"], "surviving"), (Axis(0.0, last), Axis(0.0, 1.0))
    ends = [(one[-2]["estimate"], label) for label, one in groups.items()] if len(groups) > 1 else []  # the last level
    drawing = lines_chart(name, question["name"], spoken, lines, x=frame[0], y=frame[1], names=names, ends=ends)
    return drawing, "Curves, each between its 95% bands of noise and sampling."


def _stairs(rows: Rows, key: str) -> list[tuple[float, float]]:
    points = [(0.0, 1.0)]
    for row in rows[1:]:
        points += [(row["time"], points[-1][1]), (row["time"], row[key])]
    return points


def _squares(name: str, question: Mapping[str, Any], rows: Rows) -> tuple[Markup, str]:
    names = question["columns"]
    values = {(row["column"], row["other"]): row["estimate"] for row in rows}

    def square(i: int, j: int) -> tuple[float, str]:
        value = values.get((names[min(i, j)], names[max(i, j)]), 1.0)
        return (1.0, "bar") if i == j else (abs(value), "bar best" if value > 0 else "bar room")

    spoken = "; ".join(f"{one} and {other} {value:.2f}" for (one, other), value in values.items())
    drawn = squares_chart(name, question["name"], spoken, names, square, style="width: {width}px")
    return drawn, "The larger the square, the stronger the correlation; filled: positive, hollow: negative."


def _forest(name: str, question: Mapping[str, Any], rows: Rows) -> tuple[Markup, str]:
    ratio = next((key for key in ("odds_ratio", "rate_ratio", "hazard_ratio") if key in rows[-1]), None)
    shown = [row for row in rows if row["coefficient"] != "(constant)"]
    keys = ("estimate", "population_low", "population_high") if ratio is None else _ends(ratio)
    bars = []
    for row in shown:
        value, low, high = (row[key] for key in keys)
        bars.append(Row(row["coefficient"], value, f"{value:.3g} ({low:.3g} to {high:.3g})", "best", (low, high)))
    ends = [end for row in shown for end in (row[keys[1]], row[keys[2]])]
    scale = axis([0.0, *ends], log=False) if ratio is None else axis([1.0, *ends], log=True)
    mark = None if ratio is None else (1.0, "no effect")
    spoken = "; ".join(f"{bar.label} {bar.text}" for bar in bars)
    what = "coefficients" if ratio is None else f"{ratio.replace('_', ' ')}s for one more unit"
    return rows_chart(name, question["name"], spoken, bars, scale=scale, mark=mark), f"The {what}. {_OF_BOTH}"


def _ends(ratio: str) -> tuple[str, str, str]:
    return ratio, f"{ratio}_low", f"{ratio}_high"


def _table(caption: str, rows: Rows) -> Markup:
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_shown(row.get(head)) for head in heads] for row in rows[:_MOST_ROWS]]
    numbers = [place for place, head in enumerate(heads) if not isinstance(rows[0].get(head), str)]
    return table(caption, [head.replace("_", " ") for head in heads], cells, numbers=numbers)


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _cost(certificate: MeasuredCertificate) -> Markup:
    words = paragraph(
        "All questions together were charged once in the ledger of these data, before anything was measured. The "
        "certificate is beside this page; ",
        code("fedveil certify"),
        " recomputes it.",
    )
    return cost_section(certificate, words)
