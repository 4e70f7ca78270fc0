"""A private profile as one HTML file that needs nothing else."""

import math
from collections.abc import Sequence

from fedveil.certificate.certify import MeasuredCertificate
from fedveil.report.charts import Axis, Row, rows_chart, squares_chart
from fedveil.report.costs import cost_section
from fedveil.report.markup import Markup, code, column_page, figure, note, paragraph, section, table, tag
from fedveil.stages.profile.profile import NumberColumn, Profile, TextColumn

_MOST_WORDS = 8  # of a column, in the table
_MOST_COLUMNS = 24  # in the picture of correlations


def profile_page(profile: Profile, certificate: MeasuredCertificate, questions: Sequence[str] = ()) -> str:
    """Return the whole page as HTML; ``questions``: what keeps the drafted study from running as it is."""
    parts = [
        _balance(profile),
        _numbers(profile.numbers, profile.errors.get("ranges", 0.0)),
        _texts([one for one in profile.texts if one.name != profile.target], profile.errors.get("categories", 0.0)),
        _correlations(profile),
        _cost(certificate),
        _next(questions),
    ]
    target = certificate.plan.target
    facts = (
        f"{profile.records:,} records. Every number on this page was measured with noise: epsilon {target.epsilon:g}, "
        f"delta {target.delta:g} for one {target.unit} ({target.neighbours})."
    )
    name = certificate.plan.name
    heading = [tag("p", "Private profile", class_="kicker"), tag("h1", name), tag("p", facts)]
    return column_page(f"Private profile: {name}", heading, parts)


def _balance(profile: Profile) -> Markup | None:
    listed = profile.classes
    if listed is None:
        return None
    shown = [*listed.words, *([("(missing)", listed.missing)] if listed.missing else [])]
    error = profile.errors.get("categories", 0.0)
    rows = [Row(word, share, f"{share:.1%}", interval=_interval(share, error)) for word, share in shown]
    spoken = "; ".join(f"{word} {share:.1%}" for word, share in shown)
    drawing = rows_chart("balance", "Class balance", spoken, rows, scale=Axis(0.0, 1.0))
    caption = f"Share of the records with each value of {listed.name}; whiskers hold the noise in 95% of profiles."
    return section("classes", f"What is to be predicted: {listed.name}", figure(drawing, caption))


def _interval(share: float, error: float) -> tuple[float, float]:
    return max(0.0, share - error), min(1.0, share + error)


def _numbers(columns: Sequence[NumberColumn], error: float) -> Markup | None:
    if not columns:
        return None
    rows = [
        [
            one.name,
            f"{_round_off(one.low, one)} to {_round_off(one.high, one)}",
            _round_off(one.centre, one),
            "–" if one.spread is None else f"{one.spread:.3g}",
            _share(one.missing),
        ]
        for one in columns
    ]
    caption = (
        "Ranges are powers of two that hold the bulk of a column. Where a column spans many magnitudes its centre is "
        f"that of a nearly logarithmic scale, and no spread is given. Shares are known to ±{error:.2%}."
    )
    heads = ["column", "range", "centre", "spread", "missing"]
    return section("numbers", "Columns of numbers", table(caption, heads, rows, numbers=(1, 2, 3, 4)))


def _round_off(value: float, column: NumberColumn) -> str:
    """A number to four digits, and never finer than a thousandth of the column's range."""
    grain = 10.0 ** math.floor(math.log10(max(column.high - column.low, 1e-300)) - 3)
    return f"{round(value / grain) * grain:.4g}" if abs(value) < 1e6 else f"{value:.4g}"


def _texts(columns: Sequence[TextColumn], error: float) -> Markup | None:
    if not columns:
        return None
    rows = []
    for one in columns:
        words = ", ".join(f"{word} {share:.1%}" for word, share in one.words[:_MOST_WORDS])
        more = len(one.words) - _MOST_WORDS
        words += f", and {more} more" if more > 0 else ""
        rows.append([one.name, words or "none is frequent enough to be shown", _share(one.other), _share(one.missing)])
    caption = f"Words that are frequent enough to be shown, with their shares of the records, known to ±{error:.2%}."
    heads = ["column", "words", "others", "missing"]
    return section("texts", "Columns of texts", table(caption, heads, rows, numbers=(2, 3)))


def _share(share: float) -> str:
    return "–" if share == 0 else f"{share:.1%}"


def _correlations(profile: Profile) -> Markup:
    names, matrix = profile.correlated, profile.correlations
    if not names:
        why = "They would be mostly noise at this epsilon, or there are too few or too many columns of numbers."
        return section("correlations", "Correlations", note(f"Correlations were not measured. {why}"))
    pairs = sorted(
        ((abs(matrix[i][j]), names[i], names[j], matrix[i][j]) for i in range(len(names)) for j in range(i)),
        reverse=True,
    )
    strongest = [[f"{one} – {other}", f"{value:+.2f}"] for _, one, other, value in pairs[:20]]
    numbers = table("The strongest pairs", ["columns", "correlation"], strongest, numbers=(1,))
    shown = min(len(names), _MOST_COLUMNS)
    error = profile.errors.get("correlations", 0.0)
    caption = "The larger the square, the stronger the correlation; filled: positive, hollow: negative. "
    caption += f"Known to ±{error:.1g}."
    spoken = "; ".join(f"{row[0]} {row[1]}" for row in strongest[:5])
    return section("correlations", "Correlations", figure(_grid(names[:shown], matrix, spoken), caption, numbers))


def _grid(names: Sequence[str], matrix: Sequence[Sequence[float]], spoken: str) -> Markup:
    def square(i: int, j: int) -> tuple[float, str]:
        value = matrix[i][j]
        return (1.0, "bar") if i == j else (abs(value), "bar best" if value > 0 else "bar room")

    drawn = squares_chart("pairs", "Correlations", spoken, names, square, style="width: {width}px")
    return tag("div", drawn, class_="scrolls", tabindex="0", role="group", aria_label="Correlations, scrolls sideways")


def _cost(certificate: MeasuredCertificate) -> Markup:
    words = paragraph(
        "The profile was charged in the ledger of these data, like a run, before anything was measured. Its "
        "certificate is beside this page; ",
        code("fedveil certify"),
        " recomputes it.",
    )
    return cost_section(certificate, words)


def _next(questions: Sequence[str]) -> Markup:
    if not questions:
        words = paragraph(
            "A study that states all of this, and runs as it is, is beside this page: ", code("study.toml")
        )
    else:
        asked = [tag("li", one) for one in questions]
        words = tag("div", paragraph("The drafted study has open questions:"), tag("ul", asked))
    return section("next", "What to do next", words, tag("pre", "fedveil run study.toml --out results"))
