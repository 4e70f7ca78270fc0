"""A real browser, driven over a pipe: no driver program, no sockets, no library."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
_PATIENCE = 120  # seconds without a word
_FLAGS = [
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]


class Page:
    """One page of the browser, and everything it reported."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._number, self._rest, self._session = 0, b"", None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **values: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what happens meanwhile is kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        if self._session is not None:
            message["sessionId"] = self._session
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self._write, left) :]
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return dict(found["result"])

    def open(self, path: Path) -> None:
        """Load a file and wait until it has loaded."""
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()

    def look(self, *, width: int, height: int = 900, scheme: str = "light", media: str = "screen") -> None:
        """As a screen of this size, or as paper, with this colour scheme."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE)
            part = os.read(self._read, 1 << 20) if ready else b""
            assert part, "the browser has gone, or does not answer"
            self._rest += part
        text, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(text)
        if "method" in found:
            self.events.append(found)
        return found


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page in a browser of its own, which ends with the block."""
    assert CHROMIUM is not None
    (their_read, our_write), (our_read, their_write) = os.pipe(), os.pipe()
    pipes = f'exec "$0" "$@" 3<&{their_read} 4>&{their_write}'
    command = ["bash", "-c", pipes, CHROMIUM, *_FLAGS, f"--user-data-dir={folder}"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command, pass_fds=(their_read, their_write), stdout=quiet, stderr=quiet, start_new_session=True
    )
    os.close(their_read)
    os.close(their_write)
    try:
        yield Page(our_read, our_write)
    finally:
        os.close(our_read)
        os.close(our_write)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
