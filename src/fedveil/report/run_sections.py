"""The parts of the page about the run: how well the model does, its schedule, its assumptions, and how to check it.

Where a method gives each client its own guarantee, one section lists them.
"""

from collections.abc import Sequence

from fedveil.certificate.assumptions import Assumption
from fedveil.planning.plan import Plan
from fedveil.planning.selection import Selection
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.trust import Trust
from fedveil.report import quality_sections, words
from fedveil.report.charts import Axis, Line, Row, axis, lines_chart, rows_chart
from fedveil.report.markup import (
    Markup,
    badge,
    code,
    concat,
    figure,
    folded,
    folded_numbers,
    note,
    paragraph,
    section,
    table,
    tag,
)
from fedveil.report.quality_sections import counted_parts, counted_summary
from fedveil.report.view import Schedule, Score, Utility, View
from fedveil.stages.evaluate.words import fact_rows as evaluation_facts
from fedveil.stages.prepare.request import fact_rows
from fedveil.stages.train.registry import facts_of, title_of

_NAMES = {
    "released model": "released model (private)",
    "non-private": "plain rounds without noise",
    "centralised": "all data in one place, no noise",
}
_METRICS = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "brier": "Brier score",
    "loss": "mean loss",
    "r2": "R²",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "deviance": "Poisson deviance",
    "concordance": "concordance index",
}
_UNSIGNED = (
    "Nobody signed the certificate, so whoever rewrites all records can forge it: compare the plan's hash with the "
    "data holder's."
)


_UNMEASURED = (
    "Nobody knows: no records were held out. Add [data.held_out] to the study, or measure the model on other records "
    "with fedveil evaluate."
)


def quality(view: View) -> Markup:
    """Return how well the model does, in a sentence and a picture."""
    title, measured = "How well the model does", view.utility
    if measured is None:
        if view.counted is not None:
            return section("quality", title, *counted_summary(view.counted))
        text = _UNMEASURED
        if view.plan.held_out.private and not view.plan.selection:
            text = (
                f"{view.plan.held_out.records:,} held-out records were not declared public: nothing is said about "
                "them. Measure the model on them privately with fedveil evaluate."
            )
        return section("quality", title, paragraph(text))
    if measured.public:
        source = paragraph(f"Measured on {measured.records:,} test records that were declared public.")
    else:
        text = f"Measured on {measured.records:,} held-out records that were not declared public, without noise: "
        text += "the promise does not cover these numbers, which are charged as infinite."
        source = note(text, kind="warning")
    main = next((key for key in ("accuracy", "mae", "loss") if key in measured.scores[0].values), None)
    chart = None if main is None else _bars(measured, main)
    useless = None if measured.useless is None else note(measured.useless, kind="warning")
    return section("quality", title, useless, source, _summary(measured), chart)


def utility(view: View) -> Markup | None:
    """Return all scores, class by class and client by client, to unfold; None where nothing was measured."""
    measured = view.utility
    if measured is None:
        return None if view.counted is None else folded("utility", "All scores", *counted_parts(view.counted))
    counted = () if view.counted is None else counted_parts(view.counted)
    return folded(
        "utility",
        "All scores",
        _score_table(measured),
        quality_sections.by_class(measured.quality),
        quality_sections.calibration(measured.quality),
        _clients(measured),
        *counted,
    )


def _bars(measured: Utility, metric: str) -> Markup:
    scored = [score for score in measured.scores if metric in score.values]
    share = metric == "accuracy"
    rows = [
        Row(
            _NAMES.get(score.name, score.name),
            score.values[metric],
            _score_text(metric, score.values[metric]),
            "best" if score is measured.scores[0] else "weak" if score is measured.constant else "other",
            _interval(score, metric, measured.records),
        )
        for score in scored
    ]
    ends = [end for row in rows for end in row.interval or ()]
    scale = Axis(0.0, 1.0) if share else axis([*(score.values[metric] for score in scored), *ends], log=False)
    listed = "; ".join(f"{row.label}: {row.text}" for row in rows) + "."
    caption = f"{_METRICS[metric].capitalize()} on the test records, {'larger' if share else 'smaller'} is better."
    caption += " The thin lines are 95% intervals." if any(row.interval for row in rows) else ""
    caption += "" if measured.constant is None else " The best constant answer is that of the test records themselves."
    return figure(rows_chart("by-model", _METRICS[metric].capitalize(), listed, rows, scale=scale), caption)


