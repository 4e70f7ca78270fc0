"""The command of the aggregator's relay, which stands between the aggregator and Flower's link."""

from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.show import Json, show
from fedveil.core.errors import require
from fedveil.federation.carrying.serving import say, stop_requests
from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.internals import untried_warning
from fedveil.federation.flower.network import check_installed
from fedveil.federation.site.socket import listening


def relay(
    superlink: Annotated[str, typer.Option("--superlink", help="HOST:PORT of the link, on this machine.")],
    secret: Annotated[Path, typer.Option("--secret", help="superexec.secret, as the link has it.")],
    socket: Annotated[Path, typer.Option("--socket", help="Where the aggregator knocks.")],
    authority: Annotated[Path | None, typer.Option("--authority", help="authority.pem; beside the secret.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="The group that the aggregator runs under.")] = None,
    as_json: Json = False,
) -> None:
    """Connect the aggregator to the link: carries sealed envelopes, has no keys, and runs no uploaded code."""
    host, _, port = superlink.rpartition(":")
    require(bool(host) and port.isdigit(), "--superlink", "be HOST:PORT", superlink)
    link = Link(name="link", host=host, port=int(port), authority=authority or secret.parent / "authority.pem")
    for path in (secret, link.authority):
        require(path.exists(), "The relay", f"find {path.name}", str(path))
    if warning := untried_warning(check_installed()):
        say(warning)
    from fedveil.federation.flower.relay import Relay  # Flower is imported only here

    stopped = stop_requests()
    server = Relay(link=link, secret=secret.read_bytes(), tell=say)
    with listening(socket, group) as door:
        say("relay: listening for the aggregator")
        server.serve(door, lambda: bool(stopped))
    show({"stopped": True}, as_json, lambda: None)


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    example = "Example: fedveil relay --superlink localhost:9093 --secret superexec.secret --socket relay.sock"
    app.command(epilog=example)(relay)
