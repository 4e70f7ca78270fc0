"""The sections of the page about epsilon: by observer, by bound, by delta, and by round."""

from collections.abc import Sequence

from fedveil.accounting.sampling_alone import SeenByAll
from fedveil.report import words
from fedveil.report.bounds import stability_words
from fedveil.report.charts import Axis, Kind, Line, Row, axis, legend, lines_chart, rows_chart
from fedveil.report.markup import Markup, code, concat, figure, folded, note, paragraph, table, tag
from fedveil.report.outlook import Curve
from fedveil.report.view import Observer, View
from fedveil.theory.generalization import stable_bound

_AS_IF = (
    "This run is not private, as said above. The numbers below are what its noise would be worth otherwise; they do "
    "not hold for this run."
)
_LATE = "What a round's participants risk grows with its step; its own noise and all later noise covers them. "
_UNKNOWN = (
    "Nobody learns who took part when, and the certificate rests on that. This picture shows what each round's "
    "participants would have if it were known."
)
_KNOWN = "In this run the order is public, so the certificate is that of the worst round."


def observers(view: View) -> Markup:
    """Return the section with one promise for each observer."""
    rows, drawn = [], []
    totals = {adversary: epsilon for adversary, epsilon, _ in view.data_set[1]}
    for seen in view.observers:
        name, rate = words.OBSERVERS.get(seen.adversary, seen.adversary), words.right_guesses(seen.epsilon, seen.delta)
        guess = words.percent(rate) if seen.epsilon is not None else "100%"
        by = words.BOUNDS.get(seen.certified_by or "", seen.certified_by or "–")
        label = concat([name, " ", code(seen.adversary)])
        delta = words.nearest(seen.delta, 12)
        own = words.epsilon_text(seen.epsilon)
        more = [words.epsilon_text(totals.get(seen.adversary))] if totals else []
        rows.append((label, seen.sees, own, *more, delta, guess, by))
        kind: Kind = "best" if seen is view.target else "other"
        drawn.append(Row(name, seen.epsilon, words.epsilon_text(seen.epsilon), kind))
    more = ["all runs"] if totals else []
    heads = ("Who", "sees", "epsilon", *more, "delta", "right guesses, at most", "proved by")
    caption = "The promise against each observer (a guess from even odds; a coin gets 50%)"
    known = [seen.epsilon for seen in view.observers if seen.epsilon is not None]
    picture = None
    if known:
        goal = view.plan.target.epsilon
        scale = axis([*known, goal])
        title = "Epsilon by observer"
        listed = (
            "; ".join(f"{row.label}: {row.text}" for row in drawn) + f". The plan asked for {words.nearest(goal, 12)}."
        )
        mark = (goal, f"asked for: {words.nearest(goal, 12)}")
        text = "Epsilon against each observer, smaller is better." + _log_remark(scale)
        picture = figure(rows_chart("by-observer", title, listed, drawn, scale=scale, mark=mark), text)
    intro = (
        "Whoever sees more learns more. The promise is made for one observer (marked in the picture); the others are "
        "listed so that nobody mistakes it for theirs."
    )
    return folded(
        "observers",
        "Who is looking",
        paragraph(intro),
        picture,
        table(caption, heads, rows, numbers=(2, 3, 4, 5) if totals else (2, 3, 4)),
        paragraph(view.total),
    )


def _log_remark(scale: Axis) -> str:
    return " Each grid line is ten times the one before." if scale.log and scale.high / scale.low <= 1e5 else ""


def hiding(view: View) -> Markup | None:
    """Return the section about what releasing only the last model gains; None if nothing is hidden."""
    seen = view.observer("final-model")
    if seen is None or not view.hidden:
        return None
    caption = (
        "Epsilon of the final model by each way to prove it, the least that is proved counts; dashed: the same noise "
        "with every model seen, had the records drawn their rounds themselves."
    )
    parts = _by_bound(
        view, seen, caption, "Every bound on the final model", _hiding_gain(seen, view.proof.alone), _by_sampling(view)
    )
    return folded("hiding", "What hiding the models bought", *parts)


def _by_sampling(view: View) -> list[Row]:
    """What sampling alone would give, every model seen."""
    alone = view.proof.alone
    rows = [] if alone is None else [("Poisson", alone.poisson), ("independent", alone.independent)]
    return [
        Row(f"every model seen, {name} draws", e, words.epsilon_text(e), "weak") for name, e in rows if e is not None
    ]


def bounds(view: View) -> Markup | None:
    """Return epsilon by each way to prove it, for methods that hide nothing."""
    seen = view.target
    if view.hidden or not seen.bounds:
        return None
    caption = "Epsilon by each way to prove it; the least that is proved counts."
    who = words.OBSERVERS[seen.adversary]
    intro = paragraph(f"The same run, looked at in different ways. Observer: {who[0].lower()}{who[1:]}.")
    parts = _by_bound(view, seen, caption, "Every bound", intro)
    return folded("bounds", "How it is proved", *parts)