def _summary(measured: Utility) -> Markup | None:
    accuracy = measured.scores[0].values.get("accuracy")
    if accuracy is None or not measured.records:
        return None
    low, high = words.wilson(accuracy, measured.records)
    text = f"The released model is right on {100 * accuracy:.1f}% of them "
    text += f"(95% interval {100 * low:.1f}% to {100 * high:.1f}%)."
    if measured.constant is not None and "accuracy" in measured.constant.values:
        text += f" {measured.constant.name[0].upper()}{measured.constant.name[1:]} is right on "
        text += f"{100 * measured.constant.values['accuracy']:.1f}%."
    without_privacy = next((s.values.get("accuracy") for s in measured.scores if s.name == "non-private"), None)
    if without_privacy is not None:
        text += f" Plain rounds without noise reach {100 * without_privacy:.1f}%"
        gap = without_privacy - accuracy
        text += f", {abs(100 * gap):.1f} points {'more' if gap >= 0 else 'less'}."
    return paragraph(text)


def _score_text(metric: str, value: float) -> str:
    return f"{100 * value:.1f}%" if metric == "accuracy" else words.nearest(value)


def _score_table(measured: Utility) -> Markup:
    metrics = [key for key in _METRICS if any(key in score.values for score in measured.scores)]
    metrics = [key for key in metrics if key != "loss" or "log_loss" not in metrics]
    rows = [
        (_NAMES.get(s.name, s.name), *(_cell(s, key, measured.records) for key in metrics)) for s in measured.scores
    ]
    heads = ("model", *(_METRICS[key] for key in metrics))
    return table(f"Scores on {measured.records:,} test records", heads, rows, numbers=range(1, len(heads)))


def _cell(score: Score, metric: str, records: int) -> object:
    if metric not in score.values:
        return "–"
    text = _score_text(metric, score.values[metric])
    ends = _interval(score, metric, records)
    if ends is None:
        return text
    low, high = (f"{100 * end:.1f}" if metric == "accuracy" else words.nearest(end) for end in ends)
    return concat([text, " ", tag("span", f"({low} to {high})", class_="interval")])


def _interval(score: Score, metric: str, records: int) -> tuple[float, float] | None:
    """As the run worked it out; for accuracies of others, Wilson's."""
    if metric in score.intervals or metric != "accuracy" or not records:
        return score.intervals.get(metric)
    return words.wilson(score.values[metric], records)


def _clients(measured: Utility) -> Markup | None:
    if not measured.per_client:
        return None
    ordered = sorted(measured.per_client.items(), key=lambda item: item[1])
    score = "accuracy" if measured.task == "classification" else "score"
    text = f"By client the {score} lies between {_client_text(measured, ordered[0][1])} ({ordered[0][0]}) and "
    text += f"{_client_text(measured, ordered[-1][1])} ({ordered[-1][0]})."
    shown = ordered if len(ordered) <= 60 else [*ordered[:30], *ordered[-30:]]
    caption = f"By client, worst first{'' if len(shown) == len(ordered) else ' (the thirty worst and the thirty best)'}"
    rows = [(name, _client_text(measured, value)) for name, value in shown]
    data = table(caption, ("client", score), rows, numbers=(1,))
    return concat([paragraph(text), tag("details", tag("summary", "Every client"), data)])


def _client_text(measured: Utility, value: float) -> str:
    return f"{100 * value:.1f}%" if measured.task == "classification" else words.nearest(value)


