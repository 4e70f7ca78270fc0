"""The report: one HTML file that needs nothing else, for the person who has to answer for the release."""

from pathlib import Path

from fedveil.core.files import PUBLIC, write_atomically
from fedveil.report import (
    audit_sections,
    bound_sections,
    communication,
    promise_section,
    run_sections,
)
from fedveil.report.markup import Markup, concat, head, tag
from fedveil.report.receipt import forgotten_section
from fedveil.report.regulator.document import regulator
from fedveil.report.shapes import shape_section
from fedveil.report.timeline import timeline_section
from fedveil.report.view import View, view_of
from fedveil.stages.train.registry import title_of

_CONTENTS = {
    "promise": "The promise",
    "quality": "How well it does",
    "shapes": "What it learned",
    "forgotten": "Who was forgotten",
    "know": "What to know",
    "meaning": "What it means",
    "released": "What is released",
    "utility": "All scores",
    "observers": "Who is looking",
    "clients": "Client by client",
    "attacked": "Attacked",
    "hiding": "What hiding bought",
    "bounds": "How it is proved",
    "curve": "Other deltas",
    "places": "Round by round",
    "generalising": "New records",
    "schedule": "How it was trained",
    "traffic": "What is sent",
    "timeline": "A round on its way",
    "assumptions": "Assumptions",
    "regulator": "For a regulator",
    "checking": "Check it yourself",
}


def write_report(folder: Path) -> Path:
    """Write ``report.html`` from the run's plan, certificate and metrics; its path."""
    path = Path(folder) / "report.html"
    write_atomically(path, page(view_of(Path(folder))).encode(), mode=PUBLIC)
    return path


def page(view: View) -> str:
    """Return the whole page as HTML."""
    parts = {
        "promise": promise_section.plain_words(view),
        "quality": run_sections.quality(view),
        "shapes": shape_section(view.shapes, _raised(view)),
        "forgotten": forgotten_section(view.plan),
        "know": promise_section.to_know(view),
        "meaning": promise_section.meaning(view),
        "released": promise_section.released(view),
        "utility": run_sections.utility(view),
        "observers": bound_sections.observers(view),
        "clients": run_sections.clients(view),
        "attacked": audit_sections.attacks(view),
        "hiding": bound_sections.hiding(view),
        "bounds": bound_sections.bounds(view),
        "curve": bound_sections.curves(view),
        "places": bound_sections.places(view),
        "generalising": bound_sections.generalising(view),
        "schedule": run_sections.schedule(view),
        "traffic": communication.traffic(view),
        "timeline": timeline_section(view.timeline),
        "assumptions": run_sections.assumptions(view),
        "regulator": regulator(view),
        "checking": run_sections.checking(view),
    }
    shown = {name: part for name, part in parts.items() if part is not None}
    alarms = audit_sections.alarm(view), promise_section.alarm(view)
    body = [
        tag("a", "Skip to the content", href="#content", class_="skip"),
        _header(view),
        tag(
            "div",
            _contents(list(shown)),
            tag("main", *alarms, *shown.values(), id="content", tabindex=-1),
            class_="layout",
        ),
        tag("footer", tag("p", f"Written by fedveil {view.version}. This page loads nothing and sends nothing.")),
    ]
    return "<!doctype html>\n" + tag("html", head(_title(view)), tag("body", *body), lang="en") + "\n"


def _raised(view: View) -> str:
    """What a higher score of the model speaks for."""
    quality = None if view.utility is None else view.utility.quality
    if quality is not None and len(quality.classes) == 2:
        return f"“{quality.classes[1].name}”"
    if view.counted is not None and len(view.counted.classes) == 2:
        return f"“{view.counted.classes[1]}”"
    return "the second class" if view.plan.data.classes == 2 else "a larger number"


def _title(view: View) -> str:
    state = "" if view.private else "NOT PRIVATE – "
    state = "BROKEN – " + state if view.audit is not None and view.audit.broken else state
    return f"{state}Privacy report: {view.plan.name}"


def _header(view: View) -> Markup:
    data = view.plan.data
    clients = f"{data.clients:,} client{'s' * (data.clients > 1)}"
    records = f"{data.records:,} record{'s' * (data.records > 1)}"
    facts = f"A {view.plan.model.kind} model, trained on {records} of {clients}"
    kind = view.plan.method.kind
    if view.hidden:
        released = "one, drawn at random," if view.plan.run.stopping == "random" else "the last"
        facts += f". Of all the models along the way, only {released} is released."
    else:
        facts += f" by {title_of(kind)}."
    return tag("header", tag("p", "Privacy report", class_="kicker"), tag("h1", view.plan.name), tag("p", facts))


def _contents(names: list[str]) -> Markup:
    links = [tag("li", tag("a", _CONTENTS[name], href=f"#{name}")) for name in names]
    return tag("nav", concat([tag("ol", links)]), aria_label="Contents")
