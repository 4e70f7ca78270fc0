"""The parts of the page about each class, about how far to trust probabilities, and about a private evaluation."""

from fedveil.report import words
from fedveil.report.charts import Axis, Line, lines_chart
from fedveil.report.markup import Markup, concat, figure, note, paragraph, table, tag
from fedveil.report.quality import ByClass, Estimate, Pair, PrivateEvaluation, Quality

_FIRST = 2  # metrics on the first page
_MOST = 20  # classes whose confusion is shown as a table


def by_class(quality: Quality | None) -> Markup | None:
    """Recall and precision of each class, and what is taken for what."""
    if quality is None:
        return None
    heads = ("class", "test records", "recall: found, of those it is", "precision: right, of those it says")
    rows = [_row(one) for one in quality.classes]
    decision = _decision_rule(quality.threshold)
    data = table(f"Each class, with 95% intervals (Wilson). {decision}", heads, rows, numbers=(1, 2, 3))
    return concat([tag("h3", "Class by class"), data, _confusion(quality)])


def _row(one: ByClass) -> tuple[str, str, str, str]:
    return (
        one.name,
        f"{one.records:,}",
        _share(one.recall, one.recall_interval),
        _share(one.precision, one.precision_interval),
    )


def _share(value: float | None, interval: Pair | None) -> str:
    if value is None:
        return "–"
    ends = "" if interval is None else f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
    return f"{100 * value:.1f}%{ends}"


def _decision_rule(threshold: float | None) -> str:
    if threshold is None:
        return "The likeliest class is taken."
    if threshold == 0:
        return "The second class is taken where the score is above 0."
    return f"The second class is taken where its probability is above {words.nearest(threshold)}."


def _confusion(quality: Quality) -> Markup | None:
    if len(quality.classes) > _MOST:
        return None
    names = [one.name for one in quality.classes]
    rows = [(name, *(f"{count:,}" for count in row)) for name, row in zip(names, quality.confusion, strict=True)]
    heads = ("it is", *(f"taken for {name}" for name in names))
    data = table("What is taken for what", heads, rows, numbers=range(1, len(heads)))
    return tag("details", tag("summary", "What is taken for what"), data)


def calibration(quality: Quality | None) -> Markup | None:
    """What was said with some probability, and how often it was so."""
    if quality is None or quality.error is None or not quality.bins:
        return None
    of = "the second class" if len(quality.classes) == 2 else "the likeliest class"
    text = f"The model gives {of} a probability; on average it is off by {100 * quality.error:.1f} points "
    text += "from how often that class is the right one."
    rows = [
        (f"{100 * one.predicted:.1f}%", _share(one.observed, one.interval), f"{one.records:,}") for one in quality.bins
    ]
    data = table("Said, and so", ("said, on average", "so", "records"), rows, numbers=(0, 1, 2))
    points = [(one.predicted, one.observed) for one in quality.bins]
    lines = [Line("perfect", [(0.0, 0.0), (1.0, 1.0)], "weak", dots=False), Line("this model", points, "best")]
    said = "; ".join(f"said {100 * a:.0f}%, so {100 * b:.0f}%" for a, b in points) + "."
    unit, names = Axis(0.0, 1.0), ("probability that was given", "share that was so")
    chart = lines_chart("calibration", "Calibration", said, lines, x=unit, y=unit, names=names)
    caption = "Dots on the thin diagonal are probabilities that can be taken at their word."
    return concat([tag("h3", "Can its probabilities be trusted?"), paragraph(text), figure(chart, caption, data)])


def counted_summary(evaluation: PrivateEvaluation) -> tuple[Markup | None, ...]:
    """Return what noisy counts say in short: the first metrics, each with its interval."""
    counted = "clients" if evaluation.unit == "client" else f"{evaluation.on} records"
    text = f"Measured privately on {evaluation.units:,} {counted}, within the promise; intervals hold the noise too."
    rows = [(one.name, _estimate_text(one.value), ends_text(one)) for one in evaluation.estimates[:_FIRST]]
    data = table("The main scores", ("", "estimate", "95% interval"), rows, numbers=(1, 2))
    unclear = None if evaluation.unclear is None else note(evaluation.unclear, kind="warning")
    return paragraph(text), unclear, data


def counted_parts(evaluation: PrivateEvaluation) -> tuple[Markup | None, ...]:
    """Return what noisy counts say: a table with intervals, and whether the probabilities can be trusted."""
    what = (
        f"{evaluation.units:,} clients, each as one"
        if evaluation.unit == "client"
        else f"{evaluation.units:,} {evaluation.on} records"
    )
    text = (
        f"Counted on {what}, with noise of deviation {words.nearest(evaluation.noise)} on every sum, within the same "
        "promise as the model. The intervals hold the noise and the choice of records, each in 95% of all cases."
    )
    if evaluation.on == "training":
        text += " These records trained the model, so it may look better on them than it is on others."
    rows = [(one.name, _estimate_text(one.value), ends_text(one)) for one in evaluation.estimates]
    data = table("What noisy counts say", ("", "estimate", "95% interval"), rows, numbers=(1, 2))
    unclear = None if evaluation.unclear is None else note(evaluation.unclear, kind="warning")
    return tag("h3", "Measured privately"), paragraph(text), unclear, data, _curve(evaluation)


def _curve(evaluation: PrivateEvaluation) -> Markup | None:
    if not evaluation.curve:
        return None
    rows = [(words.nearest(said), _estimate_text(one.value), ends_text(one)) for said, one in evaluation.curve]
    heads = ("said, on average", "so", "95% interval")
    data = table("Probabilities that were given, and how often it was so", heads, rows, numbers=(0, 1, 2))
    return tag("details", tag("summary", "Can its probabilities be trusted?"), data)


def _estimate_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def ends_text(one: Estimate) -> str:
    """Return an interval in words."""
    return "nothing is known" if one.interval is None else f"{one.interval[0]:.3g} to {one.interval[1]:.3g}"
