"""The application: all addresses, the files of the pages, and one sentence for whatever is refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedveil.core.errors import FedveilError
from fedveil.studio.ask_routes import Asking
from fedveil.studio.asker import Superseded
from fedveil.studio.design_routes import Design
from fedveil.studio.explore_routes import Explore
from fedveil.studio.gate import Gate
from fedveil.studio.layout import failure
from fedveil.studio.reading import Forged, TooLarge
from fedveil.studio.run_routes import Runs
from fedveil.studio.sentences import sentence_of
from fedveil.studio.sign_routes import Signing
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
