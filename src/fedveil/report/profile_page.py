"""A private profile as one HTML file that needs nothing else."""

import math
from collections.abc import Sequence

from fedveil.certificate.profile import SEES, ProfileCertificate
from fedveil.guarantee import finite_or_none
from fedveil.prepare.profile.found import NumberColumn, Profile, TextColumn
from fedveil.report.blocks import code, column_page, figure, note, paragraph, section, table
from fedveil.report.charts import Axis, Row, rows_chart
from fedveil.report.markup import Markup, tag

_MOST_WORDS = 8  # of a column, in the table
_MOST_COLUMNS = 24  # in the picture of correlations
_CELL, _LETTERS = 24, 18  # pixels of a square; letters of a column's name that are shown


def profile_page(found: Profile, certificate: ProfileCertificate, questions: Sequence[str] = ()) -> str:
    """Return the whole page as HTML; ``questions``: what keeps the drafted study from running as it is."""
    parts = [
        _balance(found),
        _numbers(found.numbers, found.errors.get("ranges", 0.0)),
        _texts([one for one in found.texts if one.name != found.target], found.errors.get("categories", 0.0)),
        _correlations(found),
        _cost(certificate),
        _next(questions),
    ]
    target = certificate.plan.target
    facts = (
        f"{found.records:,} records. Every number on this page was measured with noise: epsilon {target.epsilon:g}, "
        f"delta {target.delta:g} for one {target.unit} ({target.neighbours})."
    )
    name = certificate.plan.name
    heading = [tag("p", "Private profile", class_="kicker"), tag("h1", name), tag("p", facts)]
    return column_page(f"Private profile: {name}", heading, parts)


def _balance(found: Profile) -> Markup | None:
    listed = found.classes
    if listed is None:
        return None
    shown = [*listed.words, *([("(missing)", listed.missing)] if listed.missing else [])]
    error = found.errors.get("categories", 0.0)
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
            f"{_rounded(one.low, one)} to {_rounded(one.high, one)}",
            _rounded(one.centre, one),
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


def _rounded(value: float, column: NumberColumn) -> str:
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


def _correlations(found: Profile) -> Markup:
    names, matrix = found.correlated, found.correlations
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
    error = found.errors.get("correlations", 0.0)
    caption = "The larger the square, the stronger the correlation; filled: positive, hollow: negative. "
    caption += f"Known to ±{error:.1g}."
    spoken = "; ".join(f"{row[0]} {row[1]}" for row in strongest[:5])
    return section("correlations", "Correlations", figure(_grid(names[:shown], matrix, spoken), caption, numbers))


def _grid(names: Sequence[str], matrix: Sequence[Sequence[float]], spoken: str) -> Markup:
    count, left = len(names), 52 + 8 * max(len(_short(name)) for name in names)
    inside: list[Markup] = []
    for i, name in enumerate(names):
        y = _CELL * (i + 1)
        inside.append(tag("text", f"{_short(name)}  {i + 1}", x=left - 8, y=y + 16, text_anchor="end", class_="label"))
        inside.append(
            tag("text", str(i + 1), x=left + _CELL * i + _CELL / 2, y=16, text_anchor="middle", class_="tick")
        )
        for j in range(count):
            value = 1.0 if i == j else matrix[i][j]
            size = (_CELL - 4) * abs(value) ** 0.5
            if size >= 2:
                at = {"x": f"{left + _CELL * j + (_CELL - size) / 2:.1f}", "y": f"{y + (_CELL - size) / 2:.1f}"}
                kind = "bar" if i == j else ("bar best" if value > 0 else "bar room")
                inside.append(tag("rect", **at, width=f"{size:.1f}", height=f"{size:.1f}", class_=kind))
    width, height = left + _CELL * count + 8, _CELL * (count + 1) + 8
    head_ = [tag("title", "Correlations", id="pairs-title"), tag("desc", spoken, id="pairs-desc")]
    labels = {"aria_labelledby": "pairs-title pairs-desc"}
    box, size = f"0 0 {width} {height}", f"width: {width}px"
    drawn = tag("svg", head_, inside, id="pairs", class_="chart", role="img", viewBox=box, style=size, **labels)
    return tag("div", drawn, class_="scrolls", tabindex="0", role="group", aria_label="Correlations, scrolls sideways")


def _short(name: str) -> str:
    """A name with its middle left out, if it is long: names often differ at their ends alone."""
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS // 2]}…{name[-(_LETTERS // 2 - 1) :]}"


def _cost(certificate: ProfileCertificate) -> Markup:
    rows = []
    for one in certificate.guarantees:
        epsilon = finite_or_none(one.answer.epsilon)
        told = "nothing is promised" if epsilon is None else f"{epsilon:.6g}"
        rows.append([one.adversary, told, f"{one.answer.delta:.3g}", SEES[one.adversary]])
    words = paragraph(
        "The profile was charged in the ledger of these data, like a run, before anything was measured. Its "
        "certificate is beside this page; ",
        code("fedveil certify"),
        " recomputes it.",
    )
    heads = ["observer", "epsilon", "delta", "sees"]
    costs = table("What each observer learns at most", heads, rows, numbers=(1, 2))
    total = certificate.data_set
    whole = None if total is None else paragraph(total.sentence(certificate.plan.target.adversary))
    return section("cost", "What it cost", words, costs, whole)


def _next(questions: Sequence[str]) -> Markup:
    if not questions:
        words = paragraph(
            "A study that states all of this, and runs as it is, is beside this page: ", code("study.toml")
        )
    else:
        asked = [tag("li", one) for one in questions]
        words = tag("div", paragraph("The drafted study has open questions:"), tag("ul", asked))
    return section("next", "What to do next", words, tag("pre", "fedveil run study.toml --out results"))
