"""The section about attacks: what is certified, what they showed, the difference; and pictures before and after.

The pictures show what attacks read from gradients, against the noise that covers them.
"""

from collections.abc import Sequence

from fedveil.audit.finding import Finding
from fedveil.planning.promises import ADVERSARIES
from fedveil.report import words
from fedveil.report.audit_view import AuditView, Leak, Leakage, Roc
from fedveil.report.charts import Line, Span, axis, legend, lines_chart, spans_chart, strip
from fedveil.report.markup import Markup, badge, code, concat, figure, folded, note, paragraph, section, table, tag
from fedveil.report.view import View

_BADGES = {
    "consistent": ("consistent", "good"),
    "broken": ("broken", "bad"),
    "not-judged": ("not judged", "warn"),
}
_LEAST_RATE = 1e-4  # smallest rate on the axes of a curve
_MOST_POINTS = 80
_INTRO = (
    "A certificate is an upper bound that somebody proved: no attack, known or not, does better. Attacks give bounds "
    "from the other side: what they reach has been shown, and a promise below it would be false. Between the two lies "
    "what nobody knows. That attacks fail proves nothing; one that goes beyond the promise proves it wrong."
)


def alarm(view: View) -> Markup | None:
    """Return the warning on top of the page if an attack contradicts the certificate; otherwise None."""
    if view.audit is None or not view.audit.broken:
        return None
    items = [
        tag("li", tag("strong", f"{finding.attack}, {words.SEEN_BY[finding.adversary]}"), f": {finding.evidence}")
        for finding in view.audit.broken
    ]
    text = (
        "An attack on this run reached more than the certificate allows. The promise below is not to be relied on: do "
        "not release the model, or take it back if you can, and find out what is wrong before anything else."
    )
    return section("broken", "THE PROMISE IS BROKEN", paragraph(text), tag("ul", items))


def attacks(view: View) -> Markup | None:
    """Return the section about all attacks that were made; None if there were none."""
    audit = view.audit
    if audit is None:
        return None
    parts: list[object] = [paragraph(_INTRO)]
    if audit.findings:
        parts += [_summary(audit), _drawing(audit), _description(audit), _findings(audit)]
    parts += [_games(audit), _curves(audit), _hiding(audit)]
    if audit.leakage is not None:
        parts.append(leakage(audit.leakage))
    return folded("attacked", "Attacked", *parts)


def _summary(audit: AuditView) -> Markup:
    broken, judged = len(audit.broken), sum(finding.kind == "lower-bound" for finding in audit.findings)
    if broken:
        text = f"{broken} of {judged} lower bounds contradict the certificate."
        return note(tag("strong", text), kind="warning")
    if not judged:
        return paragraph("Only estimates were made, which prove nothing either way.")
    made = f"{judged} lower bound{'s' * (judged > 1)} {'were' if judged > 1 else 'was'} measured"
    return paragraph(tag("strong", f"{made}; none contradicts the certificate."))


def _drawing(audit: AuditView) -> Markup | None:
    best = [finding for who in ADVERSARIES if (finding := audit.strongest(who)) is not None]
    if not best:
        return None
    spans = [
        _span(words.OBSERVERS[f.adversary], _bar_length(f.measured, audit), f.certified, measured_text(f)) for f in best
    ]
    scale = axis([1e-9, *(s.reached for s in spans), *(s.most for s in spans if s.most is not None)], log=False)
    said = "; ".join(
        f"{s.label}: reached {measured_text(f)}, certified {_most(f)}" for s, f in zip(spans, best, strict=True)
    )
    chart = spans_chart("by-attack", "Epsilon certified and epsilon reached", said + ".", spans, scale=scale)
    entries = [("best", "reached by an attack"), ("room", "room between"), ("broken", "reached beyond the promise")]
    shown = entries if audit.broken else entries[:2]
    caption = (
        "Epsilon against each observer that was tried. Filled: the largest lower bound of all attacks; open: the room "
        "up to what is certified, which is the thick line. The numbers: what was reached, of what is promised at most."
    )
    return figure(chart, caption, legend=legend(shown, shape="bar"))


def _span(label: str, reached: float, most: float | None, shown: str) -> Span:
    if most is None:
        return Span(label, reached, None, f"{shown}, no bound")
    return Span(label, reached, most, f"{shown} of {words.epsilon_text(most)}")


def _bar_length(measured: float, audit: AuditView) -> float:
    """Return the length to draw; an infinite epsilon is drawn beyond all others."""
    known = [v for f in audit.findings for v in (f.certified, f.measured) if v is not None and v < float("inf")]
    return min(measured, 1.25 * max(known, default=1.0) or 1.0)


