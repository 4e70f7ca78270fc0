"""Which segment comes next is chosen while the run goes on, inside a budget that the plan fixes beforehand.

What is certified is the budget, whatever a rule chooses: docs/theory/fixed-budget.md has the proof. Page:
docs/segments.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from fedveil.accounting.grid import Grid
from fedveil.core.errors import CannotCertify, require
from fedveil.core.values import number

PLATEAU: Final = "plateau"
RULES: Final = (PLATEAU,)
USUAL_GAIN: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``rule``: its name; ``gain``: by what share the public loss must fall for a segment to be taken again.

    ``budget``: what all chosen segments together may cost. Where releases are plain Gaussians a release costs the
    inverse square of its noise multiplier; where all candidates release alike, rounds (or passes) are counted.
    """

    rule: str
    gain: float
    budget: float

    def __post_init__(self) -> None:
        require(self.rule in RULES, "algorithm.choose", f"be one of {', '.join(RULES)}", self.rule)
        for name in ("gain", "budget"):
            object.__setattr__(self, name, number(f"algorithm.choose.{name}", getattr(self, name)))
        require(0 <= self.gain < 1, "algorithm.choose.gain", "lie in [0, 1)", self.gain, "It is a share of the loss.")
        require(0 < self.budget < math.inf, "method.choice.budget", "be positive and finite", self.budget)

    def words(self) -> str:
        """Return the rule in words."""
        return f"again while the loss on public records falls by {self.gain:g} of itself, otherwise the next that fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Purse:
    """What is left of a budget, and what each candidate costs: exact numbers, so that no rounding ever overspends.

    >>> purse = Purse(costs=(Fraction(2), Fraction(1)), left=Fraction(3))
    >>> purse.after(0).affords(0), purse.after(0).affords(1)
    (False, True)
    """

    costs: tuple[Fraction, ...]
    left: Fraction

    def affords(self, candidate: int) -> bool:
        """Return whether a candidate's segment can still be run."""
        return self.costs[candidate] <= self.left

    def after(self, candidate: int) -> "Purse":
        """Return the purse once a candidate is chosen; refuse one that costs more than is left.

        It is asked before the first round of the segment, so that what is refused has used no record.
        """
        if not (0 <= candidate < len(self.costs) and self.affords(candidate)):
            asked = float(self.costs[candidate]) if 0 <= candidate < len(self.costs) else math.inf
            raise CannotCertify(
                f"the rule asks for segment {candidate + 1}, which costs {asked:.6g} where {float(self.left):.6g} of"
                " the budget are left: it is refused before its first round"
            )
        return replace(self, left=self.left - self.costs[candidate])


def plateau(choice: Choice, chosen: Sequence[int], losses: Sequence[float], purse: Purse) -> int | None:
    """Return the next candidate: the last one while the public loss falls enough, otherwise the one after it.

    ``losses``: before the first segment and after each. One that the budget no longer pays for is passed over; None
    ends the run. It looks at public records and at released models alone.
    """
    first = 0
    if chosen:
        fell = losses[-2] - losses[-1] >= choice.gain * abs(losses[-2])  # false for NaN
        first = chosen[-1] if fell else min(chosen[-1] + 1, len(purse.costs) - 1)
    return next((one for one in range(first, len(purse.costs)) if purse.affords(one)), None)


def most(values: Sequence[float], costs: Sequence[Fraction], budget: float) -> float:
    """Return an upper bound on the sum of ``values`` over all segments that a budget pays for."""
    ratio = max(Fraction(value) / cost for value, cost in zip(values, costs, strict=True))
    return float(ratio * Fraction(budget)) * (1 + 1e-12)


def widest_grid(grids: Sequence[Grid], costs: Sequence[Fraction], budget: float) -> Grid:
    """Return what the grid costs at most over all segments that a budget pays for."""
    return replace(
        grids[0],
        rounds=max(1, math.floor(most([float(grid.rounds) for grid in grids], costs, budget))),
        distance=math.sqrt(most([grid.distance**2 for grid in grids], costs, budget)) * (1 + 1e-12),
        total_variation=min(1.0, most([grid.total_variation for grid in grids], costs, budget)),
    )
