"""What an aggregator does when: a timeline of a run for ``--trace``, and its present state for ``deploy status``."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from fedveil.core.strict_json import read_object
from fedveil.wire.content import Content

STATUS: Final = "status.json"  # in the private folder during the run
TIMELINE: Final = "timeline.json"  # in the run's folder, for the report
WAIT: Final = "wait for the sites"
_OWN: Final = {"who is online", "seal", "push", "advance", "save"}  # what the aggregator does by itself
_MOST: Final = 200_000  # events of a trace; later ones are dropped


@final
@dataclass(slots=True)
class Trace:
    """The spans of time of one start of an aggregator; ``clock``: monotonic seconds, None to keep nothing."""

    clock: Callable[[], float] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def span(self, what: str, **more: object) -> Iterator[None]:
        """Keep how long the block took, and what it was."""
        start = self.clock() if self.clock is not None else 0.0
        try:
            yield
        finally:
            self.add(what, start, **more)

    def add(self, what: str, start: float, **more: object) -> None:
        """Keep a span from ``start`` to now."""
        if self.clock is not None and len(self.events) < _MOST:
            self.events.append({"what": what, "start": start, "seconds": self.clock() - start, **more})

    def now(self) -> float:
        """Return the time, to begin a span with."""
        return 0.0 if self.clock is None else self.clock()

    def text(self) -> str:
        """Return the timeline as JSON: all spans, and for each round its seconds and how they were spent."""
        first = min((event["start"] for event in self.events), default=0.0)
        events = [
            {**event, "start": round(event["start"] - first, 6), "seconds": round(event["seconds"], 6)}
            for event in self.events
        ]
        rounds: dict[int, dict[str, Any]] = {}
        for event in events:
            if "round" in event:
                one = rounds.setdefault(event["round"], {"round": event["round"], "start": event["start"], "spent": {}})
                one["start"] = min(one["start"], event["start"])
                one["end"] = max(one.get("end", 0.0), event["start"] + event["seconds"])
                one["spent"][event["what"]] = round(one["spent"].get(event["what"], 0.0) + event["seconds"], 6)
        listed = [{**one, "seconds": round(one["end"] - one["start"], 6)} for one in rounds.values()]
        return json.dumps({"format": 1, "rounds": listed, "events": events}, indent=1) + "\n"


def typical_round(trace: str) -> str:
    """Return how the round that took the median time was spent, as JSON for the report; nothing if there is none.

    Who was asked, in which round and how many there were may be a secret of the run, and the report is for everybody:
    all sites are one bar here, from the first one's start to the last one's end, and rounds have no number.
    """
    timeline = read_object(trace, "The timeline")
    if not timeline["rounds"]:
        return ""
    middle = sorted(timeline["rounds"], key=lambda one: one["seconds"])[len(timeline["rounds"]) // 2]
    bars: dict[tuple[int, str], list[float]] = {}
    exchange, heard = 0, math.inf
    for event in sorted(timeline["events"], key=lambda one: one["start"]):
        if event.get("round") != middle["round"]:
            continue
        start, what = event["start"] - middle["start"], event["what"]
        end = start + event["seconds"]
        if start >= heard:  # all answers were there, so this belongs to what comes next
            exchange, heard = exchange + 1, math.inf
        if what not in _OWN:
            what, heard = WAIT, end if heard == math.inf else max(heard, end)
        bar = bars.setdefault((exchange, what), [start, end])
        bar[1] = max(bar[1], end)
    listed = [{"what": what, "start": start, "seconds": end - start} for (_, what), (start, end) in bars.items()]
    return json.dumps({"format": 1, "bars": listed}, indent=1) + "\n"


def picture(trace: str, width: int = 64) -> str:
    """Return the last round of a timeline as bars of text, one for each span."""
    timeline = read_object(trace, "The timeline")
    if not timeline["rounds"]:
        return "no round was traced\n"
    last = timeline["rounds"][-1]
    scale = width / max(last["seconds"], 1e-9)
    lines = [f"round {last['round']}: {last['seconds'] * 1000:.0f} ms"]
    for event in timeline["events"]:
        if event.get("round") == last["round"]:
            before = int((event["start"] - last["start"]) * scale)
            bar = "#" * max(1, min(round(event["seconds"] * scale), width - before))
            name = f"{event['what']} {event.get('site', '')}".strip()
            lines.append(f"{name:20.20} {' ' * before + bar:{width}} {event['seconds'] * 1000:7.1f} ms")
    return "\n".join(lines) + "\n"


@final
@dataclass(slots=True)
class RunStatus:
    """Keeps on the disk what the aggregator waits for; ``now``: the time of day as text."""

    path: Path
    now: Callable[[], str]
    round: int = 0
    rounds: int = 0
    sites: dict[str, dict[str, str]] = field(default_factory=dict)

    def site(self, name: str, state: str) -> None:
        """Note that a site was asked, has answered or has failed."""
        one = self.sites.setdefault(name, {})
        one["state"], one[state] = state, self.now()
        self._write()

    def progress(self, done: int, rounds: int) -> None:
        """Note how many rounds are done."""
        self.round, self.rounds = done, rounds
        self._write()

    def _write(self) -> None:
        waiting = sorted(name for name, one in self.sites.items() if one["state"] != "answered")
        status = {"round": self.round, "rounds": self.rounds, "waiting_for": waiting, "sites": self.sites}
        part = self.path.with_name(f"{self.path.name}.part")
        part.write_text(json.dumps(status), encoding="utf-8")  # not synced: it is for people who look now
        part.chmod(0o600)
        part.replace(self.path)


def read_status(folder: Path) -> dict[str, Any]:
    """Return where the run in a folder stands: not begun, running or stopped, or released."""
    path = folder / "private" / STATUS
    members = folder / "private" / "members"
    status: dict[str, Any] = {"state": "not begun", "round": 0, "rounds": 0, "waiting_for": [], "sites": {}}
    if path.exists():
        status |= {"state": "begun", **read_object(path.read_bytes(), STATUS)}
    elif members.exists():
        status["state"] = "begun"
    if members.exists():
        for name, block in Content.read(members.read_bytes()).blocks.items():
            version = Content.read(block).values.get("version")
            status["sites"].setdefault(name, {})
            if isinstance(version, str):
                status["sites"][name]["version"] = version[:20]
    if (folder / "model.npz").exists() or (folder / "certificate.json").exists():
        status["state"] = "released"
    return status
