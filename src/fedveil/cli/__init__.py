"""The command line: one short function for each command; the computations are elsewhere.

Every command takes ``--json`` (one object on standard output, nothing else there) and exits 0 on success, 2 on a user's
mistake (one clear sentence on standard error), 1 otherwise.
"""

import json
import os
import sys
from typing import Annotated, NoReturn

import typer

from fedveil.cli import (
    account,
    audit,
    card,
    compare,
    completion,
    deploy,
    entry,
    evaluate,
    figures,
    holder,
    keys,
    ledger,
    model,
    relay,
    show,
    site,
    studies,
    studio,
    synthesis,
    tune,
)
from fedveil.cli.parsing import App, usage_of
from fedveil.errors import FedveilError, why
from fedveil.run.system import Interrupted
from fedveil.version import __version__

_INTERRUPTED = 130  # exit code of typer for Ctrl-C

app = App(
    name="fedveil",
    help="Train across many data holders, release only the final model, certify how private it is.",
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"fedveil {__version__}\n")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for module in (
    entry,
    studies,
    studio,
    tune,
    synthesis,
    model,
    evaluate,
    card,
    audit,
    compare,
    ledger,
    account,
    figures,
    deploy,
    site,
    holder,
    relay,
    keys,
    completion,
):
    module.register(app)


def main() -> None:
    """Run a command; a user's mistake is one sentence and exit code 2, never a traceback."""
    os.umask(os.umask(0o022) | 0o022)  # so that no file, even one written by a library, can be changed by others
    show.begin()
    try:
        code = completion.answered(typer.main.get_command(app))
        if code is None:
            code = app(standalone_mode=False, prog_name="fedveil")
    except Interrupted as error:
        _fail(1, str(error))
    except (FedveilError, ValueError) as error:
        _fail(2, str(error))
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except MemoryError:
        _fail(1, "this machine has not enough memory for this; choose fewer rows, columns or rounds")
    except OSError as error:
        _fail(1, f"{error.filename or 'the output'} cannot be used: {why(error)}")
    except Exception as error:
        usage = usage_of(error)
        if usage is not None:
            _fail_usage(*usage)
        if os.environ.get("FEDVEIL_DEBUG"):
            raise
        _fail(1, f"internal error, please report it: {type(error).__name__}: {error}")
    if code == _INTERRUPTED:
        _fail(1, "stopped")
    sys.exit(code if isinstance(code, int) else 0)


def _fail_usage(message: str, command: str) -> NoReturn:
    if message.startswith("Usage:"):  # no command was given, so the message is the help text
        sys.stderr.write(message.replace("\\[", "[") + "\n")
        sys.exit(2)
    end = "" if message.endswith(("?", ".")) else "."
    _fail(2, f"{message}{end} See '{command} --help'.")


def _fail(code: int, sentence: str) -> NoReturn:
    """Say why in one sentence on standard error; with --json, as an object on standard output as well."""
    told = " ".join(sentence.split())
    if "--json" in sys.argv and not show.printed():
        sys.stdout.write(json.dumps({"error": told, "code": code}) + "\n")
    sys.stderr.write(f"fedveil: {told}\n")
    sys.exit(code)