def schedule(view: View) -> Markup:
    """Return the section about how the model was trained."""
    plan, planned = view.plan, view.proof.schedule
    if planned is None:
        kind = plan.method.kind
        text = f"By {title_of(kind)}, as the plan says:"
        facts = [*_facts(plan), *facts_of(plan.method, plan.setup), ("grid of the noise", f"2^{plan.grid}")]
        return folded("schedule", "How it was trained", paragraph(text), table("The plan", ("what", "value"), facts))
    run, unit = plan.run, plan.target.counted
    facts = [
        *_facts(plan),
        (f"gradient of a {unit}, at most", words.nearest(run.lipschitz)),
        ("model kept within radius", _given(plan.model.radius)),
        ("noise", f"{run.noise}, on a grid of step 2^{plan.grid}"),
    ]
    series = [
        ("step", "step size", planned.step),
        ("batch", f"{unit}s in the round", planned.batch),
        ("noise", "noise per unit (standard deviation)", planned.noise),
        ("added", "noise added to the model", planned.added),
    ]
    panels: list[object] = []
    if run.total > 1:
        panels = _panels(planned, series)
    else:
        facts += [(label, words.nearest(values[0])) for _, label, values in series]
    facts_table = table("The plan", ("what", "value"), facts)
    return folded("schedule", "How it was trained", paragraph(_dealt(view)), *panels, facts_table)


def _facts(plan: Plan) -> list[tuple[str, str]]:
    """Return the facts that every plan has."""
    data = plan.data
    return [
        ("records", f"{data.records:,}, of {data.clients:,} client{'s' * (data.clients > 1)}"),
        ("features", f"{data.features:,}, every row of norm {words.nearest(data.bound)} at most"),
        ("model", f"{plan.model.kind}, {plan.dimension:,} parameters"),
        ("l2 term", _given(plan.model.l2)),
        *([("who adds up", _trust_text(plan.trust))] if plan.method.served else []),
        *fact_rows(plan.preparation, plan.target),
        *evaluation_facts(plan.evaluation, plan.target),
        *([("selected", _selection_text(plan.selection))] if plan.selection else []),
    ]


def _selection_text(selection: Selection) -> str:
    """How the released model was selected, in words."""
    return (
        f"the best of a random number of trials ({words.nearest(selection.law.mean)} expected), by {selection.metric} "
        f"on {selection.score} records; candidate {selection.chosen + 1} of {len(selection.candidates)}, whose numbers "
        "are shown here"
    )


def _trust_text(trust: Trust) -> str:
    """Whom the clients trust with their sums, in words."""
    keys = {None: "", "clients": ", the clients hold the key", "third-party": ", a third party holds the key"}
    spare = f"; a round tolerates {trust.dropouts:,} missing and {trust.colluders:,} colluding clients"
    shared = f"{keys[trust.key_holder]}{spare}"
    more = {"central": " with every update", "shares": shared, "local": f"{shared}; each adds all of its noise"}
    return f"{trust.server}{more[trust.noise]}"


