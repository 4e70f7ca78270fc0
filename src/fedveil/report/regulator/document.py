"""The model card: one list of parts, written as Markdown and as a page; and the report's section for a regulator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedveil.core.files import PUBLIC, write_atomically
from fedveil.report import words
from fedveil.report.markup import Markup, code, column_page, folded, paragraph, section, table, tag
from fedveil.report.quality_sections import ends_text
from fedveil.report.regulator.about import About
from fedveil.report.regulator.compliance import anonymity_rows, technical_rows, terms_rows
from fedveil.report.regulator.exposure import ALARMS, Gain, gain, unprotected
from fedveil.report.regulator.questions import answers, unit_text, utility_text
from fedveil.report.regulator.registry import entry, yaml_text
from fedveil.report.view import View
from fedveil.stages.train.registry import title_of

_MARKS = str.maketrans({"|": "\\|", "<": "&lt;", ">": "&gt;", "\n": " ", "\r": " ", "`": "'", "\\": "\\\\", "[": "\\["})


@dataclass(frozen=True, slots=True)
class Part:
    """A heading with sentences and, maybe, one table: its column heads and rows."""

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def card(view: View, about: About) -> list[Part]:
    """Return the parts of the model card."""
    gained = gain(view, view.target)
    return [
        _model(view, about),
        Part("use", "Intended use", (about.answer("intended_use"),)),
        Part("data", "Data", (about.answer("description"),), ("what", "value"), _data(view, about)),
        _privacy(view, gained),
        attacker_part(gained),
        curve_part(gained),
        _quality(view),
        unprotected_part(view),
        questions_part(view, about, gained),
        *compliance_parts(view, about, gained),
        Part("why", "Why these choices", (about.answer("justification"),)),
    ]


def unprotected_part(view: View) -> Part:
    """Return what the promise does not cover, quantity by quantity."""
    return Part("unprotected", "Unprotected quantities", (), ("what", "remark"), tuple(unprotected(view)))


def questions_part(view: View, about: About, gained: Gain) -> Part:
    """Return the points of the guidelines for evaluating such promises, with their answers."""
    said = (
        "By the points of NIST Special Publication 800-226, Guidelines for Evaluating Differential Privacy Guarantees."
    )
    rows = tuple(answers(view, about, gained))
    return Part("questions", "A regulator's questions", (said,), ("point", "answer"), rows)


def compliance_parts(view: View, about: About, gained: Gain) -> list[Part]:
    """Return what the run answers of other frameworks; none of it is a legal opinion."""
    anonymous = (
        "The points of EDPB Opinion 28/2024. The run gives the facts; the controller argues, and the authority judges.",
    )
    annex = ("The items of Annex IV of Regulation (EU) 2024/1689 that the records of a run can fill.",)
    terms = ("In the terms of ISO/IEC 20889, Privacy enhancing data de-identification terminology.",)
    heads = ("point", "answer")
    return [
        Part("anonymity", "Is the model anonymous?", anonymous, heads, tuple(anonymity_rows(view, about, gained))),
        Part("annex-iv", "Technical documentation", annex, heads, tuple(technical_rows(view, about))),
        Part("terms", "Terms of de-identification", terms, heads, tuple(terms_rows(view))),
    ]


def _model(view: View, about: About) -> Part:
    plan = view.plan
    digest = next((row.sha256 for row in view.released if row.sha256), None)
    rows = (
        ("kind", f"{plan.model.kind}, {plan.dimension:,} parameters"),
        ("trained by", title_of(plan.method.kind)),
        ("curators", about.answer("curators")),
        ("contact", about.answer("contact")),
        ("published", about.answer("published")),
        ("plan (SHA-256)", view.plan_hash),
        *([] if digest is None else [("model.npz (SHA-256)", digest)]),
        ("certificate signed by", view.signed.signer if view.signed.signer and view.signed.valid else "nobody"),
        ("written by", f"fedveil {view.version}"),
    )
    return Part("model", "The model", (), ("what", "value"), rows)


def _data(view: View, about: About) -> tuple[tuple[str, str], ...]:
    data = view.plan.data
    held = view.plan.held_out.records
    return (
        ("records", f"{data.records:,} for training, {held:,} held out"),
        ("clients", f"{data.clients:,}, of {data.smallest_client:,} to {data.largest_client:,} records"),
        ("features", f"{data.features:,}"),
        ("region", about.answer("region")),
        ("sector", about.answer("sector")),
        ("collected", about.answer("collection")),
    )


def _privacy(view: View, gained: Gain) -> Part:
    rows = tuple(
        (words.OBSERVERS[s.adversary], s.sees, words.epsilon_text(s.epsilon), words.nearest(s.delta, 12))
        for s in view.observers
    )
    said = [unit_text(view.plan.target), view.total]
    if view.plan.exposed_by is not None:
        said.insert(0, f"NOT PRIVATE: {view.plan.exposed_by}.")
    if gained.mu is not None:
        said.append(
            f"Mu {words.up(gained.mu)}: at every delta listed below the main promise is no worse than that of a "
            "Gaussian mechanism with this ratio of sensitivity to noise."
        )
    return Part("privacy", "What is promised, and to whom", tuple(said), ("observer", "sees", "epsilon", "delta"), rows)


def attacker_part(gained: Gain) -> Part:
    """Return what an attacker gains, in words."""
    rows = [
        (
            f"finds, with {words.nearest(100 * alarms)}% false alarms",
            f"at most {words.percent(gained.power[alarms])} of those whose data were used",
        )
        for alarms in ALARMS
    ]  # fmt: skip
    rows.append(("guesses one secret bit of a record", f"right with probability at most {words.percent(gained.bit)}"))
    said = "Whatever else the attacker knows, and whatever it computes. Guessing blindly finds as many as its false "
    said += "alarms, and half of the bits."
    return Part("attacker", "What an attacker gains", (said,), ("an attacker", "at most"), tuple(rows))


def curve_part(gained: Gain) -> Part:
    """Return the whole privacy curve as a table."""
    rows = tuple((words.nearest(delta, 12), words.up(epsilon)) for delta, epsilon in gained.points)
    said = "The same run, at other deltas: each line is a promise of its own." if rows else "There is no promise."
    return Part("curve", "The privacy curve", (said,), ("delta", "epsilon") if rows else (), rows)


def _quality(view: View) -> Part:
    utility = view.utility
    if utility is None and view.counted is not None:
        sentences = tuple(
            (one.name, "–" if one.value is None else words.nearest(one.value), ends_text(one))
            for one in view.counted.estimates
        )
        return Part("quality", "How well it does", (utility_text(view),), ("", "estimate", "95% interval"), sentences)
    if utility is None:
        return Part("quality", "How well it does", ("Not measured: no test records were set aside.",))
    keys = list(utility.scores[0].values)
    rows = tuple(
        (score.name, *(words.nearest(score.values[key]) if key in score.values else "–" for key in keys))
        for score in utility.scores
    )
    public = "declared public" if utility.public else "not declared public"
    said = [f"On {utility.records:,} held-out records, {public}."]
    if utility.useless:
        said.append(utility.useless)
    return Part("quality", "How well it does", tuple(said), ("model", *(key.replace("_", " ") for key in keys)), rows)


def markdown(name: str, parts: Sequence[Part]) -> str:
    """Return the card as Markdown; whatever a name contains, it stays text."""
    lines = [f"# Model card: {_escape(name)}", ""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        for sentence in part.sentences:
            lines += [_escape(sentence), ""]
        if part.rows:
            lines += [
                _row(part.heads),
                _row(["---"] * len(part.heads)),
                *(_row(map(_escape, row)) for row in part.rows),
            ]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(text: str) -> str:
    return text.translate(_MARKS)


def html(name: str, parts: Sequence[Part]) -> str:
    """Return the card as one page that loads nothing."""
    drawn = [section(p.name, p.title, *map(paragraph, p.sentences), part_table(p)) for p in parts]
    heading = [tag("p", "Model card", class_="kicker"), tag("h1", name)]
    return column_page(f"Model card: {name}", heading, drawn)


def part_table(part: Part) -> object:
    """Return the table of a part, if it has one; columns of numbers are aligned right."""
    if not part.rows:
        return None
    right = [i for i, name in enumerate(part.heads) if i and (name in ("epsilon", "delta") or part.name == "quality")]
    return table(tag("span", part.title, class_="spoken"), part.heads, part.rows, numbers=right)


def regulator(view: View) -> Markup:
    """Return the section; what only people can answer is left to the model card."""
    gained = gain(view, view.target)
    intro = paragraph(
        "The same in the order of those who must approve a release. A model card, and the entry of a public registry, "
        "are written by ",
        code("fedveil card DIR"),
        ".",
    )
    parts = [attacker_part(gained), unprotected_part(view), questions_part(view, About(), gained)]
    return folded("regulator", "For a regulator", intro, *(_part_section(part) for part in parts))


def _part_section(part: Part) -> list[object]:
    return [tag("h3", part.title), *(paragraph(sentence) for sentence in part.sentences), part_table(part)]


FILES = {"html": "card.html", "markdown": "card.md", "registry": "registry.yaml"}


def write_card(view: View, about: About, folder: Path, formats: tuple[str, ...] = tuple(FILES)) -> list[Path]:
    """Write the asked formats into the folder and return the files."""
    parts = card(view, about)
    made = {
        "html": lambda: html(view.plan.name, parts),
        "markdown": lambda: markdown(view.plan.name, parts),
        "registry": lambda: yaml_text(entry(view, about)),
    }
    paths = []
    for name in formats:
        path = folder / FILES[name]
        write_atomically(path, made[name]().encode(), mode=PUBLIC)
        paths.append(path)
    return paths
