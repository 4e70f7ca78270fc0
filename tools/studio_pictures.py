"""Take the pictures of docs/studio.md anew: start the studio on an example, walk through it, and photograph it.

Called by ``make docs``. Without chromium, or without the studio's packages, the pictures stay as they are.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from chromium_pipe import CHROMIUM, Page, browser

EXACT = "document.getElementById('answer').dataset.state === 'exact'"


@contextmanager
def studio(folder: Path) -> Iterator[str]:
    """Start the studio in a folder and yield its address."""
    command = [sys.executable, "-m", "fedveil", "studio", str(folder), "--no-browser"]
    process = subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "300"}
    )
    try:
        found = re.search(r"http\S+", process.stdout.readline() if process.stdout is not None else "")
        if found is None:
            raise SystemExit("the studio did not start")
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def take(page: Page, address: str, out: Path) -> None:
    """Walk from an example to a finished run, and photograph what matters."""

    def picture(name: str) -> None:
        page.run("document.querySelector('footer').remove()")  # it names the folder, which is another every time
        page.picture(out / f"{name}.png")

    page.size(1280, 1180)
    page.go(address)
    origin = page.run("location.origin")
    page.leave("form.one button")
    page.wait(EXACT)
    picture("design")
    page.size(390, 1100, dark=True)
    page.run("document.getElementById('answer-part').scrollIntoView()")
    page.picture(out / "narrow.png")
    page.size(1280, 900)
    page.go(f"{origin}/sign")
    page.leave("#keys button")
    page.leave('a[href="/sign?study=hospitals.toml"]')
    picture("sign")
    page.leave('form[action="/approve"] button')
    page.go(f"{origin}/start?study=hospitals.toml")
    page.leave("main form button")
    page.wait("document.getElementById('watched').dataset.state === 'done'", 300)
    page.leave("#see")
    picture("run")
    page.go(f"{origin}/explore")
    page.wait("document.querySelectorAll('[data-drawn]').length === 6", 120)
    page.run("document.getElementById('trade_off').scrollIntoView()")
    picture("explore")


def main(out: Path) -> None:
    """Take all pictures into a folder."""
    if CHROMIUM is None or find_spec("starlette") is None or find_spec("uvicorn") is None:
        sys.stderr.write("studio pictures: left as they are, since chromium or fedveil[studio] is not installed\n")
        return
    with tempfile.TemporaryDirectory() as folder, studio(Path(folder)) as address, browser() as found:
        take(found.page(), address, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
