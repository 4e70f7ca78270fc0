"""What a site remembers of one run, on the disk before any answer leaves: it never goes back."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.run.files import write_atomically
from fedveil.strict_json import read_object
from fedveil.wire.envelope import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteState:
    """The last instruction's number; the last round answered and what was asked in it; what was agreed.

    ``opened`` and ``sum``: the last round whose encrypted sum was opened here, and which sum that was.
    """

    number: int = -1
    round: int = -1
    asked: str = ""
    plan: str = ""
    proposal: str = ""
    finished: bool = False
    opened: int = -1
    sum: str = ""

    def numbered(self, number: int) -> "SiteState":
        """The next instruction; an old number is a replay."""
        if not number > self.number:
            raise Refused("replayed")
        return replace(self, number=number)

    def stepped(self, turn: int, asked: str) -> "SiteState":
        """The next round, or the last one asked again in the very same words.

        The noise of a round is the same whenever it is computed: with another model under it, the difference of two
        answers would be free of noise. So a round is answered for one model, ever.
        """
        if self.finished:
            raise Refused("finished")
        if turn < self.round:
            raise Refused("stale-round")
        if turn == self.round and asked != self.asked:
            raise Refused("changed-round")
        return replace(self, round=turn, asked=asked)

    def begun(self, turn: int, asked: str) -> "SiteState":
        """A masked round, which is begun once, ever."""
        if turn == self.round:
            raise Refused("spent-round")
        return self.stepped(turn, asked)

    def opening(self, turn: int, message: str) -> "SiteState":
        """One encrypted sum of a round is opened, ever: two over different clients would show single updates."""
        if self.finished:
            raise Refused("finished")
        if turn < self.opened or (turn == self.opened and message != self.sum):
            raise Refused("spent-round")
        return replace(self, opened=turn, sum=message)

    def agreed(self, plan: str, proposal: str) -> "SiteState":
        """One plan and one proposal for a run."""
        if self.proposal not in ("", proposal) or self.plan not in ("", plan):
            raise Refused("other-plan")
        return replace(self, plan=plan, proposal=proposal)


def load_state(path: Path) -> SiteState:
    """What is remembered; nothing at first. A damaged memory is refused: without it, replays could not be told."""
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return SiteState()
    try:
        found = SiteState(**read_object(text, path.name))
    except (ValueError, TypeError) as error:
        raise BadValue(f"The site's memory {path} cannot be used ({error}). This run cannot go on here.") from error
    whole = all(type(number) is int for number in (found.number, found.round, found.opened))
    require(whole, f"The site's memory {path}", "hold whole numbers", text[:80])
    return found


def save_state(path: Path, state: SiteState) -> None:
    """On the disk when this returns."""
    write_atomically(path, json.dumps(asdict(state), sort_keys=True).encode("ascii"))
