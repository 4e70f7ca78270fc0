"""The section of the page about attacks: what is certified, what they showed, and the difference."""

from fedveil.audit.finding import Finding
from fedveil.promises import ADVERSARIES
from fedveil.report import leakage_section, words
from fedveil.report.audit_view import AuditView, Roc
from fedveil.report.blocks import badge, code, figure, legend, note, paragraph, section, table
from fedveil.report.charts import Line, Span, axis, lines_chart, spans_chart
from fedveil.report.markup import Markup, joined, tag
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
        tag("li", tag("strong", f"{found.attack}, {words.SEEN_BY[found.adversary]}"), f": {found.evidence}")
        for found in view.audit.broken
    ]
    text = (
        "An attack on this run reached more than the certificate allows. The promise below is not to be relied on: do "
        "not release the model, or take it back if you can, and find out what is wrong before anything else."
    )
    return section("broken", "THE PROMISE IS BROKEN", paragraph(text), tag("ul", items))


def attacked(view: View) -> Markup | None:
    """Return the section about all attacks that were made; None if there were none."""
    audit = view.audit
    if audit is None:
        return None
    parts: list[object] = [paragraph(_INTRO)]
    if audit.findings:
        parts += [_summary(audit), _drawing(audit), _said(audit), _findings(audit)]
    parts += [_curves(audit), _hiding(audit)]
    if audit.leakage is not None:
        parts.append(leakage_section.leakage(audit.leakage))
    return section("attacked", "Attacked", *parts)


def _summary(audit: AuditView) -> Markup:
    broken, judged = len(audit.broken), sum(found.kind == "lower-bound" for found in audit.findings)
    if broken:
        text = f"{broken} of {judged} lower bounds contradict the certificate."
        return note(tag("strong", text), kind="warning")
    if not judged:
        return paragraph("Only estimates were made, which prove nothing either way.")
    made = f"{judged} lower bound{'s' * (judged > 1)} {'were' if judged > 1 else 'was'} measured"
    return paragraph(tag("strong", f"{made}; none contradicts the certificate."))


def _drawing(audit: AuditView) -> Markup | None:
    best = [found for who in ADVERSARIES if (found := audit.strongest(who)) is not None]
    if not best:
        return None
    spans = [
        _span(words.OBSERVERS[f.adversary], _drawn(f.measured, audit), f.certified, measured_text(f)) for f in best
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


def _drawn(measured: float, audit: AuditView) -> float:
    """Return the length to draw; an infinite epsilon is drawn beyond all others."""
    known = [v for f in audit.findings for v in (f.certified, f.measured) if v is not None and v < float("inf")]
    return min(measured, 1.25 * max(known, default=1.0) or 1.0)


def _said(audit: AuditView) -> Markup:
    """Return the picture in words."""
    items = []
    for who in ADVERSARIES:
        found = audit.strongest(who)
        if found is not None:
            items.append(tag("li", tag("strong", f"{words.OBSERVERS[who]}: "), _sentence(found)))
    tried = {found.adversary for found in audit.findings}
    left = [words.SEEN_BY[who] for who in ADVERSARIES if who not in tried]
    if left:
        items.append(tag("li", f"Not attacked: {', '.join(left)}."))
    return tag("ul", items)


def _sentence(found: Finding) -> str:
    reached, delta = measured_text(found), words.plain(found.delta, 12)
    sure = f"(wrong with a chance of at most {words.up(found.alarm, 2)})"
    if found.certified is None:
        return f"nothing is promised, and {found.attack} shows at least {reached} at delta {delta} {sure}."
    if found.verdict == "broken":
        return f"certified is {_most(found)}, but {found.attack} shows at least {reached} at delta {delta} {sure}."
    room = words.down(max(found.room or 0.0, 0.0), 3)
    text = f"certified is at most {_most(found)}; {found.attack} shows at least {reached} at delta {delta} {sure}. "
    return text + f"The room between is {room}."


def _findings(audit: AuditView) -> Markup:
    rows = []
    for found in audit.findings:
        what = "at least" if found.kind == "lower-bound" else "about"
        rows.append(
            (
                found.attack,
                joined([words.OBSERVERS[found.adversary], " ", code(found.adversary)]),
                _most(found),
                f"{what} {measured_text(found)}",
                words.plain(found.delta, 12),
                badge(*_BADGES[found.verdict]),
            )
        )
    heads = ("Attack", "Observer", "certified", "measured", "delta", "Verdict")
    caption = "Every attack. “At least” is a lower bound, “about” an estimate that proves nothing"
    return joined([table(caption, heads, rows, numbers=(2, 3, 4)), tag("h3", "Evidence"), _evidence(audit)])


def _evidence(audit: AuditView) -> Markup:
    """Return what each verdict rests on, with the whole width of the page for it."""
    items = [
        tag("li", tag("strong", f"{found.attack}, {words.SEEN_BY[found.adversary]}: "), found.evidence)
        for found in audit.findings
    ]
    return tag("ul", items)


def _curves(audit: AuditView) -> Markup | None:
    if not audit.rocs:
        return None
    intro = (
        "A test that accuses members finds more of them the more false alarms it may raise. The certificate allows no "
        "test to be above the dashed line; what counts is the left end, where hardly anybody is accused wrongly."
    )
    figures = [_roc(roc, f"roc-{index}") for index, roc in enumerate(audit.rocs, start=1)]
    return joined([tag("h3", "Was this record used?"), paragraph(intro), *figures, _rates(audit.rocs)])


def _roc(roc: Roc, name: str) -> Markup:
    points = list(zip(roc.false_positives, roc.true_positives, roc.allowed, strict=True))
    positive = [fp for fp, _, _ in points if fp > 0]
    low = max(_LEAST_RATE, min(positive, default=_LEAST_RATE))
    scale = axis([low, 1.0], log=True)
    kept = _thinned([p for p in points if p[0] >= scale.low])
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


def _thinned(points: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    every = -(-len(points) // _MOST_POINTS) if points else 1
    return [p for i, p in enumerate(points) if i % every == 0 or i == len(points) - 1]


def _rate(roc: Roc, alarms: float) -> str:
    found = roc.found_at(alarms)
    return "not measured" if found is None else f"{100 * found[0]:.2f}% found, {100 * found[1]:.2f}% allowed"


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
    return joined([tag("h3", "What hiding buys, measured"), paragraph(intro), figure(chart, caption, data)])


def measured_text(found: Finding) -> str:
    """Return the text for what an attack reached, rounded down."""
    return "∞" if found.measured == float("inf") else words.down(found.measured, 3)


def _most(found: Finding) -> str:
    return words.epsilon_text(found.certified)
