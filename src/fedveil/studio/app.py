"""The application: all addresses, the files of the pages, and one sentence for whatever is refused."""

import socket
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedveil.core.errors import BadValue, FedveilError, require, why
from fedveil.studio.ask_routes import Asking
from fedveil.studio.asker import Superseded
from fedveil.studio.design_routes import Design
from fedveil.studio.explore import Explore
from fedveil.studio.forget_routes import Forgetting
from fedveil.studio.gate import OPEN, Forged, Gate, TooLarge
from fedveil.studio.layout import failure
from fedveil.studio.places import Folder
from fedveil.studio.runs import Runs
from fedveil.studio.sentences import sentence_of
from fedveil.studio.signing import Signing
from fedveil.studio.state import Studio, html_response

_KINDS = {".css": "text/css", ".js": "text/javascript"}


def application(studio: Studio, port: int) -> Gate:
    """Return the application of a studio that listens on ``port``, behind its gate."""

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        studio.warm()
        try:
            yield
        finally:
            studio.close()

    async def refused(request: Request, error: Exception) -> Response:
        status = _status(error)
        sentence = "There is no such page." if status == 404 else sentence_of(error)
        if request.url.path.startswith("/api/") or request.url.path == "/upload":
            return JSONResponse({"error": sentence, "superseded": isinstance(error, Superseded)}, status_code=status)
        return html_response(studio.frame.page("That did not work", "", failure(sentence)), status)

    inner = Starlette(
        routes=[
            Route("/static/{name}", _static),
            *Design(studio).routes(),
            *Asking(studio).routes(),
            *Forgetting(studio).routes(),
            *Signing(studio).routes(),
            *Runs(studio).routes(),
            *Explore(studio).routes(),
        ],
        exception_handlers={
            FedveilError: refused,
            ValueError: refused,
            OSError: refused,
            HTTPException: refused,
            Exception: refused,
        },
        lifespan=life,
    )
    return Gate(inner, studio.known, port)


def _status(error: Exception) -> int:
    match error:
        case HTTPException():
            return error.status_code
        case TooLarge():
            return 413
        case Forged():
            return 403
        case Superseded():
            return 200  # no mistake: the page has asked something newer
        case FedveilError() | ValueError():
            return 400
        case _:
            return 500


def _static(request: Request) -> Response:
    """Return a style sheet or a script of the package: only files that are listed there, by their whole names."""
    name = request.path_params["name"]
    room = files("fedveil.report") if name == "page.css" else files("fedveil.studio").joinpath("static")
    known = {"page.css"} if name == "page.css" else {one.name for one in room.iterdir()}
    kind = _KINDS.get(name[name.rfind(".") :])
    if name not in known or kind is None:
        raise HTTPException(404)
    return Response(room.joinpath(name).read_bytes(), media_type=kind)


# Start the studio: listen on this machine only, say the address with its token, and open a browser there.

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
