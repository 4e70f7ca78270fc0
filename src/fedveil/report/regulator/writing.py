"""Write the card and the entry of a run into files."""

from pathlib import Path

from fedveil.files import PUBLIC, write_atomically
from fedveil.report.regulator.about import About
from fedveil.report.regulator.document import card, html, markdown
from fedveil.report.regulator.registry import entry, yaml_text
from fedveil.report.view import View

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
