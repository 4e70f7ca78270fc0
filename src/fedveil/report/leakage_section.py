"""Pictures before and after: what attacks read from gradients, against the noise that covers them."""

from collections.abc import Sequence

from fedveil.promises import ADVERSARIES
from fedveil.report import words
from fedveil.report.audit_view import Leak, Leakage
from fedveil.report.blocks import figure, paragraph, table
from fedveil.report.charts import Line, axis, lines_chart
from fedveil.report.markup import Markup, joined, tag
from fedveil.report.pictures import strip

_ORDER = tuple(reversed(ADVERSARIES))  # the observer that sees most comes first
_SAME = 1.0  # decibels within which a guess is no better than one that looks at nothing
_ATTACKS = {"analytic": "in closed form", "idlg": "iDLG", "cosine": "cosine matching"}


def leakage(found: Leakage) -> Markup:
    """Return the section: similarity by observer and noise, and the pictures themselves."""
    seen = [who for who in _ORDER if found.strongest(who)]
    cosine, blind = found.blind
    intro = (
        f"From what an observer sees of the first round, an attack rebuilds {found.victims} records that take part in "
        "it. The records shown are public or stand-ins. Likeness is measured at the scale that suits the attacker. A "
        f"guess that looks at nothing (the average of other records) reaches {blind:.1f} dB and a cosine of "
        f"{cosine:.2f}."
    )
    parts: list[object] = [tag("h3", "Reading records out of gradients"), paragraph(intro)]
    parts.append(tag("ul", [tag("li", _sentence(found, who)) for who in seen]))
    if found.truth:
        parts += [_strips(found, who) for who in _different(found, seen)]
    parts += [_panels(found, seen), tag("details", tag("summary", "All numbers of this attack"), _table(found))]
    return joined(parts)


def _different(found: Leakage, seen: Sequence[str]) -> list[str]:
    """Return observers whose pictures are worth showing, without those that equal an earlier one."""
    kept: dict[tuple[tuple[float, float], ...], str] = {}
    for who in seen:
        rows = found.strongest(who)
        if any(row.pictures for row in rows):
            kept.setdefault(tuple((row.noise, round(row.psnr, 2)) for row in rows), who)
    return list(kept.values())


def _sentence(found: Leakage, who: str) -> Markup:
    rows = found.strongest(who)
    bare, own = rows[0], next((row for row in rows if row.noise == 1.0), None)
    text = f"{_likeness(bare)} {_level(bare)}"
    if own is not None and own is not bare:
        text += f"; {_likeness(own)} {_level(own)}"
        text += f", {_against(own, found.blind[1])} a guess that looks at nothing"
    return joined([tag("strong", f"{words.OBSERVERS[who]}: "), f"{text}."])


def _against(row: Leak, blind: float) -> str:
    if row.psnr > blind + _SAME:
        return "better than"
    return "about as good as" if row.psnr >= blind - _SAME else "worse than"


def _likeness(row: Leak) -> str:
    return f"{row.psnr:.1f} dB (cosine {row.cosine:.2f})"


def _level(row: Leak) -> str:
    if row.noise == 0:
        return "without noise"
    return "with the run's noise" if row.noise == 1 else f"with {words.plain(100 * row.noise, 3)}% of the run's noise"


def _strips(found: Leakage, who: str) -> Markup:
    """Return one row of pictures for each level of noise, under the true ones."""
    name = words.SEEN_BY[who]
    lines: list[Markup] = [tag("dt", "as they are"), tag("dd", strip(found.truth, f"{len(found.truth)} true records"))]
    for row in found.strongest(who):
        if row.pictures:
            attack = _ATTACKS.get(row.attack, row.attack)
            alt = f"Guesses by {name}, {attack}, {_level(row)}: {_likeness(row)}"
            lines += [tag("dt", f"{_level(row)}: {row.psnr:.0f} dB"), tag("dd", strip(row.pictures, alt))]
    caption = f"{words.OBSERVERS[who]}: what was read, with more noise from line to line."
    return figure(tag("dl", lines, class_="strips"), caption)


def _panels(found: Leakage, seen: Sequence[str]) -> Markup | None:
    drawn = {who: [(row.noise, row.psnr) for row in found.strongest(who) if row.noise > 0] for who in seen}
    drawn = {who: points for who, points in drawn.items() if len(points) > 1}
    if not drawn:
        return None
    everything = [point for points in drawn.values() for point in points]
    x = axis([noise for noise, _ in everything], log=True)
    y = axis([max(0.0, *(level for _, level in everything)), found.blind[1]], log=False)
    panels = []
    for who, points in drawn.items():
        said = "; ".join(f"{noise:g} times the noise: {level:.1f} dB" for noise, level in points) + "."
        line = [Line("", [(noise, max(level, y.low)) for noise, level in points], "best")]
        chart = lines_chart(
            f"leak-{who}",
            f"Likeness over noise, {words.SEEN_BY[who]}",
            said,
            line,
            x=x,
            y=y,
            names=("noise, in multiples of the run's", ""),
            height=150,
            mark=(found.blind[1], "looking at nothing"),
        )
        panels.append(tag("figure", tag("figcaption", f"{words.OBSERVERS[who]}: decibels"), chart))
    return tag("div", panels, class_="panels")


def _table(found: Leakage) -> Markup:
    rows = [
        (
            words.OBSERVERS[row.adversary],
            _ATTACKS.get(row.attack, row.attack),
            words.plain(row.noise, 3),
            words.epsilon_text(row.epsilon),
            words.plain(row.records, 4) if row.records else "all",
            f"{row.cosine:.3f}",
            f"{row.psnr:.1f}",
            "–" if row.labels_right is None else f"{100 * row.labels_right:.0f}%",
        )
        for row in sorted(found.rows, key=lambda row: (_ORDER.index(row.adversary), row.attack, row.noise))
    ]
    heads = ("Observer", "attack", "noise", "epsilon", "records in it", "cosine", "decibels", "labels read")
    caption = (
        f"Mean over {found.victims} records. Noise in multiples of the run's; epsilon is that of the whole run with so "
        f"much secret noise, at delta {words.plain(found.delta, 12)}"
    )
    return table(caption, heads, rows, numbers=range(2, len(heads)))
