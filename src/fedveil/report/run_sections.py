"""The parts of the page about the run: how well the model does, its schedule, its assumptions, and how to check it."""

from collections.abc import Sequence

from fedveil.algorithms.registry import title_of
from fedveil.certificate.assumptions import Assumption
from fedveil.evaluate.words import fact_rows as evaluation_facts
from fedveil.mechanism import LastIterate
from fedveil.plan import Plan
from fedveil.prepare.words import fact_rows
from fedveil.report import quality_section, words
from fedveil.report.blocks import badge, code, figure, folded_numbers, note, paragraph, section, table
from fedveil.report.charts import Axis, Line, Row, axis, lines_chart, rows_chart
from fedveil.report.counted_section import counted_parts
from fedveil.report.markup import Markup, joined, tag
from fedveil.report.view import Schedule, Score, Utility, View
from fedveil.selection import Selection
from fedveil.trust import Trust

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


def utility(view: View) -> Markup:
    """Return the section about how well the model does."""
    found = view.utility
    if found is None:
        if view.counted is not None:
            return section("utility", "How well the model does", *counted_parts(view.counted))
        text = "No test records were set aside, so nothing is said about how well the model does."
        if view.plan.test_records and not view.plan.test_public and view.plan.selection is None:
            text = f"{view.plan.test_records:,} held-out records were not declared public: nothing is said about them."
        return section("utility", "How well the model does", paragraph(text))
    if found.public:
        source = paragraph(f"Measured on {found.records:,} test records that were declared public.")
    else:
        text = f"Measured on {found.records:,} held-out records that were not declared public, without noise: "
        text += "the promise does not cover these numbers, which are charged as infinite."
        source = note(text, kind="warning")
    main = next((key for key in ("accuracy", "mae", "loss") if key in found.scores[0].values), None)
    chart = None if main is None else _bars(found, main)
    useless = None if found.useless is None else note(found.useless, kind="warning")
    parts = (useless, _summary(found), chart, _score_table(found), quality_section.by_class(found.quality))
    more = quality_section.calibrated(found.quality)
    counted = () if view.counted is None else counted_parts(view.counted)
    return section("utility", "How well the model does", source, *parts, more, _clients(found), *counted)


def _bars(found: Utility, metric: str) -> Markup:
    scored = [score for score in found.scores if metric in score.values]
    share = metric == "accuracy"
    rows = [
        Row(
            _NAMES.get(score.name, score.name),
            score.values[metric],
            _score_text(metric, score.values[metric]),
            "best" if score is found.scores[0] else "weak" if score is found.constant else "other",
            _interval(score, metric, found.records),
        )
        for score in scored
    ]
    ends = [end for row in rows for end in row.interval or ()]
    scale = Axis(0.0, 1.0) if share else axis([*(score.values[metric] for score in scored), *ends], log=False)
    listed = "; ".join(f"{row.label}: {row.text}" for row in rows) + "."
    caption = f"{_METRICS[metric].capitalize()} on the test records, {'larger' if share else 'smaller'} is better."
    caption += " The thin lines are 95% intervals." if any(row.interval for row in rows) else ""
    caption += "" if found.constant is None else " The best constant answer is that of the test records themselves."
    return figure(rows_chart("by-model", _METRICS[metric].capitalize(), listed, rows, scale=scale), caption)


def _summary(found: Utility) -> Markup | None:
    accuracy = found.scores[0].values.get("accuracy")
    if accuracy is None or not found.records:
        return None
    low, high = words.wilson(accuracy, found.records)
    text = f"The released model is right on {100 * accuracy:.1f}% of them "
    text += f"(95% interval {100 * low:.1f}% to {100 * high:.1f}%)."
    if found.constant is not None and "accuracy" in found.constant.values:
        text += f" {found.constant.name[0].upper()}{found.constant.name[1:]} is right on "
        text += f"{100 * found.constant.values['accuracy']:.1f}%."
    plain = next((s.values.get("accuracy") for s in found.scores if s.name == "non-private"), None)
    if plain is not None:
        text += f" Plain rounds without noise reach {100 * plain:.1f}%"
        text += f", {abs(100 * (plain - accuracy)):.1f} points {'more' if plain >= accuracy else 'less'}."
    return paragraph(text)


