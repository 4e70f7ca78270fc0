"""What the running studio has: its folder, its secrets, its two workers, and what its sliders know."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fedveil.core.errors import BadValue, FedveilError, require, why
from fedveil.core.files import PUBLIC, read_file, write_atomically
from fedveil.studio.asker import WORKER, Asker
from fedveil.studio.gate import Secrets
from fedveil.studio.layout import Frame
from fedveil.studio.places import Folder
from fedveil.studio.sliders import Sliders

UPLOAD_LIMIT = 200_000_000  # bytes


@dataclass(slots=True, kw_only=True)
class Studio:
    """Everything that the pages share. ``key``: the file of a signing key that the command line named."""

    folder: Folder
    known: Secrets = field(default_factory=Secrets)
    upload_limit: int = UPLOAD_LIMIT
    key: Path | None = None
    sliders: Sliders = field(default_factory=Sliders)
    exact: Asker = field(init=False)
    background: Asker = field(init=False)
    later: ThreadPoolExecutor = field(init=False)
    saving: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        command = (*WORKER, *self.folder.modules)
        self.exact, self.background = Asker(self.folder.root, command), Asker(self.folder.root, command)
        self.later = ThreadPoolExecutor(max_workers=4, thread_name_prefix="studio")

    @property
    def frame(self) -> Frame:
        """Return the frame of every page."""
        return Frame(word=self.known.form, folder=str(self.folder.root))

    def warm(self) -> None:
        """Have both workers load what they need, while the first page is being read."""
        for asker in (self.exact, self.background):
            self.later.submit(self._quietly, asker)

    @staticmethod
    def _quietly(asker: Asker) -> None:
        try:
            asker.ask("ready", {})
        except FedveilError:
            return

    def close(self) -> None:
        """End the workers. Runs are processes of their own, and go on."""
        self.exact.close()
        self.background.close()
        self.later.shutdown(wait=False, cancel_futures=True)

    async def ask(self, name: str, arguments: dict[str, Any], kind: str = "", *, aside: bool = False) -> Any:
        """Ask the worker for exact answers, without making other requests wait; ``aside``: ask the other one."""
        asker = self.background if aside else self.exact
        return await run_in_threadpool(asker.ask, name, {**arguments, "root": str(self.folder.root)}, kind)

    def study(self, name: object) -> tuple[Path, str, str]:
        """Return a study file's path, its text, and a mark of exactly this text."""
        path = self.folder.existing(name, "The study file")
        require(path.suffix == ".toml", "The study file", "end in .toml", path.name)
        try:
            data = read_file(path)
            text = data.decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise BadValue(f"The study file {path.name} must be a readable text file: {why(error)}.") from error
        return path, text, mark_of(data)

    def save(self, name: object, text: str, seen: str | None) -> str:
        """Write a study file that is as it was when it was ``seen``; return the mark of the new text."""
        path = self.folder.inside(name, "The study file")
        require(path.suffix == ".toml", "The study file", "end in .toml", path.name)
        data = text.encode("utf-8")
        with self.saving:
            there = mark_of(read_file(path)) if path.exists() else None
            hint = "It was changed elsewhere meanwhile: copy your text, load the page again, and put it in."
            require(there == seen, path.name, "be as it was when this page was opened", "another text", hint)
            write_atomically(path, data, mode=PUBLIC)
        return mark_of(data)


def mark_of(data: bytes) -> str:
    """Return a mark by which a text is known again."""
    return hashlib.sha256(data).hexdigest()


def html_response(page: str, status: int = 200) -> Response:
    """Return a page as an answer."""
    return HTMLResponse(page, status_code=status)


Handler = Callable[[Request], Any]