def _description(audit: AuditView) -> Markup:
    """Return the picture in words."""
    items = []
    for who in ADVERSARIES:
        finding = audit.strongest(who)
        if finding is not None:
            items.append(tag("li", tag("strong", f"{words.OBSERVERS[who]}: "), _sentence(finding)))
    tried = {finding.adversary for finding in audit.findings}
    left = [words.SEEN_BY[who] for who in ADVERSARIES if who not in tried]
    if left:
        items.append(tag("li", f"Not attacked: {', '.join(left)}."))
    return tag("ul", items)


def _strongest(finding: Finding) -> str:
    """Return what the strongest attack that is known could show in as many runs; empty where that is not known."""
    most = finding.details.get("reachable")
    if most is None:
        return ""
    many = "canaries" if "canaries" in finding.details else "runs" if "runs" in finding.details else "records"
    return f" The strongest attack we know of could show at most about {words.down(most, 3)} with so many {many}."


def _sentence(finding: Finding) -> str:
    reached, delta = measured_text(finding), words.nearest(finding.delta, 12)
    sure = f"(wrong with a chance of at most {words.up(finding.alarm, 2)})"
    if finding.certified is None:
        return f"nothing is promised, and {finding.attack} shows at least {reached} at delta {delta} {sure}."
    if finding.verdict == "broken":
        return f"certified is {_most(finding)}, but {finding.attack} shows at least {reached} at delta {delta} {sure}."
    room = words.down(max(finding.room or 0.0, 0.0), 3)
    text = f"certified is at most {_most(finding)}; {finding.attack} shows at least {reached} at delta {delta} {sure}. "
    return text + f"The room between is {room}.{_strongest(finding)}"


def _findings(audit: AuditView) -> Markup:
    rows = []
    for finding in audit.findings:
        what = "at least" if finding.kind == "lower-bound" else "about"
        rows.append(
            (
                finding.attack,
                concat([words.OBSERVERS[finding.adversary], " ", code(finding.adversary)]),
                _most(finding),
                f"{what} {measured_text(finding)}",
                words.nearest(finding.delta, 12),
                badge(*_BADGES[finding.verdict]),
            )
        )
    heads = ("Attack", "Observer", "certified", "measured", "delta", "Verdict")
    caption = "Every attack. “At least” is a lower bound, “about” an estimate that proves nothing"
    return concat([table(caption, heads, rows, numbers=(2, 3, 4)), tag("h3", "Evidence"), _evidence(audit)])


def _evidence(audit: AuditView) -> Markup:
    """Return what each verdict rests on, with the whole width of the page for it."""
    items = [
        tag("li", tag("strong", f"{finding.attack}, {words.SEEN_BY[finding.adversary]}: "), finding.evidence)
        for finding in audit.findings
    ]
    return tag("ul", items)


def _games(audit: AuditView) -> Markup | None:
    """Return one picture for each game: what the certificate allows, what the attack did, and what is sure of it."""
    if not audit.games:
        return None
    intro = (
        "An attacker sees one run and says on which of two neighbouring data sets it was made, or of each canary "
        "whether it was in. The thick grey line is the most that the certificate allows any attacker; dots are what "
        "this one achieved; the thin line is sure (95% confidence): of a game, that the attack achieves so much (all "
        "points and all times together); of canaries, that the run allows so much, if it is one of this plan with some "
        "amount of noise. A dot above the grey line may be luck; the thin line above it would not be."
    )
    figures = [_game(game, f"game-{index}") for index, game in enumerate(audit.games, start=1)]
    return concat([tag("h3", "Which of two data sets was it?"), paragraph(intro), tag("div", figures, class_="panels")])


def _game(game: Roc, name: str) -> Markup:
    unit = axis([0.0, 1.0], log=False)
    allowed = zip(game.false_positives, game.allowed, strict=True)
    reached = list(zip(game.false_positives, game.true_positives, strict=True))
    sure = [(fp, tp) for fp, tp in game.sure if tp > fp]
    lines = [
        Line("allowed", [(0.0, 0.0), *allowed, (1.0, 1.0)], "other", dots=False),
        Line("sure", sure or [(0.0, 0.0), (1.0, 1.0)], "weak", dots=False),
        Line("reached", reached, "best"),
    ]
    who = words.OBSERVERS[game.finding.adversary]
    said = "; ".join(f"{fp:.2f}: {tp:.2f}" for fp, tp in _thin_points(reached)) + "."
    chart = lines_chart(
        name,
        f"{who}: true over false positives",
        said,
        lines,
        x=unit,
        y=unit,
        names=("false positives", ""),
        height=180,
    )
    entries = [("best", "reached"), ("other", "allowed"), ("weak", "surely reached")]
    return figure(chart, f"{who}: {game.finding.attack}.", legend=legend(entries, shape="line"))


