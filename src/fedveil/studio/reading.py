"""What a request brings: forms, JSON and uploaded files, each with its size bounded while it is being read."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from fedveil.core.errors import BadValue, require
from fedveil.core.files import PART, sync_folder
from fedveil.core.strict_json import read_object
from fedveil.studio.gate import same

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
