"""The parts of the page about each class, and about how far the model's probabilities can be trusted."""

from fedveil.report import words
from fedveil.report.blocks import figure, paragraph, table
from fedveil.report.charts import Axis, Line, lines_chart
from fedveil.report.markup import Markup, joined, tag
from fedveil.report.quality import ByClass, Pair, Quality

_MOST = 20  # classes whose confusion is shown as a table


def by_class(found: Quality | None) -> Markup | None:
    """Recall and precision of each class, and what is taken for what."""
    if found is None:
        return None
    heads = ("class", "test records", "recall: found, of those it is", "precision: right, of those it says")
    rows = [_row(one) for one in found.classes]
    told = _decided(found.threshold)
    data = table(f"Each class, with 95% intervals (Wilson). {told}", heads, rows, numbers=(1, 2, 3))
    return joined([tag("h3", "Class by class"), data, _confusion(found)])


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


def _decided(threshold: float | None) -> str:
    if threshold is None:
        return "The likeliest class is taken."
    if threshold == 0:
        return "The second class is taken where the score is above 0."
    return f"The second class is taken where its probability is above {words.plain(threshold)}."


def _confusion(found: Quality) -> Markup | None:
    if len(found.classes) > _MOST:
        return None
    names = [one.name for one in found.classes]
    rows = [(name, *(f"{count:,}" for count in row)) for name, row in zip(names, found.confusion, strict=True)]
    heads = ("it is", *(f"taken for {name}" for name in names))
    data = table("What is taken for what", heads, rows, numbers=range(1, len(heads)))
    return tag("details", tag("summary", "What is taken for what"), data)


def calibrated(found: Quality | None) -> Markup | None:
    """What was said with some probability, and how often it was so."""
    if found is None or found.error is None or not found.bins:
        return None
    of = "the second class" if len(found.classes) == 2 else "the likeliest class"
    text = f"The model gives {of} a probability; on average it is off by {100 * found.error:.1f} points "
    text += "from how often that class is the right one."
    rows = [
        (f"{100 * one.predicted:.1f}%", _share(one.observed, one.interval), f"{one.records:,}") for one in found.bins
    ]
    data = table("Said, and so", ("said, on average", "so", "records"), rows, numbers=(0, 1, 2))
    points = [(one.predicted, one.observed) for one in found.bins]
    lines = [Line("perfect", [(0.0, 0.0), (1.0, 1.0)], "weak", dots=False), Line("this model", points, "best")]
    said = "; ".join(f"said {100 * a:.0f}%, so {100 * b:.0f}%" for a, b in points) + "."
    unit, names = Axis(0.0, 1.0), ("probability that was given", "share that was so")
    chart = lines_chart("calibration", "Calibration", said, lines, x=unit, y=unit, names=names)
    caption = "Dots on the thin diagonal are probabilities that can be taken at their word."
    return joined([tag("h3", "Can its probabilities be trusted?"), paragraph(text), figure(chart, caption, data)])