def _thin_points(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return points[:: max(1, len(points) // 5)]


def _curves(audit: AuditView) -> Markup | None:
    if not audit.rocs:
        return None
    intro = (
        "A test that accuses members finds more of them the more false alarms it may raise. The certificate allows no "
        "test to be above the thick grey line; what counts is the left end, where hardly anybody is accused wrongly."
    )
    figures = [_roc(roc, f"roc-{index}") for index, roc in enumerate(audit.rocs, start=1)]
    return concat([tag("h3", "Was this record used?"), paragraph(intro), *figures, _rates(audit.rocs)])


def _roc(roc: Roc, name: str) -> Markup:
    points = list(zip(roc.false_positives, roc.true_positives, roc.allowed, strict=True))
    positive = [fp for fp, _, _ in points if fp > 0]
    low = max(_LEAST_RATE, min(positive, default=_LEAST_RATE))
    scale = axis([low, 1.0], log=True)
    kept = _thin([p for p in points if p[0] >= scale.low])
    floor = [(fp, max(tp, scale.low), max(most, scale.low)) for fp, tp, most in kept]
    lines = [
        Line("chance", [(scale.low, scale.low), (1.0, 1.0)], "weak", dots=False),
        Line("allowed", [(fp, most) for fp, _, most in floor], "other", dots=False),
        Line("measured", [(fp, tp) for fp, tp, _ in floor], "best", dots=False),
    ]
    who = words.SEEN_BY[roc.finding.adversary]
    title = f"{roc.finding.attack}: true positives over false positives"
    said = "; ".join(f"{100 * at:g}% false alarms: {_rate(roc, at)}" for at in (0.001, 0.01, 0.1)) + "."
    chart = lines_chart(name, title, said, lines, x=scale, y=scale, names=("false positives", "true positives"))
    entries = [("best", "measured"), ("other", "most that the certificate allows"), ("weak", "chance")]
    caption = f"{roc.finding.attack}, against {who}. Both axes are logarithmic."
    return figure(chart, caption, legend=legend(entries, shape="line"))


def _thin(points: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    every = -(-len(points) // _MOST_POINTS) if points else 1
    return [p for i, p in enumerate(points) if i % every == 0 or i == len(points) - 1]


def _rate(roc: Roc, alarms: float) -> str:
    rate = roc.power_at(alarms)
    return "not measured" if rate is None else f"{100 * rate[0]:.2f}% found, {100 * rate[1]:.2f}% allowed"


def _rates(rocs: tuple[Roc, ...]) -> Markup:
    rows = [
        (f"{r.finding.attack}, {words.SEEN_BY[r.finding.adversary]}", _rate(r, 0.001), _rate(r, 0.01)) for r in rocs
    ]
    heads = ("Test", "at 0.1% false alarms", "at 1% false alarms")
    return table("Members found by each test, and the most that is allowed", heads, rows)


def _hiding(audit: AuditView) -> Markup | None:
    if not audit.hiding:
        return None
    spans = [_span(row.sees, row.measured, row.certified, words.down(row.measured, 3)) for row in audit.hiding]
    known = [v for s in spans for v in (s.reached, s.most) if v is not None]
    said = "; ".join(f"{s.label}: {s.text}" for s in spans) + "."
    chart = spans_chart(
        "hidden-state", "Epsilon by what the attacker is given", said, spans, scale=axis([1e-9, *known], log=False)
    )
    intro = "The same attacker, given more or less of what happened. What hiding buys is the difference."
    caption = "Filled: epsilon that the attacker shows; open: the room up to what is certified."
    rows = [(r.sees, words.epsilon_text(r.certified), words.down(r.measured)) for r in audit.hiding]
    data = table("Epsilon by what is seen", ("seen", "certified", "shown"), rows, numbers=(1, 2))
    return concat([tag("h3", "What hiding buys, measured"), paragraph(intro), figure(chart, caption, data)])


def measured_text(finding: Finding) -> str:
    """Return the text for what an attack reached, rounded down."""
    return "∞" if finding.measured == float("inf") else words.down(finding.measured, 3)


def _most(finding: Finding) -> str:
    return words.epsilon_text(finding.certified)


_ORDER = tuple(reversed(ADVERSARIES))  # the observer that sees most comes first
_SAME = 1.0  # decibels within which a guess is no better than one that looks at nothing
_ATTACKS = {"analytic": "in closed form", "idlg": "iDLG", "cosine": "cosine matching"}


def leakage(attack: Leakage) -> Markup:
    """Return the section: similarity by observer and noise, and the pictures themselves."""
    seen = [who for who in _ORDER if attack.strongest(who)]
    cosine, blind = attack.blind
    intro = (
        f"From what an observer sees of the first round, an attack rebuilds {attack.victims} records that take part in "
        "it. The records shown are public or stand-ins. Likeness is measured at the scale that suits the attacker. A "
        f"guess that looks at nothing (the average of other records) reaches {blind:.1f} dB and a cosine of "
        f"{cosine:.2f}."
    )
    parts: list[object] = [tag("h3", "Reading records out of gradients"), paragraph(intro)]
    parts.append(tag("ul", [tag("li", _leak_sentence(attack, who)) for who in seen]))
    if attack.truth:
        parts += [_strips(attack, who) for who in _different(attack, seen)]
    parts += [_panels(attack, seen), tag("details", tag("summary", "All numbers of this attack"), _table(attack))]
    return concat(parts)


def _different(attack: Leakage, seen: Sequence[str]) -> list[str]:
    """Return observers whose pictures are worth showing, without those that equal an earlier one."""
    kept: dict[tuple[tuple[float, float], ...], str] = {}
    for who in seen:
        rows = attack.strongest(who)
        if any(row.pictures for row in rows):
            kept.setdefault(tuple((row.noise, round(row.psnr, 2)) for row in rows), who)
    return list(kept.values())


def _leak_sentence(attack: Leakage, who: str) -> Markup:
    rows = attack.strongest(who)
    bare, own = rows[0], next((row for row in rows if row.noise == 1.0), None)
    text = f"{_likeness(bare)} {_level(bare)}"
    if own is not None and own is not bare:
        text += f"; {_likeness(own)} {_level(own)}"
        text += f", {_against(own, attack.blind[1])} a guess that looks at nothing"
    return concat([tag("strong", f"{words.OBSERVERS[who]}: "), f"{text}."])


def _against(row: Leak, blind: float) -> str:
    if row.psnr > blind + _SAME:
        return "better than"
    return "about as good as" if row.psnr >= blind - _SAME else "worse than"


def _likeness(row: Leak) -> str:
    return f"{row.psnr:.1f} dB (cosine {row.cosine:.2f})"


def _level(row: Leak) -> str:
    if row.noise == 0:
        return "without noise"
    return "with the run's noise" if row.noise == 1 else f"with {words.nearest(100 * row.noise, 3)}% of the run's noise"


def _strips(leaked: Leakage, who: str) -> Markup:
    """Return one row of pictures for each level of noise, under the true ones."""
    name = words.SEEN_BY[who]
    lines: list[Markup] = [
        tag("dt", "as they are"),
        tag("dd", strip(leaked.truth, f"{len(leaked.truth)} true records")),
    ]
    for row in leaked.strongest(who):
        if row.pictures:
            attack = _ATTACKS.get(row.attack, row.attack)
            alt = f"Guesses by {name}, {attack}, {_level(row)}: {_likeness(row)}"
            lines += [tag("dt", f"{_level(row)}: {row.psnr:.0f} dB"), tag("dd", strip(row.pictures, alt))]
    caption = f"{words.OBSERVERS[who]}: what was read, with more noise from line to line."
    return figure(tag("dl", lines, class_="strips"), caption)


def _panels(attack: Leakage, seen: Sequence[str]) -> Markup | None:
    drawn = {who: [(row.noise, row.psnr) for row in attack.strongest(who) if row.noise > 0] for who in seen}
    drawn = {who: points for who, points in drawn.items() if len(points) > 1}
    if not drawn:
        return None
    everything = [point for points in drawn.values() for point in points]
    x = axis([noise for noise, _ in everything], log=True)
    y = axis([max(0.0, *(level for _, level in everything)), attack.blind[1]], log=False)
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
            mark=(attack.blind[1], "looking at nothing"),
        )
        panels.append(tag("figure", tag("figcaption", f"{words.OBSERVERS[who]}: decibels"), chart))
    return tag("div", panels, class_="panels")


def _table(attack: Leakage) -> Markup:
    rows = [
        (
            words.OBSERVERS[row.adversary],
            _ATTACKS.get(row.attack, row.attack),
            words.nearest(row.noise, 3),
            words.epsilon_text(row.epsilon),
            words.nearest(row.records, 4) if row.records else "all",
            f"{row.cosine:.3f}",
            f"{row.psnr:.1f}",
            "–" if row.labels_right is None else f"{100 * row.labels_right:.0f}%",
        )
        for row in sorted(attack.rows, key=lambda row: (_ORDER.index(row.adversary), row.attack, row.noise))
    ]
    heads = ("Observer", "attack", "noise", "epsilon", "records in it", "cosine", "decibels", "labels read")
    caption = (
        f"Mean over {attack.victims} records. Noise in multiples of the run's; epsilon is that of the whole run with "
        f"so much secret noise, at delta {words.nearest(attack.delta, 12)}"
    )
    return table(caption, heads, rows, numbers=range(2, len(heads)))
