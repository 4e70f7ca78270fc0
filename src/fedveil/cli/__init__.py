"""The command line: one short function for each command; the computations are elsewhere.

Every command takes ``--json`` (one object on standard output, nothing else there) and exits 0 on success, 2 on a user's
mistake (one clear sentence on standard error), 1 otherwise.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final, NoReturn

import typer

from fedveil.cli import show
from fedveil.cli.parsing import App, usage_of
from fedveil.errors import AlreadyFinished, FedveilError, Interrupted, why
from fedveil.version import __version__

_INTERRUPTED = 130  # exit code of typer for Ctrl-C
_COMPLETING: Final = "_FEDVEIL_COMPLETE"  # set by a shell that asks for words: see completion.py
PARTS: Final = {  # the modules of this package, with the commands that each adds
    "entry": ("init", "profile"),
    "studies": ("demo", "plan", "run", "certify", "report"),
    "studio": ("studio",),
    "tune": ("tune",),
    "synthesis": ("synthesise", "sample"),
    "model": ("predict", "personalise", "export"),
    "evaluate": ("evaluate",),
    "card": ("card",),
    "audit": ("audit",),
    "compare": ("compare",),
    "ledger": ("ledger",),
    "account": ("account", "calibrate", "convert"),
    "figures": ("bounds", "figures"),
    "deploy": ("deploy",),
    "site": ("site",),
    "node": ("node",),
    "holder": ("keyholder",),
    "relay": ("relay",),
    "keys": ("keys",),
    "completion": ("completion",),
}


def application(words: Sequence[str] = ()) -> App:
    """Return the application for a call with these words: with the command that they begin with, otherwise with all.

    Loading every command takes a third of a second, which each call would pay for.
    """
    app = App(
        name="fedveil",
        help="Train across many data holders, release only the final model, certify how private it is.",
    )
    app.callback()(_common)
    named = [part for part, commands in PARTS.items() if words and words[0] in commands]
    for part in named or PARTS:
        import_module(f"fedveil.cli.{part}").register(app)
    return app


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"fedveil {__version__}\n")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command; a user's mistake is one sentence and exit code 2, never a traceback."""
    os.umask(os.umask(0o022) | 0o022)  # so that no file, even one written by a library, can be changed by others
    show.begin()
    try:
        code = _completed() if os.environ.get(_COMPLETING) else None
        if code is None:
            code = application(sys.argv[1:])(standalone_mode=False, prog_name="fedveil")
    except AlreadyFinished as error:
        code = _tell_finished(error)
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


def _completed() -> int | None:
    """Answer a shell that asks for completion."""
    from fedveil.cli.completion import answered

    return answered(typer.main.get_command(application()))


def _tell_finished(error: AlreadyFinished) -> int:
    """Say that a job to be resumed has finished: a result, not a mistake."""
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps({"finished": True, "folder": error.folder, "told": str(error)}) + "\n")
    elif "--quiet" not in sys.argv:
        sys.stdout.write(f"{error}\n")
    return 0


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