def _panels(planned: Schedule, series: Sequence[tuple[str, str, Sequence[float]]]) -> list[object]:
    drawn = [_panel(name, label, planned.rounds, values) for name, label, values in series]
    heads = ("round", *(label for _, label, _ in series))
    kept = range(0, len(planned.rounds), max(1, len(planned.rounds) // 20))
    rows = [(str(planned.rounds[i]), *(words.nearest(values[i]) for _, _, values in series)) for i in kept]
    data = table("The schedule (some of the rounds)", heads, rows, numbers=range(5))
    numbers = folded_numbers("The numbers of these pictures", data)
    return [tag("div", drawn, class_="panels"), numbers]


def _dealt(view: View) -> str:
    plan, run = view.plan, view.plan.run
    unit, steps = plan.target.counted, f"{run.total:,} step{'s' * (run.total > 1)}"
    if run.sampled:
        text = _draws_text(run, plan.units, unit)
    elif run.rounds == 1:
        text = (
            f"All of the {plan.units:,} {unit}s are used in every step, and there {'is' if run.total == 1 else 'are'} "
        )
        text += f"{steps}. "
    else:
        passes = {1: "once", 2: "twice"}.get(run.passes, f"{run.passes} times")
        text = f"{plan.units:,} {unit}s were dealt into {run.rounds:,} rounds and used {passes}: {steps} in all. "
        text += "Who took part in which round is secret. " if run.order == "secret" else "The order is public. "
    return text + "Each step moves the model by the average of the round's clipped gradients and adds noise."


def _draws_text(run: LastIterate, units: int, unit: str) -> str:
    """Return how units came into rounds that they drew for themselves."""
    if run.order == "poisson":
        how = f"joined each of {run.total:,} rounds with chance {words.nearest(run.rate or 1.0)}, by a coin of its own"
    else:
        times = {1: "the pass", 2: "each of two passes"}.get(run.passes, f"each of {run.passes:,} passes")
        how = f"picked one of the {run.rounds:,} rounds of {times}, by its own draw"
    text = f"Each of {units:,} {unit}s {how}; nobody else learnt which. A round has about {run.batch:,} of them, and "
    return text + "divides by that number whoever joined. "


def _given(value: float | None) -> str:
    return "none" if value is None else words.nearest(value)


def _panel(name: str, label: str, rounds: Sequence[int], values: Sequence[float]) -> Markup:
    points = [(float(r), v) for r, v in zip(rounds, values, strict=True)]
    y = axis(values, parts=3)
    said = f"From {words.nearest(values[0])} in round 1 to {words.nearest(values[-1])} in round {rounds[-1]}."
    x = Axis(1.0, float(rounds[-1]), whole=True)
    lines = [Line(label, points, "other", dots=len(points) <= 12)]
    chart = lines_chart(f"over-rounds-{name}", label, said, lines, x=x, y=y, names=("round", ""), height=120)
    return tag("figure", tag("figcaption", label), chart)


def assumptions(view: View) -> Markup:
    """Return the section about what the promise assumes."""
    needed: dict[Assumption, list[str]] = {}
    for seen in view.observers:
        for row in seen.assumptions:
            needed.setdefault(row, []).append(seen.adversary)
    declared = [row for row in needed if is_declared(row)]
    target = [row for row in declared if view.target.adversary in needed[row]]
    rows = [
        (row.name, row.value, _enforcement(row), _needed_against(names, len(view.observers)))
        for row, names in needed.items()
    ]
    text = f"The promises stand on {len(needed)} assumptions. {len(needed) - len(declared)} of them are kept by the "
    text += f"program or by the plan; {len(declared)} are "
    count = (
        "none of these is needed"
        if not target
        else f"{len(target)} of these {'is' if len(target) == 1 else 'are'} needed"
    )
    last = f" only: no program can check them, so a person has to answer for them ({count} for the main promise)."
    caption = "Every assumption, and which observers' promises need it"
    heads = ("Assumption", "In this run", "Kept by", "Needed against")
    intro = paragraph(text, badge("declared", "warn"), last)
    return folded("assumptions", "What the promise rests on", intro, table(caption, heads, rows))


def is_declared(row: Assumption) -> bool:
    """Return whether a person, not the program, has to answer for it."""
    return row.enforced_by.startswith("declared") or row.value == "declared"


def _enforcement(row: Assumption) -> object:
    if not is_declared(row):
        return row.enforced_by
    rest = row.enforced_by.removeprefix("declared").lstrip(": ")
    return concat([badge("declared", "warn"), f" {rest}" if rest else None])


def _needed_against(names: Sequence[str], all_of: int) -> object:
    return "everyone" if len(names) == all_of else concat([code(names[0]), *([", ", code(n)] for n in names[1:])])


def checking(view: View) -> Markup:
    """Return the section about how to check the certificate."""
    digest = next((row.sha256 for row in view.released if row.sha256), None)
    steps = [
        concat(
            [
                "Work the certificate out again from the run's records (no data, no training code), and compare:",
                tag("pre", code("fedveil certify DIR")),
                "where DIR is the folder that holds this page. It says whether every number agrees, and refuses "
                "records that do not agree with each other. " + ("" if view.signed.signer else _UNSIGNED),
            ]
        )
    ]
    if view.signed.signer is not None:
        state = "is valid" if view.signed.valid else "is NOT valid: the certificate was changed since"
        steps.append(
            concat(
                [
                    f"Check who signed. The signature {state}. It names the key ",
                    code(view.signed.signer),
                    ", and whose key that is only its owner can say. With the public key that the signer gave you:",
                    tag("pre", code("fedveil certify DIR --signer KEY.pub")),
                ]
            )
        )
    if digest is not None:
        inside = ["Compare the model with the one that was certified:", tag("pre", code("sha256sum DIR/model.npz"))]
        steps.append(concat([*inside, "must print ", code(digest)]))
    steps.append(concat(["Write this page again:", tag("pre", code("fedveil report DIR"))]))
    rows = [
        ("fedveil", code(view.version)),
        ("run", code(view.run)),
        ("plan (SHA-256)", code(view.plan_hash)),
        *([("model.npz (SHA-256)", code(digest))] if digest is not None else []),
        ("signed by", code(view.signed.signer) if view.signed.signer and view.signed.valid else "nobody"),
    ]
    facts = table("What this page is about", ("what", "value"), rows)
    return folded("checking", "Check it yourself", tag("ol", [tag("li", step) for step in steps]), facts)


_MOST_BARS = 16
_MOST_ROWS = 60


def clients(view: View) -> Markup | None:
    """Return each client's own epsilon; None if all clients have the same promise."""
    if not view.clients:
        return None
    what = "its records together" if view.plan.target.unit == "client" else "any one of its records"
    delta = words.nearest(view.target.delta, 12)
    intro = paragraph(
        f"Clients differ in what they risk. The promise above is for all of them; here is each one's own, for {what}, "
        f"at delta {delta}, against the same observer."
    )
    ordered = sorted(view.clients, key=lambda row: (row[1] is not None, -(row[1] or 0.0), row[0]))
    return folded("clients", "Client by client", intro, _extremes(ordered), _drawing(ordered))


def _extremes(ordered: list[tuple[int, float | None]]) -> Markup | None:
    without = sum(epsilon is None for _, epsilon in ordered)
    known = [(client, epsilon) for client, epsilon in ordered if epsilon is not None]
    if not known:
        return paragraph("No client has a guarantee.")
    (worst, most), (best, least) = known[0], known[-1]
    text = f"Epsilon lies between {words.up(least)} ({_name(best)}) and {words.up(most)} ({_name(worst)})."
    if without:
        text += f" For {without:,} client{'s' * (without > 1)} there is no guarantee."
    return paragraph(text)


def _drawing(ordered: list[tuple[int, float | None]]) -> Markup:
    shown = ordered if len(ordered) <= _MOST_ROWS else [*ordered[: _MOST_ROWS // 2], *ordered[-_MOST_ROWS // 2 :]]
    half = f" (the {_MOST_ROWS // 2} largest and the {_MOST_ROWS // 2} smallest)" if len(shown) < len(ordered) else ""
    rows = [(_name(client), words.epsilon_text(epsilon)) for client, epsilon in shown]
    data = table(f"Epsilon of each client{half}", ("client", "epsilon"), rows, numbers=(1,))
    known = [epsilon for _, epsilon in ordered if epsilon is not None]
    if not known:
        return data
    title, said = "Epsilon by client", f"From {words.up(known[0])} down to {words.up(known[-1])}."
    if len(ordered) <= _MOST_BARS:
        bars = [Row(_name(client), epsilon, words.epsilon_text(epsilon)) for client, epsilon in ordered]
        chart = rows_chart("by-client", title, said, bars, scale=axis(known))
        return figure(chart, "Epsilon of each client, largest first; smaller is better.", data)
    points = [(float(rank), epsilon) for rank, epsilon in enumerate(known, start=1)]
    line = [Line("", points, "other", dots=False)]
    x = Axis(1.0, float(len(known)) if len(known) > 1 else 2.0, whole=True)
    chart = lines_chart("by-client", title, said, line, x=x, y=axis(known), names=("clients", "epsilon"))
    return figure(chart, "Epsilon of all clients, largest first; smaller is better.", data)


def _name(client: int) -> str:
    return f"client {client + 1}"