def _by_bound(
    view: View, seen: Observer, sentence: str, caption: str, intro: Markup, more: Sequence[Row] = ()
) -> list[object]:
    shown = [b for b in seen.bounds if b.epsilon is not None]
    proved = {b.name: b.epsilon for b in shown if b.status == "certified" and b.epsilon is not None}
    best = seen.certified_by if seen.certified_by in proved else min(proved, key=lambda key: proved[key], default="")
    drawn = [
        Row(
            words.BOUNDS.get(b.name, b.name) + ("" if b.status == "certified" else f" ({b.status}, not proved)"),
            b.epsilon,
            words.epsilon_text(b.epsilon),
            "best" if b.name == best else "other" if b.status == "certified" else "weak",
        )
        for b in shown
    ] + list(more)
    rows = [
        (
            concat([words.BOUNDS.get(b.name, b.name), " ", code(b.name)]),
            _epsilon_of(b.epsilon, b.status),
            b.status,
            b.reason,
        )
        for b in seen.bounds
        if b.status != "does-not-apply"
    ]
    data = table(caption, ("Bound", "epsilon", "status", "why"), rows, numbers=(1,))
    title, listed = "Epsilon by bound", "; ".join(f"{row.label}: {row.text}" for row in drawn)
    parts: list[object] = [None if view.private else note(_AS_IF, kind="warning"), intro]
    if drawn:
        scale = axis([row.value for row in drawn if row.value is not None])
        chart = rows_chart("by-bound", title, listed + ".", drawn, scale=scale)
        parts.append(figure(chart, sentence + _log_remark(scale)))
    return [*parts, tag("details", tag("summary", "All bounds"), data, _inapplicable(seen))]


def _inapplicable(seen: Observer) -> Markup | None:
    """Return which bounds do not apply to this run, by reason."""
    reasons: dict[str, list[str]] = {}
    for bound in seen.bounds:
        if bound.status == "does-not-apply":
            reasons.setdefault(bound.reason, []).append(words.BOUNDS.get(bound.name, bound.name))
    items = [tag("li", f"{', '.join(names)}: {reason}") for reason, names in reasons.items()]
    return concat([paragraph("These do not apply here:"), tag("ul", items)]) if items else None


def _epsilon_of(epsilon: float | None, status: str) -> str:
    if epsilon is not None:
        return words.epsilon_text(epsilon)
    return "–" if status == "does-not-apply" else words.NO_GUARANTEE


def _hiding_gain(seen: Observer, alone: SeenByAll | None) -> Markup:
    """Counted from the best that secret sampling gives with every model seen: that much is not hiding's doing."""
    proved = {b.name: b.epsilon for b in seen.bounds if b.status == "certified" and b.epsilon is not None}
    least = proved.get(seen.certified_by or "", min(proved.values(), default=None))
    if least is None:
        return paragraph("No bound on the final model alone could be proved.")
    best = None if alone is None else alone.least
    if alone is None or best is None:
        return paragraph(
            f"With every model open nothing could be proved; with the last one alone, epsilon {words.up(least)}."
        )
    sentence = f"With the same noise and every model along the way seen, epsilon would be {_in_words(alone)}. "
    if least <= 0 or best / least < 1.005:
        return paragraph(
            sentence,
            f"With the last one alone it is {words.up(least)}: in this run hiding bought nothing that can be proved "
            "beyond what secret sampling gives.",
        )
    return paragraph(
        sentence,
        f"Because only the last one leaves, it is {words.up(least)}: ",
        tag("strong", f"{words.down(best / least, 3)} times smaller"),
        " than the best of these." if alone.poisson is not None or alone.independent is not None else ".",
    )


def _in_words(alone: SeenByAll) -> str:
    dealt = "no number at all" if alone.known is None else words.up(alone.known)
    listed = [f"{dealt} as the records were dealt"]
    if alone.poisson is not None:
        listed.append(f"{words.up(alone.poisson)} had every record joined rounds by secret coins of its own (Poisson)")
    if alone.independent is not None:
        listed.append(f"{words.up(alone.independent)} had it picked one round of each pass (independent draws)")
    return ", ".join(listed)


