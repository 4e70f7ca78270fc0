"""Start the studio: listen on this machine only, say the address with its token, and open a browser there."""

import socket
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn

from fedveil.core.errors import BadValue, require, why
from fedveil.studio.app import application
from fedveil.studio.gate import OPEN
from fedveil.studio.places import Folder
from fedveil.studio.state import Studio

LOOPBACK = "127.0.0.1"


def serve(
    folder: Path,
    *,
    port: int = 0,
    upload_limit: int,
    key: Path | None = None,
    modules: Sequence[str] = (),
    browser: bool = True,
    tell: Callable[[str], None],
) -> None:
    """Serve the studio of a folder until it is stopped; port 0 takes a free one. ``tell`` is told the address."""
    require(0 <= port <= 65535, "--port", "lie between 0 and 65535", port)
    require(upload_limit >= 1, "--upload-limit", "be at least 1", upload_limit)
    signer = None if key is None else key.resolve()
    studio = Studio(folder=Folder(folder, tuple(modules)), upload_limit=upload_limit, key=signer)
    listening = _listening(port)
    port = int(listening.getsockname()[1])
    address = f"http://{LOOPBACK}:{port}{OPEN}?token={studio.known.token}"
    config = uvicorn.Config(
        application(studio, port),
        log_level="critical",  # what goes wrong is a sentence on the page
        access_log=False,  # addresses hold the token
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    tell(address)
    if browser:
        webbrowser.open(address)
    with listening, suppress(KeyboardInterrupt):  # Ctrl-C is the way to end it
        uvicorn.Server(config).run(sockets=[listening])


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise BadValue(f"--port must be free on this machine, got {port}: {why(error)}.") from error
    return listener