def _score_text(metric: str, value: float) -> str:
    return f"{100 * value:.1f}%" if metric == "accuracy" else words.plain(value)


def _score_table(found: Utility) -> Markup:
    metrics = [key for key in _METRICS if any(key in score.values for score in found.scores)]
    metrics = [key for key in metrics if key != "loss" or "log_loss" not in metrics]
    rows = [(_NAMES.get(s.name, s.name), *(_cell(s, key, found.records) for key in metrics)) for s in found.scores]
    heads = ("model", *(_METRICS[key] for key in metrics))
    return table(f"Scores on {found.records:,} test records", heads, rows, numbers=range(1, len(heads)))


def _cell(score: Score, metric: str, records: int) -> object:
    if metric not in score.values:
        return "–"
    text = _score_text(metric, score.values[metric])
    ends = _interval(score, metric, records)
    if ends is None:
        return text
    low, high = (f"{100 * end:.1f}" if metric == "accuracy" else words.plain(end) for end in ends)
    return joined([text, " ", tag("span", f"({low} to {high})", class_="interval")])


def _interval(score: Score, metric: str, records: int) -> tuple[float, float] | None:
    """As the run worked it out; for accuracies of others, Wilson's."""
    if metric in score.intervals or metric != "accuracy" or not records:
        return score.intervals.get(metric)
    return words.wilson(score.values[metric], records)


def _clients(found: Utility) -> Markup | None:
    if not found.per_client:
        return None
    ordered = sorted(found.per_client.items(), key=lambda item: item[1])
    score = "accuracy" if found.task == "classification" else "score"
    text = f"By client the {score} lies between {_client_text(found, ordered[0][1])} ({ordered[0][0]}) and "
    text += f"{_client_text(found, ordered[-1][1])} ({ordered[-1][0]})."
    shown = ordered if len(ordered) <= 60 else [*ordered[:30], *ordered[-30:]]
    caption = f"By client, worst first{'' if len(shown) == len(ordered) else ' (the thirty worst and the thirty best)'}"
    rows = [(name, _client_text(found, value)) for name, value in shown]
    data = table(caption, ("client", score), rows, numbers=(1,))
    return joined([paragraph(text), tag("details", tag("summary", "Every client"), data)])


def _client_text(found: Utility, value: float) -> str:
    return f"{100 * value:.1f}%" if found.task == "classification" else words.plain(value)


def schedule(view: View) -> Markup:
    """Return the section about how the model was trained."""
    plan, found = view.plan, view.schedule
    if found is None:
        kind = plan.method.kind
        text = f"By {title_of(kind)}, as the plan says:"
        facts = [*_facts(plan), *plan.method.facts(plan.setup), ("grid of the noise", f"2^{plan.grid}")]
        return section("schedule", "How it was trained", paragraph(text), table("The plan", ("what", "value"), facts))
    run, unit = plan.run, plan.target.unit
    facts = [
        *_facts(plan),
        (f"gradient of a {unit}, at most", words.plain(run.lipschitz)),
        ("model kept within radius", _given(plan.model.radius)),
        ("noise", f"{run.noise}, on a grid of step 2^{plan.grid}"),
    ]
    series = [
        ("step", "step size", found.step),
        ("batch", f"{unit}s in the round", found.batch),
        ("noise", "noise per unit (standard deviation)", found.noise),
        ("added", "noise added to the model", found.added),
    ]
    panels: list[object] = []
    if run.total > 1:
        panels = _panels(found, series)
    else:
        facts += [(label, words.plain(values[0])) for _, label, values in series]
    told = table("The plan", ("what", "value"), facts)
    return section("schedule", "How it was trained", paragraph(_dealt(view)), *panels, told)


