"""DP-SGD across sites that do not wait for each other: late updates join a later window.

A window takes what has come: with local noise any number of updates, each of which carries all of its client's noise;
with shares of the noise no fewer clients than the plan counts on, and one update of each, so that every update is seen
under the noise of so many (docs/dpsgd.md). Each site works through its own windows one after another: it
gets the newest model after its last update was mixed in. The question to each site is on the disk before it leaves, so
a restarted aggregator asks the same and gets the same answer.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from fedveil.core.errors import BadValue, TooFewSurvivors, require
from fedveil.core.values import Vector
from fedveil.engine.files import write_atomically
from fedveil.federation.aggregator.post import AGAIN, PAUSE, Answer, Post, Sent
from fedveil.federation.aggregator.turn import turn_of
from fedveil.federation.agreements import Carried, Span
from fedveil.privacy.trust import Trust
from fedveil.stages.protocol import Consortium, State, Total
from fedveil.stages.train.acting import TrainAsking
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """State of a run: the model, the model that each site works from, and which sites were in each window so far."""

    model: Vector
    held: Mapping[str, Vector]
    windows: tuple[tuple[str, ...], ...] = ()

    def turn(self, site: str) -> int:
        """Return the number of a site's own next window."""
        return sum(site in window for window in self.windows)

    def write(self, mark: str) -> bytes:
        """Return the state as bytes; ``mark`` identifies plan and run."""
        values = {"mark": mark, "windows": [list(window) for window in self.windows]}
        blocks = {site: row.tobytes() for site, row in self.held.items()}
        return Content(values=values, rows={"model": self.model}, blocks=blocks).write()

    @classmethod
    def read(cls, data: bytes, mark: str) -> "Flow":
        """Read what :meth:`write` wrote for the same plan and run."""
        try:
            kept = Content.read(data)
        except Refused as error:
            raise BadValue("The aggregator's memory of its windows is damaged: this run cannot go on.") from error
        require(kept.values["mark"] == mark, "The aggregator's memory", "belong to this run", kept.values["mark"])
        held = {site: np.frombuffer(block, dtype=np.float64) for site, block in kept.blocks.items()}
        windows = tuple(tuple(window) for window in kept.values["windows"])
        return cls(kept.rows["model"].astype(np.float64), held, windows)


