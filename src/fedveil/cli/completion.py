"""Completion of commands, options and files in bash, zsh and fish: the script, its installation, and the answers.

A shell asks by calling fedveil with ``_FEDVEIL_COMPLETE`` set: ``bash_source`` for its script, ``bash_complete`` for
the words that may come next.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import click
import typer
from click.shell_completion import get_completion_class

from fedveil.checks import require
from fedveil.cli.show import Json, out, show
from fedveil.data.tables import nearest
from fedveil.files import PUBLIC, write_atomically

VARIABLE = "_FEDVEIL_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
_TASKS = ("source", "complete")
_LINES = {
    "bash": "source '{path}'",
    "zsh": "(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}; source '{path}'",
}


def answered(app: click.Command) -> int | None:
    """Answer a shell that asks for completion and return the exit code; None if none asks."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return None
    shell, _, task = asked.partition("_")
    if shell in _TASKS:  # the order of older scripts
        shell, task = task, shell
    right = shell in SHELLS and task in _TASKS
    rule = "be SHELL_source or SHELL_complete, with one of bash, zsh and fish"
    require(right, VARIABLE, rule, asked, "Unset it, or see: fedveil completion --help.")
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  click knows all three
    maker = kind(app, {}, "fedveil", VARIABLE)
    try:
        sys.stdout.write((maker.source() if task == "source" else maker.complete()) + "\n")
    except KeyError as error:
        require(False, str(error.args[0]), f"be set when {VARIABLE} is", None)
    return 0


def script_of(shell: str) -> str:
    """Return the script that makes a shell complete fedveil's commands."""
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  checked before
    template = kind.source_template
    function = "_fedveil_completion"
    return (template % {"complete_func": function, "complete_var": VARIABLE, "prog_name": "fedveil"}).strip() + "\n"


def installed(shell: str, script: str, home: Path) -> list[Path]:
    """Write the script where the shell finds it, and return the files that were written or added to."""
    if shell == "fish":
        path = home / ".config" / "fish" / "completions" / "fedveil.fish"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, script.encode(), mode=PUBLIC)
        return [path]
    path = home / ".local" / "share" / "fedveil" / f"completion.{shell}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, script.encode(), mode=PUBLIC)
    settings, line = home / f".{shell}rc", _LINES[shell].format(path=path)
    known = settings.read_text(encoding="utf-8") if settings.exists() else ""
    if line in known.splitlines():
        return [path]
    with settings.open("a", encoding="utf-8") as file:
        file.write(f"{'' if known.endswith(chr(10)) or not known else chr(10)}{line}\n")
    return [path, settings]


def register(app: typer.Typer) -> None:
    """Add this command to the application."""

    def completion(
        shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")],
        install: Annotated[bool, typer.Option("--install", help="Write it where the shell finds it.")] = False,
        as_json: Json = False,
    ) -> None:
        """Print, or install, the script by which a shell completes commands, options and files."""
        require(shell in SHELLS, "SHELL", f"be one of {', '.join(SHELLS)}", shell, nearest(shell, SHELLS))
        script = script_of(shell)
        if not install:
            show({"shell": shell, "script": script}, as_json, lambda: print(script, end=""))  # noqa: T201
            return
        files = installed(shell, script, Path.home())

        def text() -> None:
            for path in files:
                out().print(f"written: {path}", soft_wrap=True)
            out().print("It takes effect in the next shell.")

        show({"shell": shell, "written": [str(path) for path in files]}, as_json, text)

    app.command(epilog="Example: fedveil completion bash --install")(completion)