def curves(view: View) -> Markup | None:
    """Return the section that shows epsilon over delta."""
    lines = [(curve, [(d, e) for d, e in curve.points if e is not None]) for curve in view.proof.curves]
    tops = [max(e for _, e in points) for _, points in lines if points]
    if not tops:
        return None
    log = min(tops) > 0 and max(tops) > 20 * min(tops)
    # at large deltas epsilon goes to zero, which a logarithmic axis cannot show
    floor = min(tops) / 100 if log else 0.0
    drawn = [(curve, kept) for curve, points in lines if (kept := [(d, e) for d, e in points if e >= floor])]
    deltas = [d for curve in view.proof.curves for d, _ in curve.points]
    y = axis([e for _, points in drawn for _, e in points], log=log)
    main = "final-model" if view.hidden else view.plan.target.adversary
    shapes = [Line(_curve_name(c), points, "best" if c.adversary == main else "other") for c, points in drawn]
    ends = [
        f"{_curve_name(c)}: {words.up(p[0][1])} at {p[0][0]:g}, {words.up(p[-1][1])} at {p[-1][0]:g}" for c, p in drawn
    ]
    chart = lines_chart(
        "by-delta",
        "Epsilon over delta",
        "; ".join(ends) + ".",
        shapes,
        x=Axis(min(deltas), max(deltas), log=True),
        y=y,
        names=("delta", "epsilon"),
    )
    intro = (
        "Epsilon and delta belong together: whoever accepts a larger failure probability may state a smaller epsilon. "
        "It is one and the same run; the certificate names one point of the curve."
    )
    remark = None if view.private else note(_AS_IF, kind="warning")
    caption = "Epsilon at other failure probabilities" + (", by the certificate's own bound." if view.hidden else ".")
    entries = [(line.kind, line.name) for line in shapes]
    shown = figure(chart, caption, _curve_table(view.proof.curves), legend(entries, shape="line"))
    return folded("curve", "Other failure probabilities", remark, paragraph(intro), shown)


def generalising(view: View) -> Markup | None:
    """Return how much worse the model may do on new records than on those of training, by the promise alone."""
    points = [(e, d) for c in view.proof.curves if c.adversary == "final-model" for d, e in c.points if e is not None]
    found = stable_bound(points, exchanged=view.plan.target.neighbours == "replace-one")
    if not view.private or not found < 1:
        return None
    text = (
        f"A model that hardly depends on any single {view.plan.target.unit} cannot have learned them by heart: its "
        f"expected loss on new {view.plan.target.unit}s is at most {words.up(found)} greater than on those of training."
        f" It is proved for {stability_words(view.plan)}, whatever the model is."
    )
    more = concat([code("fedveil bounds --of DIR"), " looks at more points of the promise, and may say less."])
    return folded("generalising", "New records", paragraph(text), note(more))


def _curve_name(curve: Curve) -> str:
    return words.SEEN_BY.get(curve.adversary, curve.adversary)


def _curve_table(curves: tuple[Curve, ...]) -> Markup:
    deltas = sorted({d for curve in curves for d, _ in curve.points})
    columns = [dict(curve.points) for curve in curves]
    rows = [(words.nearest(d, 12), *(words.epsilon_text(column.get(d)) for column in columns)) for d in deltas]
    heads = ("delta", *(_curve_name(curve) for curve in curves))
    return table("Epsilon at each delta", heads, rows, numbers=range(len(heads)))


def places(view: View) -> Markup | None:
    """Return the section about what the participants of each round would have with a public order."""
    by_place, seen = view.proof.places, view.observer("final-model")
    if by_place is None or seen is None:
        return None
    name, title = "places", "If everyone knew who took part when"
    if not by_place.points:
        return folded(name, title, paragraph(by_place.why_not))
    points = [(float(place), e) for place, e in by_place.points if e is not None]
    level = seen.least
    intro = _LATE + (_UNKNOWN if view.plan.run.order == "secret" else _KNOWN)
    mark = None if level is None else (level, f"certificate: {words.up(level)}")
    parts: list[object] = [None if view.private else note(_AS_IF, kind="warning"), paragraph(intro)]
    rows = [(str(place), words.epsilon_text(e)) for place, e in by_place.points]
    data = table("Epsilon of a unit by its round", ("round", "epsilon"), rows, numbers=(0, 1))
    if points:
        y = axis([e for _, e in points] + ([] if level is None else [level]), log=False)
        x = Axis(1.0, float(view.plan.run.rounds), whole=True)
        said = f"From {words.up(points[0][1])} in round 1 to {words.up(points[-1][1])} in the last round."
        chart = lines_chart(
            "by-place",
            "Epsilon by round",
            said,
            [Line("", points, "other")],
            x=x,
            y=y,
            names=("round", "epsilon"),
            mark=mark,
        )
        caption = (
            f"Epsilon at delta {words.nearest(by_place.delta, 12)} of those whose turn is in this round of a pass."
        )
        return folded(name, title, *parts, figure(chart, caption, data))
    return folded(name, title, *parts, data)