@final
@dataclass(slots=True, kw_only=True)
class LateWindows:
    """One start of an aggregator.

    ``tick`` is called with the number of windows that have come, of all sites together.
    """

    plan: Carried
    span: Span
    server: TrainAsking
    members: Consortium
    trust: Trust
    post: Post
    private: Path
    mark: str
    tick: Callable[[int, int], None]
    _since: dict[str, float] = field(default_factory=dict)  # when the current question of a site was due
    _tried: dict[str, float] = field(default_factory=dict)  # when it was last sent
    _waiting: list[Sent] = field(default_factory=list)
    _all: int = field(init=False)

    def __post_init__(self) -> None:
        clients, sites = self.server.clients, self.members.members
        self._all = sum(bool(clients(turn, site)) for turn in range(self.server.last) for site in sites)

    def model(self) -> Vector:
        """Run until every site has sent its last window, and return the model.

        At the end, as many clients may be missing as the plan allows.
        """
        flow, answers = self._begin(), dict[str, Answer]()
        opened = self.post.clock.seconds()
        while left := self._left(flow):
            now = self.post.clock.seconds()
            self._ask(flow, [site for site in left if site not in answers], now)
            came = self._answered(flow)
            answers |= came
            late = [site for site in left if site not in answers and now - self._since[site] >= self.trust.timeout]
            all_in = len(answers) + len(late) == len(left)
            if not self._enough(flow, left):
                break  # too few clients have rounds left to make up a window: their last updates are never mixed
            if self._enough(flow, list(answers)) and (all_in or now - opened >= (self.trust.patience or 0.0)):
                flow, opened = self._closed(flow, answers), now
                answers = {}
            elif all_in:
                self._check_missing(late, flow)
                break
            elif not came and self.post.clock.seconds() - now < PAUSE:
                self.post.clock.sleep(PAUSE)
        self._note(flow)
        return self.server.model(State(len(flow.windows), flow.model))

    def _enough(self, flow: Flow, sites: Sequence[str]) -> bool:
        """Return whether the updates of these sites may be mixed: all noise that the plan counts on is in them."""
        clients = sum(len(self.server.clients(flow.turn(site), site)) for site in sites)
        return clients >= (1 if self.trust.noise == "local" else self.trust.least(self.members.shape.clients))

    def _begin(self) -> Flow:
        path = self.private / "windows"
        if path.exists():
            return Flow.read(path.read_bytes(), self.mark)
        model = self.server.start().row
        flow = Flow(model, dict.fromkeys(self.members.members, model))
        write_atomically(path, flow.write(self.mark))
        return flow

    def _left(self, flow: Flow) -> list[str]:
        """Return the sites whose clients have rounds left."""
        return [site for site in sorted(flow.held) if self.server.clients(flow.turn(site), site)]

    def _ask(self, flow: Flow, sites: Sequence[str], now: float) -> None:
        """Send the questions that are due; a site that is away or failed is asked the same again until it answers."""
        for site in sites:
            self._since.setdefault(site, now)
        away = {sent.site for sent in self._waiting if now - self._tried[sent.site] < self.trust.timeout}
        self._waiting = [sent for sent in self._waiting if sent.site in away]
        due = [site for site in sites if site not in away and now - self._tried.get(site, -AGAIN) >= AGAIN]
        online = self.post.carrier.online() if due else {}
        for site in due:
            self._tried[site] = now
            if site in online:
                turn, seconds = flow.turn(site), self.trust.timeout
                question = self.server.question(State(turn, flow.held[site]), site)
                if question is None:
                    raise TypeError("a site with rounds left is asked")
                self._waiting.append(self.post.send("step", turn, site, question, online[site], seconds))

    def _answered(self, flow: Flow) -> dict[str, Answer]:
        def fine(site: str, answer: Answer) -> bool:
            state = State(flow.turn(site), flow.held[site])
            return turn_of(self.plan, self.span, self.server, state, self.members).right(site, answer)

        result = self.post.collect(self._waiting, fine, PAUSE)
        self._waiting = [sent for sent in self._waiting if sent not in [back for back, _ in result]]
        return {sent.site: answer for sent, answer in result if answer is not None}

    def _closed(self, flow: Flow, answers: Mapping[str, Answer]) -> Flow:
        """Close a window and save it; the sum does not depend on the order in which updates came."""
        total = np.zeros(self.span.stage.size(0), dtype=np.int64)
        for answer in answers.values():
            total += answer.content.rows["total"].astype(np.int64)
        model = self.server.advance(State(len(flow.windows), flow.model), Total(total)).row
        held = {site: model if site in answers else row for site, row in flow.held.items()}
        after = Flow(model, held, (*flow.windows, tuple(sorted(answers))))
        write_atomically(self.private / "windows", after.write(self.mark))
        for site in answers:
            self._since.pop(site, None)
            self._tried.pop(site, None)
        self.tick(sum(map(len, after.windows)), self._all)
        return after

    def _check_missing(self, late: Sequence[str], flow: Flow) -> None:
        """Refuse to end if more clients are missing than the plan allows."""
        missing = sum(len(self.server.clients(flow.turn(site), site)) for site in late)
        if not missing <= self.trust.dropouts:
            raise TooFewSurvivors(
                f"{', '.join(late)} did not answer within {self.trust.timeout:.0f} seconds: {missing} clients have"
                f" rounds left, and the plan lets {self.trust.dropouts} be missing. What was charged stays charged; go"
                " on with --resume when the sites are back."
            )

    def _note(self, flow: Flow) -> None:
        """Record which site was in which window, without the model; this is enough to compute the same model again."""
        text = json.dumps([list(window) for window in flow.windows])
        write_atomically(self.private / "windows.json", text.encode("ascii"))
