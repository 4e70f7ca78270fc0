"""A comparison as one HTML file that needs nothing else, drawn from its compare.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.report.charts import Axis, Row, axis, rows_chart
from fedveil.report.markup import Markup, column_page, figure, note, paragraph, section, table, tag
from fedveil.report.words import bytes_text

NOISE = (
    "noise: of a coordinate of a round's averaged gradient, or in the algorithm's own terms; "
    "weights ±: standard deviation of a weight over the runs; gradients: of records, computed in one run; "
    "delay: how many of them a client computes between two of its messages (information dispersal)."
)
_TITLES = {
    "algorithms": "Algorithms side by side",
    "trust": "What trust is worth",
    "noise": "Which noise for whom",
}


def compare_page(result: Mapping[str, Any]) -> str:
    """Return the whole page as HTML."""
    entries, ran = list(result["entries"]), [e for e in result["entries"] if e["refused"] is None]
    parts = [
        _alarm(result),
        _overview(result, entries),
        _utility(result, ran),
        _noise(result, ran),
        _traffic(ran),
        _refusals(entries),
        _costs(result),
    ]
    state = "" if result["private"] else "NOT PRIVATE – "
    return column_page(f"{state}Comparison: {result['study']}", _heading(result), parts)


def _heading(result: Mapping[str, Any]) -> list[Markup]:
    target = result["target"]
    facts = (
        f"{result['records']:,} records of {result['clients']:,} client{'s' * (result['clients'] > 1)}. "
        "Every row meets the same target: "
        f"epsilon {target['epsilon']:g}, delta {target['delta']:g} for one {target['unit']} ({target['neighbours']})"
    )
    facts += f", against {target['adversary']}." if result["view"] == "algorithms" else ", against the observer named."
    return [tag("p", "Comparison", class_="kicker"), tag("h1", result["study"]), tag("p", facts)]


def _alarm(result: Mapping[str, Any]) -> Markup:
    if result["private"]:
        return note(result["warning"], kind="warning")
    return tag("section", tag("h2", "NOT PRIVATE"), tag("p", result["warning"]), id="not-private")


def _overview(result: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Markup:
    heads = ["", result["metric"], "weights ±", "rounds", "gradients", "delay", "noise", "sent", "received", "seconds"]
    rows = [
        [e["label"], "refused", *["–"] * 8]
        if e["refused"] is not None
        else [
            e["label"],
            score_text(e),
            spread_text(e),
            f"{e['rounds']:,}",
            *work_text(e),
            noise_text(e),
            bytes_text(e["bytes_up"]),
            bytes_text(e["bytes_down"]),
            f"{e['seconds']:.2g}",
        ]
        for e in entries
    ]
    runs = result["runs"]
    held = f"{result['test_records']:,} held-out records" if result["test_records"] else "nothing (no held-out records)"
    caption = f"Mean and standard deviation of {runs} run{'s' * (runs > 1)}, measured on {held}; seconds of one run. "
    caption += NOISE
    return section("overview", _TITLES[result["view"]], table(caption, heads, rows, numbers=(1, 2, 3, 4, 5, 7, 8, 9)))


def _utility(result: Mapping[str, Any], ran: Sequence[Mapping[str, Any]]) -> Markup | None:
    measured = [e for e in ran if e["mean"] is not None]
    if not measured:
        return None
    best, reference = max(e["mean"] for e in measured), result["reference"]
    rows = [
        Row(
            e["label"],
            e["mean"],
            score_text(e),
            "best" if e["mean"] == best else "other",
            None if e["spread"] is None else (e["mean"] - e["spread"], e["mean"] + e["spread"]),
        )
        for e in measured
    ]
    if result.get("baseline") is not None:
        rows.append(Row(result["constant"], result["baseline"], f"{result['baseline']:.3f}", "weak"))
    ends = [end for row in rows for end in (row.interval or (row.value or 0.0,))]
    scale = Axis(0.0, 1.0) if min(ends) >= 0 else axis([*ends, 1.0], log=False)
    mark = None if reference is None else (reference, f"without privacy {reference:.3f}")
    drawing = rows_chart("scores", result["metric"], _spoken(measured), rows, scale=scale, mark=mark)
    if result["counted"]:
        public = " Scores are noisy counts, which the plan of every model is charged for."
    else:
        exact = " The held-out records were not declared public: nothing protects them."
        public = "" if result["test_public"] else exact
    caption = f"{result['metric']} on the held-out records; whiskers are one standard deviation.{public}"
    useless = note(useless_text(result), kind="warning") if result.get("no_better") else None
    return section("utility", "How well each does", useless, figure(drawing, caption))


def _noise(result: Mapping[str, Any], ran: Sequence[Mapping[str, Any]]) -> Markup | None:
    known = [e for e in ran if e["noise_on_average"]]
    if not known or (result["view"] == "algorithms" and len(known) < 2):
        return None
    values = [e["noise_on_average"] for e in known]
    least = min(values)
    rows = [
        Row(
            e["label"],
            e["noise_on_average"],
            f"{e['noise_on_average']:.3g}",
            "best" if e["noise_on_average"] == least else "other",
        )
        for e in known
    ]
    drawing = rows_chart("noise", "Noise", "Noise of a coordinate of the averaged gradient", rows, scale=axis(values))
    words = [tag("li", tag("strong", e["label"]), f" – {e['explained']}") for e in ran if e["explained"]]
    caption = "Standard deviation of the noise on each coordinate of a round's averaged gradient."
    return section(
        "noise-needed", "How much noise it takes", figure(drawing, caption), tag("ul", words) if words else None
    )


def _traffic(ran: Sequence[Mapping[str, Any]]) -> Markup | None:
    known = [e for e in ran if e["bytes_up"]]
    if not known:
        return None
    least = min(e["bytes_up"] for e in known)
    rows = [
        Row(e["label"], e["bytes_up"], bytes_text(e["bytes_up"]), "best" if e["bytes_up"] == least else "other")
        for e in known
    ]
    scale = axis([float(e["bytes_up"]) for e in known])
    drawing = rows_chart("traffic", "Bytes sent", "Bytes that all clients send in one run", rows, scale=scale)
    return section(
        "traffic-sent", "What clients send", figure(drawing, "Bytes that all clients together send in one run.")
    )


def _refusals(entries: Sequence[Mapping[str, Any]]) -> Markup | None:
    rows = [[e["label"], e["refused"]] for e in entries if e["refused"] is not None]
    return section("refused", "Not for this study", table("And why", ["", "reason"], rows)) if rows else None


def _costs(result: Mapping[str, Any]) -> Markup:
    rows = [
        [
            row["adversary"],
            "no finite epsilon" if row["epsilon"] is None else f"{row['epsilon']:.6g}",
            f"{row['delta']:.3g}",
        ]
        for row in result["total_cost"]
    ]
    return section(
        "costs",
        "What this comparison costs",
        paragraph(result["warning"]),
        table("All runs together, by who is looking", ["observer", "epsilon", "delta"], rows, numbers=(1, 2)),
    )


def _spoken(entries: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{e['label']}: {score_text(e)}" for e in entries)


def useless_text(result: Mapping[str, Any]) -> str:
    """Which algorithms do no better than the best constant answer."""
    named = ", ".join(result["no_better"])
    verb = "does" if len(result["no_better"]) == 1 else "do"
    return f"{named} {verb} no better than the best constant answer ({result['constant']}, {result['baseline']:.3f})."


def score_text(entry: Mapping[str, Any]) -> str:
    """Return mean and spread, as far as they are known."""
    if entry["mean"] is None:
        return "–"
    spread = "" if entry["spread"] is None else f" ± {entry['spread']:.3f}"
    return f"{entry['mean']:.3f}{spread}"


def spread_text(entry: Mapping[str, Any]) -> str:
    """Return how much a weight of the released model varies over the runs."""
    spread = entry["model_spread"]
    return "–" if spread is None else f"{spread:.2g}"


def work_text(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the gradients of a run, and those between two messages of a client, as far as they are known."""
    gradients, delay = entry.get("gradients"), entry.get("dispersal")
    return "–" if gradients is None else f"{gradients:,}", "–" if delay is None else f"{delay:.3g}"


def noise_text(entry: Mapping[str, Any]) -> str:
    """Return the noise on the averaged gradient if it is known, otherwise in the method's own words."""
    average = entry["noise_on_average"]
    return str(entry["noise"]) or "–" if average is None else f"{average:.3g}"
