"""What the running studio has: its folder, its secrets, its two workers, and what its sliders know."""

import hashlib
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fedveil.core.errors import BadValue, FedveilError, require, why
from fedveil.core.files import PUBLIC, read_file, write_atomically
from fedveil.core.tables import read_tables
from fedveil.studio.asker import WORKER, Asker
from fedveil.studio.gate import Secrets
from fedveil.studio.layout import Frame
from fedveil.studio.places import Folder
from fedveil.studio.sentences import Refused

# What a slider answers while it moves: plans at a few targets, worked out in the background, and in between about.
#
# Every answer that is kept here is an exact one, of the planner. Between two of them each number is interpolated, on
# logarithmic scales, and marked as approximate; nothing that is interpolated is ever written, signed or certified.

EPSILONS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
DELTAS: Final = (1e-9, 1e-7, 1e-5, 1e-3)
_FRAMES: Final = 64  # studies whose answers are kept
Answer = Mapping[str, Any]
Point = tuple[float, float]  # epsilon and delta


def frame_of(text: str, study: str, data: object = None) -> str:
    """Return a name for all that a study says besides its epsilon and delta, and for the state of its ``data``."""
    try:
        tables = read_tables(text, "The study file")
    except BadValue:
        return ""
    privacy = tables.get("privacy", {})
    tables["privacy"] = {k: v for k, v in privacy.items() if k not in ("epsilon", "delta")}
    return hashlib.sha256(json.dumps([study, tables, data], sort_keys=True, default=str).encode()).hexdigest()


def target_of(text: str) -> Point | None:
    """Return epsilon and delta of a study's text; None where they cannot be read."""
    try:
        privacy = read_tables(text, "The study file")["privacy"]
        return float(privacy["epsilon"]), float(privacy["delta"])
    except (KeyError, TypeError, ValueError):
        return None


@dataclass(slots=True)
class Sliders:
    """The exact answers that are known, by study and target; and who works out more of them."""

    known: "OrderedDict[str, dict[Point, Answer]]" = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    turn: int = 0

    def keep(self, frame: str, at: Point, answer: Answer) -> None:
        """Remember an exact answer."""
        with self.lock:
            self.known.setdefault(frame, {})[at] = answer
            self.known.move_to_end(frame)
            while len(self.known) > _FRAMES:
                self.known.popitem(last=False)

    def exact(self, frame: str, at: Point) -> Answer | None:
        """Return the exact answer, if it is known."""
        with self.lock:
            return self.known.get(frame, {}).get(at)

    def about(self, frame: str, at: Point) -> tuple[Answer | None, str]:
        """Return the answer and its state: exact, about (between two exact ones), or working (not known yet)."""
        with self.lock:
            points = dict(self.known.get(frame, {}))
        if at in points:
            return points[at], "exact"
        for axis in (0, 1):
            other = 1 - axis
            line = sorted(point for point in points if point[other] == at[other])
            below = [point for point in line if point[axis] < at[axis]]
            above = [point for point in line if point[axis] > at[axis]]
            if below and above:
                low, high = below[-1], above[0]
                share = math.log(at[axis] / low[axis]) / math.log(high[axis] / low[axis])
                return between(points[low], points[high], share, at), "about"
        return None, "working"

    def missing(self, frame: str, at: Point) -> Iterator[Point]:
        """Yield the targets that the sliders still need around this one, nearest first."""
        wanted = [(epsilon, at[1]) for epsilon in EPSILONS] + [(at[0], delta) for delta in DELTAS]
        wanted.sort(key=lambda one: abs(math.log(one[0] / at[0])) + abs(math.log(one[1] / at[1])) / 3)
        yield from (one for one in wanted if self.exact(frame, one) is None)

    def work_out(self, frame: str, at: Point, ask: Callable[[Point], Answer]) -> None:
        """Work out what is missing, until a newer study or target makes this pointless. Runs in a thread."""
        with self.lock:
            self.turn += 1
            mine = self.turn
        for point in self.missing(frame, at):
            if self.turn != mine:
                return
            with suppress(Refused):  # a target that is out of reach leaves a gap
                self.keep(frame, point, ask(point))


def between(low: Answer, high: Answer, share: float, at: Point) -> dict[str, Any]:
    """Return the answer ``share`` of the way from one to the other; what is not a number is taken from the nearer."""
    nearer = dict(low if share < 0.5 else high)
    nearer["target"] = {**nearer["target"], "epsilon": at[0], "delta": at[1]}
    for key in ("noise", "risk"):
        nearer[key] = _interpolate(low[key], high[key], share)
    other = {row["adversary"]: row for row in high["observers"]}
    nearer["observers"] = [
        {**row, "epsilon": _interpolate(row["epsilon"], other[row["adversary"]]["epsilon"], share)}
        for row in low["observers"]
    ]
    if low["alone"] is None or high["alone"] is None:
        nearer["alone"] = None
    else:
        nearer["alone"] = {key: _interpolate(value, high["alone"][key], share) for key, value in low["alone"].items()}
    return nearer


def _interpolate(low: float | None, high: float | None, share: float) -> float | None:
    if low is None or high is None or not (low > 0 and high > 0):
        return None
    return math.exp((1 - share) * math.log(low) + share * math.log(high))


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