def _facts(plan: Plan) -> list[tuple[str, str]]:
    """Return the facts that every plan has."""
    data = plan.data
    return [
        ("records", f"{data.records:,}, of {data.clients:,} client{'s' * (data.clients > 1)}"),
        ("features", f"{data.features:,}, every row of norm {words.plain(data.bound)} at most"),
        ("model", f"{plan.model.kind}, {plan.dimension:,} parameters"),
        ("l2 term", _given(plan.model.l2)),
        *([("who adds up", _trusted(plan.trust))] if plan.method.served else []),
        *([] if plan.preparation is None else fact_rows(plan.preparation, plan.target)),
        *([] if plan.evaluation is None else evaluation_facts(plan.evaluation, plan.target)),
        *([] if plan.selection is None else [("selected", _selected(plan.selection))]),
    ]


def _selected(selection: Selection) -> str:
    """How the released model was selected, in words."""
    return (
        f"the best of a random number of trials ({words.plain(selection.law.mean)} expected), by {selection.metric} on "
        f"{selection.score} records; candidate {selection.chosen + 1} of {len(selection.candidates)}, whose numbers "
        "are shown here"
    )


def _trusted(trust: Trust) -> str:
    """Whom the clients trust with their sums, in words."""
    keys = {None: "", "clients": ", the clients hold the key", "third-party": ", a third party holds the key"}
    spare = f"; a round tolerates {trust.dropouts:,} missing and {trust.colluders:,} colluding clients"
    more = {"central": " with every update", "shares": f"{keys[trust.key_holder]}{spare}"}
    return f"{trust.server}{more[trust.noise]}"


