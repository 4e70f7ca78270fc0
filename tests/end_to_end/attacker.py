"""Somebody who knows where the link is and has ``authority.pem``, as every site does; what they may try."""

import socket
import ssl
from pathlib import Path

from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.network import flwr, write_connection

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "harmless"
version = "1.0.0"
description = "Reads what it can."
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "harmless.server:app"
clientapp = "harmless.client:app"
"""
CODE = """
from pathlib import Path
Path("LOOT/SIDE").write_bytes(Path("KEY").read_bytes())
app = None
"""


def hostile_app(folder: Path, loot: Path, key: Path) -> Path:
    """An app that copies ``key`` into ``loot`` as soon as either of its sides is loaded."""
    (folder / "harmless").mkdir(parents=True)
    loot.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "harmless" / "__init__.py").write_text("")
    for side in ("server", "client"):
        text = CODE.replace("LOOT", str(loot)).replace("SIDE", side).replace("KEY", str(key))
        (folder / "harmless" / f"{side}.py").write_text(text)
    return folder


def command(home: Path, host: str, port: int, authority: Path, words: list[str]) -> None:
    """One command of Flower's at this address; refused commands raise."""
    link = Link(name="theirs", host=host, port=port, authority=authority)
    write_connection(home, link)
    flwr(home, [[word if word != "LINK" else link.name for word in words]])


def status(port: int, authority: Path, request: bytes) -> str:
    """The status of the answer to these bytes, on this machine; an empty word if the connection is closed."""
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60.0) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(request)
        line = secure.recv(4096).split(b"\r\n")[0].decode("ascii", "replace")
    return line.split(" ")[1] if line.startswith("HTTP/") else ""


def post(path: str, *headers: str, body: str = "") -> bytes:
    """A request as a node would make it."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/protobuf", "Connection: close"]
    lines += headers or (f"Content-Length: {len(body)}",)
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode("ascii")
