"""Units that leave after the release: the plan goes on from a released model for some rounds without them.

A unit (a record, a client) that was used in earlier rounds is hidden ever better by the rounds after them. Theory page:
forgetting.md.
"""

from dataclasses import dataclass
from typing import Final

from fedveil.core.errors import require
from fedveil.core.values import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """``before``: the text of the plan whose released model this one goes on from; ``units``: how many leave now.

    ``together``: how many of them belong to one party at most; the promise is about all of them at once. ``away``:
    sites of a deployment that have left, now or before, and take no part. Without a plan before it is false: nobody
    leaves.
    """

    before: str = ""
    units: int = 0
    together: int = 1
    away: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("units", "together"):
            object.__setattr__(self, name, whole(f"forget.{name}", getattr(self, name)))
        require(isinstance(self.before, str), "forget.before", "be the text of a plan", type(self.before).__name__)
        least = 1 if self.before else 0
        right = self.units >= least and (bool(self.before) or self.units == 0)
        require(right, "forget.units", "be at least 1 where somebody leaves, and 0 otherwise", self.units)
        most = max(self.units, 1)
        require(1 <= self.together <= most, "forget.together", f"lie between 1 and {most}", self.together)
        object.__setattr__(self, "away", tuple(self.away))
        named = all(isinstance(name, str) and name for name in self.away) and sorted(set(self.away)) == list(self.away)
        require(named and (bool(self.before) or not self.away), "forget.away", "name sites once, sorted", self.away)

    def __bool__(self) -> bool:
        return bool(self.before)


NOBODY_LEAVES: Final = Forgetting()
