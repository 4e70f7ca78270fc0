"""Commands about keys that sign certificates."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.parsing import App
from fedveil.cli.show import Json, out, show
from fedveil.signing import SigningKey, public_path, write_key

keys = App(help="Keys that sign certificates.")


@keys.callback()
def _group() -> None:
    """Keep ``keys new`` two words, even while it is the only command of its group."""


@keys.command(
    short_help="Make a key: FILE for you, FILE.pub for everybody.", epilog="Example: fedveil keys new hospital.key"
)
def new(
    file: Annotated[Path, typer.Argument(help="A new file for the private key; the public one gets .pub added.")],
    as_json: Json = False,
) -> None:
    """Make a key: FILE for you alone, FILE.pub for everybody who checks your certificates."""
    signer = write_key(file, SigningKey(os.urandom(32)))
    result = {"private": str(file), "public": str(public_path(file)), "signer": signer.fingerprint}

    def text() -> None:
        out().print(f"written: {file} (keep it to yourself) and {public_path(file)} (give it to those who check)")
        out().print(f"signer: {signer.fingerprint}", highlight=False, soft_wrap=True)

    show(result, as_json, text)


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.add_typer(keys, name="keys")
