"""The command that opens the studio in a browser."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.show import out
from fedveil.core.errors import NotAvailable


def studio(
    folder: Annotated[
        Path, typer.Argument(help="The folder to work in; nothing outside it is read or written.")
    ] = Path(),
    port: Annotated[int, typer.Option("--port", help="On this machine only; 0: any that is free.")] = 0,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="A signing key that may lie anywhere; from: fedveil keys new.")
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option("--module", help="Code that studies may name: planning runs it; may be repeated."),
    ] = None,
    upload_limit: Annotated[int, typer.Option("--upload-limit", help="Largest uploaded file, in megabytes.")] = 200,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser at its address.")] = True,
) -> None:
    """Design, sign, run, watch and explore studies in a browser, on this machine alone."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise NotAvailable("The studio needs two more packages: pip install 'fedveil[studio]'.")
    from fedveil.studio.app import serve  # imported here because only this command needs a web server

    def tell(address: str) -> None:
        out().print(f"studio: {address}", soft_wrap=True)
        out().print("Keep this address to yourself: whoever has it may use the studio. Stop with Ctrl-C; runs go on.")

    serve(
        folder,
        port=port,
        upload_limit=upload_limit * 1_000_000,
        key=sign,
        modules=module or (),
        browser=browser,
        tell=tell,
    )


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command(epilog="Example: fedveil studio studies")(studio)
