"""Ask the studio's application in this process, with the headers and the cookies of a browser."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode

PORT = 8123
HERE = f"http://127.0.0.1:{PORT}"
SAME = {"origin": HERE, "sec-fetch-site": "same-origin"}


@dataclass(frozen=True)
class Answer:
    status_code: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode("utf-8")

    def json(self) -> Any:
        return json.loads(self.content)


class Client:
    """A browser with one cookie; ``word`` goes into every form, as the studio's pages put it there."""

    def __init__(self, app: Any, word: str = "") -> None:
        self._app, self.word = app, word
        self.cookie: str | None = None

    def get(
        self, path: str, params: Mapping[str, str] | None = None, headers: Mapping[str, Any] | None = None
    ) -> Answer:
        return self._ask("GET", path, params, headers or {}, [b""])

    def post(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, Any] | None = None,
        content: bytes | Iterable[bytes] = b"",
    ) -> Answer:
        given = dict(headers or {})
        if isinstance(content, bytes):
            given.setdefault("content-length", str(len(content)))
            content = [content]
        return self._ask("POST", path, params, given, content)

    def form(self, path: str, **fields: str) -> Answer:
        """Send a form of one of the studio's own pages."""
        return self.post(path, headers=SAME, content=urlencode({**fields, "word": self.word}).encode())

    def script(self, path: str, **fields: Any) -> Answer:
        """Ask as a script of one of the studio's own pages."""
        headers = {**SAME, "x-fedveil-word": self.word}
        return self.post(path, headers=headers, content=json.dumps(fields).encode())

    def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, Any],
        body: Iterable[bytes],
    ) -> Answer:
        path, _, query = path.partition("?")
        given = {"host": HERE.removeprefix("http://"), **headers}
        if self.cookie is not None and "cookie" not in given:
            given["cookie"] = self.cookie
        raw = [(k.encode(), v if isinstance(v, bytes) else v.encode()) for k, v in given.items()]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "asgi": {"version": "3.0"},
            "scheme": "http",
            "server": ("127.0.0.1", PORT),
            "client": ("127.0.0.1", 50000),
            "root_path": "",
            "method": method,
            "path": unquote_to_bytes(path).decode("utf-8"),
            "raw_path": path.encode(),
            "query_string": (urlencode(params) if params is not None else query).encode(),
            "headers": raw,
        }
        pieces = iter([*body, None])

        async def receive() -> dict[str, Any]:
            piece = next(pieces, None)
            if piece is None:
                return {"type": "http.request", "body": b"", "more_body": False}
            return {"type": "http.request", "body": piece, "more_body": True}

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self._app(scope, receive, send))
        found = {k.decode("latin-1"): v.decode("latin-1") for k, v in sent[0]["headers"]}
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        return Answer(sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:]))
