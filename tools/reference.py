"""Reference pages made from the code, so that they cannot drift: every command with its options, every key of a study.

``make docs`` fills the pages ``docs/reference/*.md`` with them (tools/docs_site.py).
"""

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any

import typer

from fedveil.cli import GROUPS
from fedveil.cli.parsing import App
from fedveil.core.fields import groups_of
from fedveil.data.spec import Features, HeldOut, Labelling, Reading, Source, Split
from fedveil.models.personal_request import PersonalRequest
from fedveil.models.spec import ModelPlan
from fedveil.planning.tuning import TuneRequest
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.evaluate.request import EvaluationRequest
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.train.registry import KINDS, request_type

_SOURCE_KEYS = (
    "source",
    "feature_bound",
    "intercept",
    "feature_map",
    "client_column",
    "person_column",
    "largest_person",
    "expires_column",
    "as_of",
    "public",
)
_HIDDEN = {HeldOut: ("source",), Labelling: ("unlabelled",)}
_TABLES: dict[str, tuple[tuple[Any, tuple[str, ...]], ...]] = {
    "[data]": ((Source, _SOURCE_KEYS), (Reading, ()), (Labelling, ()), (Features, ())),
    "[data.held_out]": ((HeldOut, ()),),
    "[clients]": ((Split, ()),),
    "[model]": ((ModelPlan, ()),),
    "[privacy]": ((Target, ()),),
    "[trust]": ((Trust, ()),),
    "[prepare]": ((PrepareRequest, ()),),
    "[evaluation]": ((EvaluationRequest, ()),),
    "[tune]": ((TuneRequest, ()),),
    "[personal]": ((PersonalRequest, ()),),
}


def commands() -> str:
    """Return all commands by group, with their arguments and options."""
    parts = []
    for group, modules in GROUPS.items():
        parts.append(f"## {group}")
        for module, names in modules.items():
            app = App()
            app.callback()(lambda: None)
            import_module(f"fedveil.cli.{module}").register(app)
            loaded: Any = typer.main.get_command(app)
            for name, line in names.items():
                parts.append(f"### `fedveil {name}`\n\n{line}\n\n{_command(loaded.commands[name])}")
    return "\n\n".join(parts)


def _command(command: Any) -> str:
    if hasattr(command, "commands"):
        rows = [f"| `{name}` | {_cell(inner.help)} |" for name, inner in command.commands.items()]
        return "\n".join(["| subcommand | what it does |", "|---|---|", *rows])
    rows = [f"| `{_name(one)}` | {_cell(getattr(one, 'help', None))} |" for one in command.params if one.name != "help"]
    example = f"\n\n{command.epilog}" if command.epilog else ""
    return f"{_cell(command.help)}\n\n" + "\n".join(["| option | meaning |", "|---|---|", *rows]) + example


def _name(parameter: Any) -> str:
    options = [text for text in parameter.opts if text.startswith("-")]
    return options[0] if options else str(parameter.metavar or parameter.name).upper()


def study_keys() -> str:
    """Return the keys of every table of a study, with their types and defaults."""
    parts = [_table(title, kinds) for title, kinds in _TABLES.items()]
    for kind in KINDS:
        request = request_type(kind)
        parts.append(_table(f'[algorithm] kind = "{kind}"', ((request, ()),)))
        for name, group in groups_of(request).items():
            parts.append(_table(f'[algorithm.{name}], of kind "{kind}"', ((group, ()),)))
    return "\n\n".join(parts)


def _table(title: str, kinds: tuple[tuple[Any, tuple[str, ...]], ...]) -> str:
    text = [f"## `{title}`"]
    for kind, only in kinds:
        words = inspect.getdoc(kind) or ""
        rows = list(_rows(kind, only))
        text += [words, "\n".join(["| key | type | when left out |", "|---|---|---|", *rows])]
    return "\n\n".join(text)


def _rows(kind: Any, only: tuple[str, ...]) -> Iterator[str]:
    for one in fields(kind):
        if (only and one.name not in only) or one.name in _HIDDEN.get(kind, ()):
            continue
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        shown = "must be given" if default is MISSING else "nothing" if default in (None, (), {}) else f"`{default}`"
        kind_text = one.type if isinstance(one.type, str) else getattr(one.type, "__name__", str(one.type))
        yield f"| `{one.name}` | {_cell(str(kind_text))} | {_cell(shown)} |"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


PAGES = {"reference/commands.md": commands, "reference/study-keys.md": study_keys}
