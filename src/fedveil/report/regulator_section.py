"""The section of the page for a regulator: what an attacker gains, what is unprotected, and the usual questions."""

from fedveil.report.blocks import code, paragraph, section
from fedveil.report.markup import Markup, tag
from fedveil.report.regulator.about import About
from fedveil.report.regulator.attacker import gain
from fedveil.report.regulator.document import Part, attacker_part, part_table, questions_part, unprotected_part
from fedveil.report.view import View


def regulator(view: View) -> Markup:
    """Return the section; what only people can answer is left to the model card."""
    found = gain(view, view.target)
    intro = paragraph(
        "The same in the order of those who must approve a release. A model card, and the entry of a public registry, "
        "are written by ",
        code("fedveil card DIR"),
        ".",
    )
    parts = [attacker_part(found), unprotected_part(view), questions_part(view, About(), found)]
    return section("regulator", "For a regulator", intro, *(_drawn(part) for part in parts))


def _drawn(part: Part) -> list[object]:
    return [tag("h3", part.title), *(paragraph(sentence) for sentence in part.said), part_table(part)]
