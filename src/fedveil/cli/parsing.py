"""The command line's own groups and commands: plain help, code that is loaded when it is called, and wrong calls.

Only typer's own interface is used: older versions stand on click, newer ones bring a parser of their own.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from fedveil.core.errors import require

Function = TypeVar("Function", bound=Callable[..., Any])
_ESCAPED: Final = "\\["  # some versions of typer escape for rich, which we do not let draw
_GUESS: Final = " Did you mean "
_WRONG_CALL: Final = typer.BadParameter.__mro__[1]  # the base of all wrong calls; typer names only this kind of them


class Command(TyperCommand):
    """A command whose help is plain text."""

    def get_help(self, ctx: Any) -> str:
        """Return the help; "[required]" is written as it is meant."""
        return super().get_help(ctx).replace(_ESCAPED, "[")


class Group(TyperGroup):
    """A group of commands whose help is plain text."""

    def get_help(self, ctx: Any) -> str:
        """Return the help; "[required]" is written as it is meant."""
        return super().get_help(ctx).replace(_ESCAPED, "[")


class App(typer.Typer):
    """An application of such groups and commands."""

    def __init__(self, **given: Any) -> None:
        options: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
        super().__init__(**{"cls": Group, "no_args_is_help": True, "add_completion": False, **options, **given})

    def command(self, name: str | None = None, **given: Any) -> Callable[[Function], Function]:
        """Add a command."""
        return super().command(name, **{"cls": Command, **given})


def lazy_app(groups: dict[str, dict[str, str]], register: Callable[[str, App], None], **given: Any) -> App:
    """Return an application that lists commands in groups, each with its line, and loads one when it is called.

    ``register`` adds the command of that name, and perhaps others, to an application.
    """

    class Lazy(Group):
        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """Return the command that the first argument names, loaded; a shell that completes words asks here too."""
            name, listed, rest = super().resolve_command(ctx, args)
            return name, listed and load(str(name)), rest

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """Write the commands by group."""
            width = max(len(name) for commands in groups.values() for name in commands)
            for title, commands in groups.items():
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])

    def load(name: str) -> Any:
        app = App()
        app.callback()(lambda: None)  # with a callback typer makes a group even of a single command
        register(name, app)
        loaded: Any = typer.main.get_command(app)
        return loaded.commands[name]

    app = App(cls=Lazy, add_completion=True, **given)
    for commands in groups.values():
        for name, line in commands.items():
            app.command(name, help=line)(lambda: None)
    return app


def usage_of(error: Exception) -> tuple[str, str] | None:
    """Return the sentence of a wrong call, and the command whose help explains it; None for other errors."""
    if not isinstance(error, _WRONG_CALL):
        return None
    wrong: Any = error
    message: str = wrong.format_message()
    first, mark, rest = message.partition(_GUESS)
    once = f"{first}{mark}{rest.partition(_GUESS)[0]}"  # some versions guess twice: the parser and typer
    return once, "fedveil" if wrong.ctx is None else wrong.ctx.command_path


def check_where(on: object, sites: int | None) -> None:
    """Refuse a number of sites for a deployment, which has its own."""
    require(on is None or sites is None, "--sites", "be left out with --on: the deployment has its sites", sites)
