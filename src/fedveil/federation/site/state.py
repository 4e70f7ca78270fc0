"""What a site remembers of one run. It is on the disk before any answer leaves, and never goes back."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object
from fedveil.engine.files import write_atomically
from fedveil.wire.envelope import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteState:
    """The number of the last instruction, the last round answered and its question, and the plan that was agreed to.

    ``answer``: a hash of what the clients added to the last round. ``masked``: the setting under which it was masked.
    ``opened`` and ``sum``: the last round whose encrypted or masked sum was opened here, and which sum that was.
    """

    number: int = -1
    round: int = -1
    asked: str = ""
    answer: str = ""
    plan: str = ""
    proposal: str = ""
    finished: bool = False
    opened: int = -1
    sum: str = ""
    masked: str = ""

    def numbered(self, number: int) -> "SiteState":
        """Return the state after the next instruction; refuse an old number as a replay."""
        if not number > self.number:
            raise Refused("replayed")
        return replace(self, number=number)

    def stepped(self, turn: int, asked: str) -> "SiteState":
        """Return the state after the next round, or after the last round if it is asked again with the same bytes.

        The noise of a round is the same whenever it is computed. With another model, the difference of two answers
        would be free of noise. So a round is answered for one model only.
        """
        if self.finished:
            raise Refused("finished")
        if turn < self.round:
            raise Refused("stale-round")
        if turn == self.round and asked != self.asked:
            raise Refused("changed-round")
        return replace(self, round=turn, asked=asked)

    def answering(self, before: "SiteState", answer: str) -> "SiteState":
        """Return the state after answering its round; refuse another answer than ``before``, where it was given one.

        Noise and masks are the same whenever they are computed, so the difference of two answers would be free of both.
        """
        if self.round == before.round and before.answer not in ("", answer):
            raise Refused("changed-answer")
        return replace(self, answer=answer)

    def opening(self, turn: int, message: str) -> "SiteState":
        """Return the state after opening a sum, encrypted or masked; refuse a second sum of the same round.

        Two sums over different clients would reveal single updates.
        """
        if self.finished:
            raise Refused("finished")
        if turn < self.opened or (turn == self.opened and message != self.sum):
            raise Refused("spent-round")
        return replace(self, opened=turn, sum=message)

    def agreed(self, plan: str, proposal: str) -> "SiteState":
        """Return the state after agreeing to a plan; refuse a second plan or proposal for the run."""
        if self.proposal not in ("", proposal) or self.plan not in ("", plan):
            raise Refused("other-plan")
        return replace(self, plan=plan, proposal=proposal)


def load_state(path: Path) -> SiteState:
    """Read what is remembered; nothing at first.

    A damaged memory is refused, because without it replays could not be detected.
    """
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return SiteState()
    try:
        result = SiteState(**read_object(text, path.name))
    except (ValueError, TypeError) as error:
        raise BadValue(f"The site's memory {path} cannot be used ({error}). This run cannot go on here.") from error
    whole = all(type(number) is int for number in (result.number, result.round, result.opened))
    require(whole, f"The site's memory {path}", "hold whole numbers", text[:80])
    return result


def save_state(path: Path, state: SiteState) -> None:
    """Write the state; it is on the disk when this returns."""
    write_atomically(path, json.dumps(asdict(state), sort_keys=True).encode("ascii"))
