"""Drive Debian's chromium by its own protocol, through a pipe: no package and no network is needed.

Only what tests and screenshots need: open a page, wait for a state, click, type, take a picture, ask axe-core.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--mute-audio", "--no-default-browser-check", "--remote-debugging-pipe"),
)
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 100) for end in sys.argv[1:3]]
for place, end in zip((3, 4), ends):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0  # seconds until a state that does not come is a failure


class Failed(AssertionError):
    """The browser did not reach the state that was waited for."""


class Page:
    """One tab."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        for part in ("Page", "Runtime", "Network", "DOM", "Log"):
            self.send(f"{part}.enable")

    def send(self, method: str, **given: Any) -> dict[str, Any]:
        """Send a command to the tab and return its result."""
        return self._browser.send(method, given, self._session)

    def go(self, address: str) -> None:
        """Open an address, and wait until it is loaded."""
        self.run("window.__before = true")
        self._browser.events.clear()
        self.send("Page.navigate", url=address)
        self.wait("!window.__before && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; an error in it fails."""
        found = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in found:
            raise Failed(f"{script[:200]}: {json.dumps(found['exceptionDetails'])[:600]}")
        return found["result"].get("value")

    def wait(self, condition: str, patience: float = PATIENCE) -> Any:
        """Wait until an expression is true, and return it."""
        end = time.monotonic() + patience
        last = None
        while time.monotonic() < end:
            with contextlib.suppress(Failed):  # while a page is replaced, nothing can be asked
                last = self.run(condition)
                if last:
                    return last
            time.sleep(0.03)
        text = self.run("document.body ? document.body.innerText.slice(0, 1500) : ''")
        raise Failed(f"waited {patience:.0f} s for {condition!r} (last: {last!r}), and the page said:\n{text}")

    def click(self, selector: str) -> None:
        """Click an element that is there."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def leave(self, selector: str) -> None:
        """Click something that leads to another page, and wait for that page."""
        self.run("window.__before = true")
        self.click(selector)
        self.wait("!window.__before && document.readyState === 'complete'")

    def choose(self, selector: str, value: str, event: str = "change") -> None:
        """Set a field as a user would, with the events that follow."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value = {json.dumps(value)};"
            f" one.dispatchEvent(new Event('input', {{bubbles: true}}));"
            f" if ({json.dumps(event)} === 'change') one.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
        )

    def attach(self, selector: str, file: Path) -> None:
        """Choose a file in a file field."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def text(self, selector: str = "main") -> str:
        """Return the text of an element as it is shown."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def size(
        self, width: int, height: int = 900, *, dark: bool = False, scale: float = 1.0, media: str = "screen"
    ) -> None:
        """Set the size of the window, or of the paper, and the colour scheme; a narrow window is a phone's."""
        phone = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme, still])

    def violations(self) -> list[str]:
        """Return what axe-core finds wrong with the page for people who use assistive technology."""
        from axe_core_python import __file__ as package  # the script of the npm package axe-core, as pip installs it

        self.run((Path(package).parent / "axe.min.js").read_text("utf-8") + "; true")
        broken = self.run("axe.run().then(result => result.violations.map(v => [v.id, v.nodes.map(n => n.html)]))")
        return [f"{rule}: {html[:200]}" for rule, nodes in broken for html in nodes]

    @property
    def events(self) -> list[dict[str, Any]]:
        """What this tab reported since it went to its address."""
        return [event for event in self._browser.events if event.get("sessionId") == self._session]

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of what is seen, or of the whole page."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


class Browser:
    """A running chromium with an empty profile."""

    def __init__(self, profile: Path) -> None:
        if CHROMIUM is None:
            raise Failed("chromium is not installed")
        self._out, theirs = os.pipe()[::-1]
        mine, self._in = os.pipe()
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(  # noqa: S603  the browser reads from 3 and writes to 4
            [sys.executable, "-c", _START, str(theirs), str(self._in), *command],
            pass_fds=(theirs, self._in),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(self._in)
        self._in = mine
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []
        self.complaints: list[str] = []  # errors of scripts, and what a policy has blocked

    def send(self, method: str, given: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """Send a command and return its result; events that arrive meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if session is not None:
            message["sessionId"] = session
        left = json.dumps(message).encode() + b"\0"
        while left:  # a pipe takes a long script in parts
            left = left[os.write(self._out, left) :]
        while True:
            found = self._message()
            self._heed(found)
            if found.get("id") == self._number:
                if "error" in found:
                    raise Failed(f"{method}: {found['error'].get('message')}")
                result: dict[str, Any] = found["result"]
                return result

    def _heed(self, found: dict[str, Any]) -> None:
        """Keep what a page reports, and what it complains about."""
        if "method" in found:
            self.events.append(found)
        entry = found.get("params", {}).get("entry", {})
        if found.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(found["params"]["exceptionDetails"])[:500])
        elif found.get("method") == "Log.entryAdded" and entry.get("level") == "error":
            self.complaints.append(f"{entry.get('text')} {entry.get('url', '')}")

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 16)
            if not more:
                raise Failed("the browser ended")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def page(self) -> Page:
        """Open a tab."""
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        return Page(self, session)

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(Failed, OSError):
            self.send("Browser.close", {})
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield a browser, and end it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        running = Browser(Path(profile))
        try:
            yield running
        finally:
            running.close()
