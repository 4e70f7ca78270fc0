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

# The modules of this package and the first sentence of each command that they add: help is shown without loading any.
PARTS: Final[dict[str, dict[str, str]]] = {
    "entry": {
        "init": "Draft a study from the names and types of the columns; no value enters it, and nothing is charged.",
        "profile": "Measure a private profile of unknown data, charge it, and draft a study that runs as it is.",
    },
    "studies": {
        "demo": "The main job on built-in data: train across four hospitals, release only the last model, certify it.",
        "plan": "Schedule, noise and guarantees of a study; trains nothing, touches no row values.",
        "run": "Train, certify, report.",
        "certify": "Recompute the certificate from the run's records alone, and say whether it matches.",
        "report": "The HTML page again.",
    },
    "studio": {
        "studio": "Design, sign, run, watch and explore studies in a browser, on this machine alone.",
    },
    "tune": {
        "tune": "Search over the study's [tune] table, release only the best model, and charge what the search costs.",
    },
    "synthesis": {
        "synthesise": "Measure a private generator, charge and certify it, and draw synthetic rows.",
        "sample": "Draw more rows from a generator, free: no record is looked at.",
    },
    "model": {
        "predict": "Predict with a released model; the records need no labels, and theirs are not looked at.",
        "personalise": "Make a party's own model from the shared one and its own records; nothing leaves the party.",
        "export": "Write a released model for others: scikit-learn (.skops, .joblib or .pkl), ONNX, or plain JSON.",
    },
    "evaluate": {
        "evaluate": (
            "Measure a released model on other records: privately, with a certificate, or exactly on public ones."
        ),
    },
    "card": {
        "card": "Write the model card (HTML, Markdown) and the entry of a public registry of deployments (YAML).",
    },
    "audit": {
        "audit": "Attack it: what attackers achieve, beside what is certified.",
    },
    "compare": {
        "compare": "Algorithms side by side at one target: every model it trains is a release of its own.",
    },
    "ledger": {
        "ledger": "What was spent on a data set, by whom, and what is left under its caps, for every observer.",
    },
    "account": {
        "account": "How private is this mechanism, under every bound that applies.",
        "calibrate": "The least noise that meets the target; the file may leave its noise out.",
        "convert": "Between (alpha, zeta)-RDP, zCDP, tCDP, mu-GDP and (epsilon, delta), with groups and repetition.",
    },
    "figures": {
        "bounds": "Generalisation bounds of federated averaging.",
        "figures": "The papers' figures and ours, as SVG and PNG with the numbers in CSV.",
    },
    "site": {
        "site": "Guard a site's data: shows every plan before its first update, and answers only what it has accepted.",
    },
    "node": {
        "node": (
            "Connect a site to the link: carries sealed envelopes to the guard and back, and runs no uploaded code."
        ),
    },
    "holder": {
        "keyholder": (
            "Hold the key of encrypted sums: shows every plan, and opens one sum a round of those it has accepted."
        ),
    },
    "relay": {
        "relay": (
            "Connect the aggregator to the link: carries sealed envelopes, has no keys, and runs no uploaded code."
        ),
    },
    "deploy": {
        "deploy": "Many machines: write a deployment, check it, try it on this machine.",
    },
    "keys": {
        "keys": "Keys that sign certificates.",
    },
}


def application() -> App:
    """Return the application; the code of a command is loaded when it is called."""
    app = lazy_app(
        {name: sentence for commands in PARTS.values() for name, sentence in commands.items()},
        _register,
        name="fedveil",
        help="Train across many data holders, release only the final model, certify how private it is.",
    )
    app.callback()(_common)
    return app


def _register(name: str, app: App) -> None:
    part = next(part for part, commands in PARTS.items() if name in commands)
    import_module(f"fedveil.cli.{part}").register(app)


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
