"""A plan as the design page shows it: noise, expected accuracy, five observers, and what sampling and hiding buy."""

from typing import Any

from fedveil.report import words
from fedveil.report.charts import Row, axis, rows_chart
from fedveil.report.markup import Markup, badge, concat, figure, note, paragraph, table, tag
from fedveil.studio.state import Answer

_STATES = {"exact": ("exact", "good"), "about": ("about", "warn")}


def answer_view(answer: Answer, state: str) -> Markup:
    """Return a plan; ``state`` says whether its numbers are exact or lie about between exact ones."""
    shown, kind = _STATES[state]
    exposed = answer["exposed"]
    return concat(
        [
            tag("p", badge(shown, kind), _lead(answer, state), class_="state"),
            None if exposed is None else note(tag("strong", "NOT PRIVATE: "), f"{exposed}.", kind="warning"),
            [note(text, kind="warning") for text in answer["warnings"]] if state == "exact" else None,
            _tiles(answer),
            _observers(answer),
            _hiding_gain(answer),
            _design(answer) if state == "exact" else None,
        ]
    )


def _lead(answer: Answer, state: str) -> str:
    data, target = answer["data"], answer["target"]
    holders = "one client" if data["clients"] == 1 else f"{data['clients']:,} clients"
    facts = f" {answer['title']}, {answer['rounds']:,} rounds; {data['records']:,} records of {holders}; "
    facts += f"epsilon {target['epsilon']:.4g}, delta {target['delta']:.3g}."
    return facts if state == "exact" else facts + " Let go of the slider for the exact numbers."


def _tiles(answer: Answer) -> Markup:
    target, noise = answer["target"], answer["noise"]
    seen = next(row for row in answer["observers"] if row["adversary"] == target["adversary"])
    rows = [
        ("Noise", "–" if noise is None else f"{noise:.3g}", "on each coordinate of a round's averaged gradient"),
        ("Expected to learn", *_accuracy(answer)),
        ("Epsilon", words.epsilon_text(seen["epsilon"]), f"against {target['adversary']}, the observer of the target"),
        (
            "A guess is right",
            _guess(seen["epsilon"], target["delta"]),
            "at most, between used and not used; a coin: 50%",
        ),
    ]
    return tag(
        "dl",
        [tag("div", tag("dt", name), tag("dd", value), tag("dd", why, class_="why")) for name, value, why in rows],
        class_="tiles",
    )


def _guess(epsilon: float | None, delta: float) -> str:
    return words.percent(words.right_guesses(epsilon, delta))


def _accuracy(answer: Answer) -> tuple[str, str]:
    """Return how far a model is expected to get, by the criterion of the design, and what the criterion is."""
    risk, learnable = answer["risk"], answer["learnable"]
    if risk is None:
        return "not known", "this design has no stated criterion: its schedule is taken as it is"
    if not learnable:
        return f"risk {risk:.3g}", "expected excess risk, by the yardstick of the design (docs/theory/schedules.md)"
    share = max(0.0, 1 - risk / learnable)
    return (
        f"{words.percent(share, most=False)} of the way",
        f"from a model that learned nothing (excess risk {learnable:.3g}) to the best one (0): {risk:.3g} is expected",
    )


def _observers(answer: Answer) -> Markup:
    target, rows = answer["target"], answer["observers"]
    known = [row["epsilon"] for row in rows if row["epsilon"] is not None]
    bars = [
        Row(
            row["adversary"],
            row["epsilon"],
            words.epsilon_text(row["epsilon"]),
            "best" if row["adversary"] == target["adversary"] else "other",
        )
        for row in rows
    ]
    scale = axis([*known, target["epsilon"]])
    mark = (target["epsilon"], f"target {target['epsilon']:.3g}")
    said = "; ".join(f"{row['adversary']}: {words.epsilon_text(row['epsilon'])}" for row in rows)
    drawing = rows_chart("five-observers", "Epsilon of the five observers", said, bars, scale=scale, mark=mark)
    listed = table(
        "What each observer sees",
        ("Observer", "Epsilon", "Sees", "Proved by"),
        [(r["adversary"], words.epsilon_text(r["epsilon"]), r["sees"], r["by"] or "–") for r in rows],
        numbers=(1,),
    )
    return concat(
        [tag("h3", "Who is looking"), figure(drawing, "Smaller is better; the dashed line is the target.", listed)]
    )


def _hiding_gain(answer: Answer) -> Markup | None:
    """Return what secret sampling buys, and what hiding the models buys beyond it."""
    alone = answer["alone"]
    if alone is None:
        return concat(
            [
                tag("h3", "What hiding and sampling buy"),
                paragraph(
                    "This algorithm promises nothing that rests on hidden models; its sampling is in the numbers above."
                ),
            ]
        )
    final = next(row["epsilon"] for row in answer["observers"] if row["adversary"] == "final-model")
    steps: list[tuple[str, float | None]] = [
        ("every model seen, order known", alone["known"]),
        ("every model seen, secret Poisson draws", alone["poisson"]),
        ("every model seen, secret independent draws", alone["independent"]),
        ("only the last model seen", final),
    ]
    known = [value for _, value in steps if value is not None]
    bars = [
        Row(name, value, words.epsilon_text(value), "best" if name.startswith("only") else "other")
        for name, value in steps
    ]
    said = "; ".join(f"{row.label}: {row.text}" for row in bars)
    drawing = rows_chart(
        "bought", "What sampling and hiding buy, at this noise", said, bars, scale=axis(known or [1.0])
    )
    return concat([tag("h3", "What hiding and sampling buy"), figure(drawing, _told(alone))])


def _told(alone: dict[str, Any]) -> str:
    drawn = min((v for v in (alone["poisson"], alone["independent"]) if v is not None), default=None)
    said = []
    if drawn is not None and alone["known"] is not None:
        times = alone["known"] / drawn
        less = f"Secret sampling makes epsilon {words.down(times, 3)} times smaller than a known order. "
        said.append(less if times > 1.005 else "Secret sampling buys nothing that can be proved here. ")
    if alone["bought"] is None:
        said.append("With every model open nothing could be proved.")
    elif alone["bought"] > 1.005:
        said.append(
            f"Hiding the models makes it {words.down(alone['bought'], 3)} times smaller than the best of these."
        )
    else:
        said.append("Hiding the models buys nothing that can be proved beyond that.")
    return "".join(said)


def _design(answer: Answer) -> Markup:
    facts = table("The plan", ("what", "value"), [(name, value) for name, value in answer["facts"]])
    return tag("details", tag("summary", "How it was designed"), paragraph(answer["reason"]), facts)
