"""Who may ask the studio for anything: a browser of this machine that was given the address with the token.

Checked for every request, before anything else runs: the Host header (so that a foreign name that was made to point at
this machine gets nothing), where the request comes from (pages of other sites get nothing), and the cookie, which only
the address with the token sets. The answers carry headers that keep the pages from loading or sending anything else.
"""

import hmac
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl

from starlette.requests import ClientDisconnect, Request

from fedveil.core.errors import BadValue, require
from fedveil.core.files import PART, sync_folder
from fedveil.core.strict_json import read_object

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN: Final = "/open"  # the page that takes the token and sets the cookie
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SAFE = ("GET", "HEAD")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_NO_COOKIE = "This studio opens only at the address that it printed when it was started."
_NO_HOST = "This studio answers only at its own address, on this machine."
_CROSS = "This request came from another site, so nothing was done."


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What a browser must know: ``token`` is in the address, ``session`` in the cookie, ``form`` in every form."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    form: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


def same(given: str | None, wanted: str) -> bool:
    """Compare secrets in a time that does not depend on where they differ."""
    return hmac.compare_digest((given or "").encode(), wanted.encode())


class Gate:
    """The application behind its checks; ``port`` is where it listens on the loopback interface."""

    def __init__(self, inner: App, known: Secrets, port: int) -> None:
        self._inner, self._known, self._port = inner, known, port
        names = ("127.0.0.1", "localhost", "[::1]")
        self._hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())
        self.cookie = f"fedveil-studio-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it in one sentence."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._inner(scope, receive, send)
            return
        headers = _headers(scope)
        host = headers.get("host", "")
        if host not in self._hosts or headers.get("host#") != "1":
            await _refuse(send, 421, _NO_HOST)
        elif scope["path"] == OPEN and scope["method"] == "GET":
            await self._open(scope, send)
        elif not self._same_origin(scope["method"], headers, host):
            await _refuse(send, 403, _CROSS)
        elif not same(_cookie(headers, self.cookie), self._known.session):
            await _refuse(send, 403, _NO_COOKIE)
        else:
            await self._inner(scope, receive, _with_headers(send))

    def _same_origin(self, method: str, headers: dict[str, str], host: str) -> bool:
        """Return whether a page of the studio, or the user with the address bar, asks.

        Browsers say so in Sec-Fetch-Site, and in Origin for everything that may change something.
        """
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return False
        if method in _SAFE:
            return site in (None, "same-origin", "none")
        return site == "same-origin" or (site is None and origin is not None)

    async def _open(self, scope: Scope, send: Send) -> None:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not same(given, self._known.token):
            await _refuse(send, 403, _NO_COOKIE)
            return
        cookie = f"{self.cookie}={self._known.session}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, b"", headers)


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers by name; ``host#`` counts how often the host is stated."""
    headers: dict[str, str] = {}
    hosts = 0
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        hosts += key == "host"
        headers[key] = value.decode("latin-1")
    return {**headers, "host#": str(hosts)}


def _cookie(headers: dict[str, str], name: str) -> str | None:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return None
    return jar[name].value if name in jar else None


def _with_headers(send: Send) -> Send:
    """Add the headers that keep a page to itself; a page that states a policy of its own keeps that."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", []))
            stated = {name.lower() for name, _ in given}
            added = [*_HEADERS, (b"content-security-policy", POLICY.encode())]
            message = {**message, "headers": [*given, *((n, v) for n, v in added if n not in stated)]}
        await send(message)

    return sent


async def _refuse(send: Send, status: int, sentence: str) -> None:
    await _answer(send, status, f"{sentence}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    whole = _with_headers(send)
    length = (b"content-length", str(len(body)).encode())
    await whole({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await whole({"type": "http.response.body", "body": body})


# What a request brings: forms, JSON and uploaded files, each with its size bounded while it is being read.

SMALL: Final = 1_000_000  # bytes of a form or of a study's text


class TooLarge(BadValue):
    """More bytes were sent than are allowed."""


class Forged(BadValue):
    """A form did not carry the word that this studio put into it."""


async def form(request: Request, word: str) -> dict[str, str]:
    """Return the fields of a form that one of our own pages sent."""
    try:
        given = dict(parse_qsl((await _body(request)).decode("utf-8"), keep_blank_values=True, max_num_fields=200))
    except ValueError as error:
        if isinstance(error, BadValue):
            raise
        raise BadValue("The form must be text that was sent by a page of the studio.") from error
    _check_word(given.pop("word", None), word)
    return given


async def content(request: Request, word: str) -> dict[str, Any]:
    """Return the JSON object that a script of our own pages sent."""
    _check_word(request.headers.get("x-fedveil-word"), word)
    return read_object(await _body(request), "The request")


def text_in(given: dict[str, Any], key: str) -> str:
    """Return a text of a JSON object."""
    value = given.get(key)
    require(isinstance(value, str), key, "be a text", type(value).__name__)
    return str(value)


async def upload(request: Request, word: str, path: Path, most: int) -> int:
    """Write what a browser uploads to the new file ``path``; return its size. A part of a file is never left behind."""
    _check_word(request.headers.get("x-fedveil-word"), word)
    part = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{PART}")
    size = 0
    try:
        with part.open("xb") as file:
            async for piece in _pieces(request, most):
                file.write(piece)
                size += len(piece)
            file.flush()
            os.fsync(file.fileno())
        require(size > 0, path.name, "hold something", "nothing")
        try:
            os.link(part, path)  # refuses a name that was taken meanwhile
        except FileExistsError as error:
            raise BadValue(f"{path.name} must be a new name: there is a file of this name already.") from error
        sync_folder(path.parent)
    except ClientDisconnect as error:
        raise BadValue("The upload broke off, and nothing was kept.") from error
    finally:
        part.unlink(missing_ok=True)
    return size


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in _pieces(request, SMALL):
        body += piece
    return bytes(body)


async def _pieces(request: Request, most: int) -> AsyncIterator[bytes]:
    """Yield what is sent; stop with a refusal as soon as it is, or says that it will be, too much."""
    stated = request.headers.get("content-length", "0")
    require(stated.isdecimal(), "Content-Length", "be a whole number", stated[:40])
    sent = 0
    _check_size(int(stated), most)
    async for piece in request.stream():
        sent += len(piece)
        _check_size(sent, most)
        yield piece


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise TooLarge(
            f"What is sent must be at most {most:,} bytes, got at least {size:,}. Larger files: put them into the "
            "working folder, or start the studio with a larger --upload-limit."
        )


def _check_word(given: str | None, word: str) -> None:
    if not same(given, word):
        raise Forged(
            "This form is not from a page of this studio, or the studio was started anew: load the page again."
        )
