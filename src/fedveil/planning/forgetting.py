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

    Without a plan before it is false: nobody leaves.
    """

    before: str = ""
    units: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", whole("forget.units", self.units))
        require(isinstance(self.before, str), "forget.before", "be the text of a plan", type(self.before).__name__)
        least = 1 if self.before else 0
        right = self.units >= least and (bool(self.before) or self.units == 0)
        require(right, "forget.units", "be at least 1 where somebody leaves, and 0 otherwise", self.units)

    def __bool__(self) -> bool:
        return bool(self.before)


NOBODY_LEAVES: Final = Forgetting()
