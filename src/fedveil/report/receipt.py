"""What is said to whoever left: the receipt as values and as a page, and its section of a run's report."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedveil.planning.plan import Plan
from fedveil.planning.promises import Forgotten, forgetting_curve, forgotten
from fedveil.privacy.guarantee import finite_or_none
from fedveil.report.charts import Axis, Line, axis, lines_chart
from fedveil.report.markup import Markup, code, column_page, figure, paragraph, section, table, tag
from fedveil.report.words import epsilon_text

ASSUMPTIONS: Final = (
    "The data holder left the named units out of all further rounds; nobody else can check this.",
    "For whoever has the new model only: the old model is withdrawn with all that was released with it, such as its "
    "report and its scores, and whoever looks has nothing of it.",
)
_NOT_SAID: Final = (
    "This receipt is about the model. Copies of the records elsewhere, backups, and models that somebody else made of "
    "the old one are not covered by it."
)


def receipt_of(plan: Plan, left: Forgotten, model: str) -> dict[str, Any]:
    """Return what the receipt says, as values for JSON; ``model``: the new model's hash."""
    return {
        "format": 1,
        "study": plan.name,
        "plan": plan.hash,
        "model": model,
        "units": left.units,
        "together": left.together,
        "unit": plan.target.unit,
        "neighbours": plan.target.neighbours,
        "rounds_without": plan.run.total,
        "keep": plan.hidden.keep,
        "columns_again": bool(plan.preparation),
        "delta": plan.target.delta,
        "new_model_only": {"epsilon": finite_or_none(left.new_model.epsilon)},
        "old_and_new_model": {"epsilon": finite_or_none(left.every_model.epsilon)},
        "curve": curve_points(plan),
        "assumptions": list(ASSUMPTIONS),
    }


def curve_points(plan: Plan) -> list[dict[str, Any]]:
    """Return what is left of whoever left last after so many of the plan's rounds."""
    return [{"rounds": rounds, "epsilon": finite_or_none(value)} for rounds, value in forgetting_curve(plan)]


def receipt_page(values: Mapping[str, Any], *, signature: str | None) -> str:
    """Return the receipt as one page of HTML; ``signature``: the file that signs its values."""
    count = values["units"]
    what = f"{count} {values['unit']}{'s' * (count != 1)}" + (", of one party," if values["together"] > 1 else "")
    heading = [
        tag("p", "Receipt", class_="kicker"),
        tag("h1", "Forgotten"),
        paragraph(
            f"At the request of whoever it concerns, {what} left the study {values['study']}. "
            f"{_begun(values)} for {values['rounds_without']} rounds without them, with fresh noise, and "
            "released a new model."
        ),
    ]
    signed = "Not signed." if signature is None else f"Signed: {signature}, over the values of this page."
    about = section(
        "about",
        "What it is about",
        table("Names", ("What", "SHA-256"), [("new model", code(values["model"])), ("plan", code(values["plan"]))]),
        paragraph(signed),
    )
    return column_page(
        "Receipt: forgotten", heading, [_promise(values), curve_of(values["curve"]), _assumed(values), about]
    )


def forgotten_section(plan: Plan) -> Markup | None:
    """Return the section of a report about everybody who left before this model; None where nobody did."""
    if not plan.forgetting:
        return None
    rows = [
        (
            f"{row.units} {plan.target.unit}{'s' * (row.units != 1)}",
            epsilon_text(finite_or_none(row.new_model.epsilon)),
            epsilon_text(finite_or_none(row.every_model.epsilon)),
        )
        for row in forgotten(plan)
    ]
    heads = ("Who left", "ε for whoever has this model only", "ε for whoever kept every model")
    values = receipt_of(plan, forgotten(plan)[-1], "")
    return section(
        "forgotten",
        "Who was forgotten",
        paragraph(
            f"{_begun(values)} for {plan.run.total} rounds without those who asked to leave. Nobody can tell "
            "this model from one that never saw them, up to these numbers."
        ),
        table(f"What is promised to those who left, at delta {plan.target.delta:g}", heads, rows, numbers=(1, 2)),
        curve_of(values["curve"]),
        *(paragraph(text) for text in ASSUMPTIONS),
    )


def _begun(values: Mapping[str, Any]) -> str:
    """Return from what training went on, the beginning of a sentence."""
    keep = values["keep"]
    if values["columns_again"]:
        return "Training began anew, with nothing of the old model or of what it had learned about the columns,"
    if keep == 0:
        return "Training began anew, with nothing of the old model,"
    return "Training went on from " + ("the old model" if keep == 1 else f"{keep:g} of the old model")


def _promise(values: Mapping[str, Any]) -> Markup:
    new, both = values["new_model_only"]["epsilon"], values["old_and_new_model"]["epsilon"]
    rows = [("the new model only", epsilon_text(new)), ("the old and the new model", epsilon_text(both))]
    caption = f"How well the model can be told from one that never saw them, at delta {values['delta']:g}"
    return section(
        "promise", "What is promised", table(caption, ("Whoever has", "epsilon at most"), rows, numbers=(1,))
    )


def curve_of(points_of_rounds: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Draw how epsilon falls with every round; nothing where no bound is finite, or where one round does it all."""
    points = [(float(one["rounds"]), float(one["epsilon"])) for one in points_of_rounds if one["epsilon"] is not None]
    if len(points) < 3:
        return None
    last = points[-1]
    drawing = lines_chart(
        "forgetting",
        "Epsilon after so many rounds without them",
        f"from {points[0][1]:.3g} to {last[1]:.3g} after {last[0]:g} rounds",
        [Line("epsilon", points, "best", dots=len(points) < 12)],
        x=Axis(0.0, last[0], whole=True),
        y=axis([value for _, value in points], log=False),
        names=("rounds without them", "epsilon"),
    )
    data = table("Epsilon by round", ("Rounds", "epsilon"), [(f"{at:g}", epsilon_text(value)) for at, value in points])
    return figure(drawing, "Every round without them, with fresh noise, hides better what they left behind.", data)


def _assumed(values: Mapping[str, Any]) -> Markup:
    listed = tag("ul", *(tag("li", text) for text in values["assumptions"]))
    return section("assumptions", "On which assumptions", listed, paragraph(_NOT_SAID))
