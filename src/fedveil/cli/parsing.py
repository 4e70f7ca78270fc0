"""The command line's own groups and commands: help without escapes, one suggestion, and where help is to be found."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])
_ESCAPED = "\\["  # typer escapes for rich, which we do not let draw


class Command(TyperCommand):
    """A command whose help is plain text."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the help; "[required]" is written as it is meant."""
        return super().get_help(ctx).replace(_ESCAPED, "[")


class Group(TyperGroup):
    """A group of commands whose help is plain text; an unknown command is answered with one suggestion."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the help; "[required]" is written as it is meant."""
        return super().get_help(ctx).replace(_ESCAPED, "[")

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command that the first argument names; parser and typer each suggest others, and one will do."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            first, mark, rest = error.format_message().partition(" Did you mean ")
            once = rest.partition(" Did you mean ")[0]
            raise click.UsageError(f"{first}{mark}{once}", ctx) from error


class App(typer.Typer):
    """An application of such groups and commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(
            cls=Group,
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            **given,
        )

    def command(self, name: str | None = None, **given: Any) -> Callable[[Function], Function]:
        """Add a command."""
        return super().command(name, **{"cls": Command, **given})


def usage_of(error: Exception) -> tuple[str, str] | None:
    """Return the sentence of a parser's error, and the command whose help explains it; None for other errors."""
    if not isinstance(error, click.ClickException):
        return None
    context = getattr(error, "ctx", None)
    return error.format_message(), "fedveil" if context is None else context.command_path
