"""What a slider answers while it moves: plans at a few targets, worked out in the background, and in between about.

Every answer that is kept here is an exact one, of the planner. Between two of them each number is interpolated, on
logarithmic scales, and marked as approximate; nothing that is interpolated is ever written, signed or certified.
"""

import hashlib
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from fedveil.core.errors import BadValue
from fedveil.core.tables import read_tables
from fedveil.studio.sentences import Refused

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
