"""The command of a site's node, which stands between its guard and Flower's link."""

from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.serving import go_on_as
from fedveil.cli.show import Json
from fedveil.core.errors import require


def node(
    superlink: Annotated[str, typer.Option("--superlink", help="HOST:PORT of the link.")],
    key: Annotated[Path, typer.Option("--key", help="The site's node.key.")],
    socket: Annotated[Path, typer.Option("--socket", help="The guard's socket.")],
    authority: Annotated[Path | None, typer.Option("--authority", help="authority.pem; beside the key.")] = None,
    patience: Annotated[float, typer.Option("--patience", help="Seconds to try to get in.")] = 90.0,
    as_json: Json = False,
) -> None:
    """Connect a site to the link: carries sealed envelopes to the guard and back, and runs no uploaded code."""
    host, _, port = superlink.rpartition(":")
    require(bool(host) and port.isdigit(), "--superlink", "be HOST:PORT", superlink)
    authority = authority or key.parent / "authority.pem"
    for path in (key, authority):
        require(path.exists(), "The node", f"find {path.name}", str(path))
    shown = ["--json"] if as_json else []
    words = (host, port, str(authority), str(key), str(socket.absolute()), str(patience), *shown)
    go_on_as("fedveil.federation.flower.node", *words)


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command(epilog="Example: fedveil node --superlink HOST:9092 --key node.key --socket guard.sock")(node)
