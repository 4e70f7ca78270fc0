"""The command line: one short function for each command; the computations are elsewhere.

Every command takes ``--json`` (one object on standard output, nothing else there) and exits 0 on success, 2 on a user's
mistake (one clear sentence on standard error), 1 otherwise.
"""

import json
import os
import sys
from importlib import import_module
from typing import Annotated, Final, NoReturn

import typer

from fedveil.cli import show
from fedveil.cli.parsing import App, lazy_app, usage_of
from fedveil.core.errors import AlreadyFinished, FedveilError, Interrupted, why
from fedveil.version import __version__

_INTERRUPTED = 130  # exit code of typer for Ctrl-C

# By group: the modules of this package, and what each command that they add does, in one line of a narrow terminal.
# Help is shown without loading any of them.
GROUPS: Final[dict[str, dict[str, dict[str, str]]]] = {
    "Train": {
        "entry": {
            "init": "Draft a study for a file from its column names and types.",
            "profile": "Learn ranges and categories privately, and draft a study.",
        },
        "studies": {
            "plan": "Show schedule, noise and guarantees; touches no record.",
            "run": "Train, certify and write the report.",
            "tune": "Search a declared space; pay for it; release the best model.",
            "demo": "See it at once, on data of four hospitals that come along.",
        },
        "compare": {
            "compare": "Try several algorithms or kinds of trust on one study.",
        },
        "studio": {
            "studio": "Do all of this in a browser, on this machine alone.",
        },
    },
    "Use": {
        "model": {
            "predict": "Predict with a released model; needs no labels.",
            "personalise": "Adapt the shared model to a party's own records, at home.",
            "export": "Write a model as scikit-learn, ONNX or JSON.",
        },
        "forget": {
            "forget": "Let records or a client leave a model, with a receipt.",
        },
        "evaluate": {
            "evaluate": "Measure a model on other records, privately or publicly.",
        },
    },
    "Ask and share": {
        "ask": {
            "ask": "Ask about private records: charged, with intervals.",
        },
        "synthesis": {
            "synthesise": "Make a private generator, and synthetic rows from it.",
            "sample": "Draw more rows from a generator; costs no privacy.",
        },
        "card": {
            "card": "Write model card, registry entry and compliance answers.",
        },
    },
    "Check": {
        "studies": {
            "certify": "Recompute a certificate from the records; does it match?",
            "report": "Write the HTML report of a run again.",
        },
        "audit": {
            "audit": "Attack a run: what attackers achieve against the promise.",
        },
    },
    "Account": {
        "ledger": {
            "ledger": "What a data set has spent, run by run, and what is left.",
        },
        "account": {
            "account": "Epsilon of a mechanism, under every bound that applies.",
            "calibrate": "The least noise that meets a target epsilon.",
            "convert": "Between RDP, zCDP, tCDP, GDP and (epsilon, delta).",
        },
        "figures": {
            "bounds": "Generalisation bounds of federated averaging.",
            "figures": "Draw the papers' figures and ours, with their numbers.",
        },
    },
    "Operate": {
        "deploy": {
            "deploy": "Write, check and try a deployment on many machines.",
        },
        "site": {
            "site": "Guard a site's data; answer only the plans it accepted.",
        },
        "node": {
            "node": "Connect a site to the link; carries sealed envelopes.",
        },
        "relay": {
            "relay": "Connect the aggregator to the link; holds no keys.",
        },
        "holder": {
            "keyholder": "Hold the key of encrypted sums; open one sum a round.",
        },
        "keys": {
            "keys": "Make and show keys that sign certificates.",
        },
    },
}


def application() -> App:
    """Return the application; the code of a command is loaded when it is called."""
    app = lazy_app(
        {
            group: {name: sentence for commands in modules.values() for name, sentence in commands.items()}
            for group, modules in GROUPS.items()
        },
        _register,
        name="fedveil",
        help="Train one model across many data holders and prove how private it is.",
        epilog="Start: fedveil init visits.csv    Help: fedveil COMMAND --help",
    )
    app.callback()(_common)
    return app


def _register(name: str, app: App) -> None:
    module = next(module for modules in GROUPS.values() for module, commands in modules.items() if name in commands)
    import_module(f"fedveil.cli.{module}").register(app)


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
        code = application()(standalone_mode=False, prog_name="fedveil")
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
    line = " ".join(sentence.split())
    if "--json" in sys.argv and not show.has_printed_json():
        sys.stdout.write(json.dumps({"error": line, "code": code}) + "\n")
    sys.stderr.write(f"fedveil: {line}\n")
    sys.exit(code)