def _panels(found: Schedule, series: Sequence[tuple[str, str, Sequence[float]]]) -> list[object]:
    drawn = [_panel(name, label, found.rounds, values) for name, label, values in series]
    heads = ("round", *(label for _, label, _ in series))
    kept = range(0, len(found.rounds), max(1, len(found.rounds) // 20))
    rows = [(str(found.rounds[i]), *(words.plain(values[i]) for _, _, values in series)) for i in kept]
    data = table("The schedule (some of the rounds)", heads, rows, numbers=range(5))
    numbers = folded_numbers("The numbers of these pictures", data)
    return [tag("div", drawn, class_="panels"), numbers]


def _dealt(view: View) -> str:
    plan, run = view.plan, view.plan.run
    unit, steps = plan.target.unit, f"{run.total:,} step{'s' * (run.total > 1)}"
    if run.sampled:
        text = _drawn(run, plan.units, unit)
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


def _drawn(run: LastIterate, units: int, unit: str) -> str:
    """Return how units came into rounds that they drew for themselves."""
    if run.order == "poisson":
        how = f"joined each of {run.total:,} rounds with chance {words.plain(run.rate or 1.0)}, by a coin of its own"
    else:
        times = {1: "the pass", 2: "each of two passes"}.get(run.passes, f"each of {run.passes:,} passes")
        how = f"picked one of the {run.rounds:,} rounds of {times}, by its own draw"
    text = f"Each of {units:,} {unit}s {how}; nobody else learnt which. A round has about {run.batch:,} of them, and "
    return text + "divides by that number whoever joined. "


def _given(value: float | None) -> str:
    return "none" if value is None else words.plain(value)


def _panel(name: str, label: str, rounds: Sequence[int], values: Sequence[float]) -> Markup:
    points = [(float(r), v) for r, v in zip(rounds, values, strict=True)]
    y = axis(values, parts=3)
    said = f"From {words.plain(values[0])} in round 1 to {words.plain(values[-1])} in round {rounds[-1]}."
    x = Axis(1.0, float(rounds[-1]), whole=True)
    lines = [Line(label, points, "other", dots=len(points) <= 12)]
    chart = lines_chart(f"over-rounds-{name}", label, said, lines, x=x, y=y, names=("round", ""), height=120)
    return tag("figure", tag("figcaption", label), chart)


def assumptions(view: View) -> Markup:
    """Return the section about what the promise assumes."""
    found: dict[Assumption, list[str]] = {}
    for seen in view.observers:
        for row in seen.assumptions:
            found.setdefault(row, []).append(seen.adversary)
    declared = [row for row in found if is_declared(row)]
    target = [row for row in declared if view.target.adversary in found[row]]
    rows = [(row.name, row.value, _enforced(row), _needed(names, len(view.observers))) for row, names in found.items()]
    text = (
        f"The promises stand on {len(found)} assumptions. {len(found) - len(declared)} of them are kept by the program "
    )
    text += f"or by the plan; {len(declared)} are "
    count = (
        "none of these is needed"
        if not target
        else f"{len(target)} of these {'is' if len(target) == 1 else 'are'} needed"
    )
    last = f" only: no program can check them, so a person has to answer for them ({count} for the main promise)."
    caption = "Every assumption, and which observers' promises need it"
    heads = ("Assumption", "In this run", "Kept by", "Needed against")
    intro = paragraph(text, badge("declared", "warn"), last)
    return section("assumptions", "What the promise rests on", intro, table(caption, heads, rows))


def is_declared(row: Assumption) -> bool:
    """Return whether a person, not the program, has to answer for it."""
    return row.enforced_by.startswith("declared") or row.value == "declared"


def _enforced(row: Assumption) -> object:
    if not is_declared(row):
        return row.enforced_by
    rest = row.enforced_by.removeprefix("declared").lstrip(": ")
    return joined([badge("declared", "warn"), f" {rest}" if rest else None])


def _needed(names: Sequence[str], all_of: int) -> object:
    return "everyone" if len(names) == all_of else joined([code(names[0]), *([", ", code(n)] for n in names[1:])])


def checking(view: View) -> Markup:
    """Return the section about how to check the certificate."""
    digest = next((row.sha256 for row in view.released if row.sha256), None)
    steps = [
        joined(
            [
                "Work the certificate out again from the run's records (no data, no training code), and compare:",
                tag("pre", code("fedveil certify DIR")),
                "where DIR is the folder that holds this page. It says whether every number agrees, and refuses "
                "records that do not agree with each other. "
                + ("" if view.signer else "Nobody signed the certificate, so who rewrites all records can forge them: ")
                + ("" if view.signer else "compare the plan's hash with the data holder's."),
            ]
        )
    ]
    if view.signer is not None:
        state = "fits this certificate" if view.fits else "does NOT fit this certificate, which was changed since"
        steps.append(
            joined(
                [
                    f"Check who signed. The signature {state}. It names the key ",
                    code(view.signer),
                    ", and whose key that is only its owner can say. With the public key that the signer gave you:",
                    tag("pre", code("fedveil certify DIR --signer KEY.pub")),
                ]
            )
        )
    if digest is not None:
        inside = ["Compare the model with the one that was certified:", tag("pre", code("sha256sum DIR/model.npz"))]
        steps.append(joined([*inside, "must print ", code(digest)]))
    steps.append(joined(["Write this page again:", tag("pre", code("fedveil report DIR"))]))
    rows = [
        ("fedveil", code(view.version)),
        ("run", code(view.run)),
        ("plan (SHA-256)", code(view.plan_hash)),
        *([("model.npz (SHA-256)", code(digest))] if digest is not None else []),
        ("signed by", code(view.signer) if view.signer and view.fits else "nobody"),
    ]
    facts = table("What this page is about", ("what", "value"), rows)
    return section("checking", "Check it yourself", tag("ol", [tag("li", step) for step in steps]), facts)
