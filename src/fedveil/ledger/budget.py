"""What a run costs, what all runs together may cost, and how costs add up.

Here epsilons and deltas are added (basic composition), which stays valid if later runs are chosen after seeing earlier
results [RRUV16]; ``filter.py`` has the rule that charges less. Each number is taken as the decimal it is written as,
and sums are exact, so three runs of 0.1 fit a cap of 0.3; reported sums are rounded up. What is unknown counts as
infinite.

References:
    [RRUV16] Rogers, Roth, Ullman, Vadhan. Privacy Odometers and Filters: Pay-as-you-Go Composition. NeurIPS 2016.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Self, get_args

from fedveil.core.errors import BadValue, FedveilError, require
from fedveil.privacy.guarantee import Adversary, Neighbours, Unit


def _check(name: str, value: "Cost | Cap") -> None:
    for field, kind in (("adversary", Adversary), ("unit", Unit), ("neighbours", Neighbours)):
        given, choices = getattr(value, field), get_args(kind)
        right = isinstance(given, str) and given in choices
        require(right, f"{name}.{field}", f"be one of {', '.join(choices)}", given)
    for field in ("epsilon", "delta"):
        given = getattr(value, field)
        require(isinstance(given, float | int) and not isinstance(given, bool), f"{name}.{field}", "be a number", given)
        object.__setattr__(value, field, float(given))
    require(0 <= value.delta <= 1, f"{name}.delta", "lie in [0, 1]", value.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one observer may learn about one unit from one run; an infinite epsilon promises nothing."""

    adversary: Adversary
    unit: Unit
    neighbours: Neighbours
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check("Cost", self)
        require(self.epsilon >= 0, "Cost.epsilon", "be non-negative", self.epsilon)

    def covers(self, unit: Unit, neighbours: Neighbours) -> bool:
        """Return whether this guarantee also holds for that unit and relation.

        A record belongs to one client and to one person, and a record that contributes nothing is a record. A guarantee
        for leaving out a client or a person implies nothing else, since one with one record less is another one, not an
        absent one. A person may be known to several clients, so that a client's guarantee is none for persons.
        """
        if (self.unit, self.neighbours) == (unit, neighbours):
            return True
        return self.neighbours == "replace-one" and unit in ("record", self.unit)

    def written(self) -> dict[str, Any]:
        """Return the cost in the form of an entry; JSON has no infinity, so an infinite epsilon is null."""
        return asdict(self) | {"epsilon": self.epsilon if math.isfinite(self.epsilon) else None}

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Self:
        """Read a cost from an entry."""
        infinite = written["epsilon"] is None
        return cls(**{**written, "epsilon": math.inf if infinite else written["epsilon"]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The most that one observer may learn about one unit from all runs together.

    ``order``: runs are added up by their Renyi divergence of this order; None: by their epsilons and deltas. It is
    fixed when the cap is first stated (``filter.py``).
    """

    adversary: Adversary
    unit: Unit
    neighbours: Neighbours
    epsilon: float
    delta: float
    order: float | None = None

    def __post_init__(self) -> None:
        _check("Cap", self)
        hint = "Leave the cap out if there is none."
        require(0 <= self.epsilon < math.inf, "Cap.epsilon", "be finite and non-negative", self.epsilon, hint)
        real = self.order is None or (isinstance(self.order, float | int) and 1 < self.order < math.inf)
        require(real, "Cap.order", "be absent, or a finite number above 1", self.order)

    def within(self, other: "Cap") -> bool:
        """Return whether this cap allows no more than the other."""
        same = (self.adversary, self.unit, self.neighbours) == (other.adversary, other.unit, other.neighbours)
        return same and self.epsilon <= other.epsilon and self.delta <= other.delta


class CapExceeded(FedveilError):
    """A run would cost more than is left; nothing was charged."""

    def __init__(self, cap: Cap, spent: Cost, asked: Cost, after: float | None = None) -> None:
        """``after``: the epsilon of all runs including this one, at the cap's delta, if it is not simply the sum."""
        hint = (
            "" if math.isfinite(asked.epsilon) else f" (no finite cost for one {cap.unit}, {cap.neighbours}, is stated)"
        )
        rule = "" if cap.order is None else f" (added up as Renyi divergences of order {cap.order:g})"
        hint += "" if after is None or math.isinf(after) else f"; with it, epsilon {after} would be spent"
        super().__init__(
            f"The cap for {cap.adversary} ({cap.unit}, {cap.neighbours}) is epsilon {cap.epsilon}, delta {cap.delta}; "
            f"epsilon {spent.epsilon}, delta {spent.delta} are spent{rule} and this run asks for "
            f"epsilon {asked.epsilon}, delta {asked.delta}{hint}: ask for less, or raise the cap on purpose."
        )
        self.cap, self.spent, self.asked = cap, spent, asked


def _exact(value: float) -> Fraction:
    return Fraction(repr(value))


def _up(value: Fraction) -> float:
    """Return the least float whose decimal is not below the value."""
    near = float(value)
    return near if _exact(near) >= value else math.nextafter(near, math.inf)


@dataclass(frozen=True, slots=True)
class _Sum:
    epsilon: Fraction | None  # None for infinity
    delta: Fraction

    def __add__(self, other: "_Sum") -> "_Sum":
        known = self.epsilon is not None and other.epsilon is not None
        epsilon = self.epsilon + other.epsilon if known else None  # type: ignore[operator]
        return _Sum(epsilon, self.delta + other.delta)

    def within(self, cap: Cap) -> bool:
        return self.epsilon is not None and self.epsilon <= _exact(cap.epsilon) and self.delta <= _exact(cap.delta)


def _of_run(costs: Iterable[Cost], adversary: Adversary, unit: Unit, neighbours: Neighbours) -> _Sum:
    """Return the least cost of a run that holds for this question.

    A run that says nothing about it has infinite cost.
    """
    found = [c for c in costs if c.adversary == adversary and c.covers(unit, neighbours)]
    least = min(found, key=lambda cost: (cost.epsilon, cost.delta), default=None)
    if least is None or math.isinf(least.epsilon):
        return _Sum(None, Fraction(0) if least is None else _exact(least.delta))
    return _Sum(_exact(least.epsilon), _exact(least.delta))


def total(runs: Iterable[Sequence[Cost]], adversary: Adversary, unit: Unit, neighbours: Neighbours) -> Cost:
    """Return the cost of all runs together, rounded up.

    >>> once = Cost(adversary="server", unit="record", neighbours="replace-one", epsilon=0.1, delta=1e-6)
    >>> total([[once]] * 3, "server", "record", "zero-out").epsilon
    0.3
    """
    result = sum((_of_run(costs, adversary, unit, neighbours) for costs in runs), _Sum(Fraction(0), Fraction(0)))
    epsilon = math.inf if result.epsilon is None else _up(result.epsilon)
    delta = min(1.0, _up(result.delta))
    return Cost(adversary=adversary, unit=unit, neighbours=neighbours, epsilon=epsilon, delta=delta)


def check_caps(caps: Iterable[Cap], before: Sequence[Sequence[Cost]], asked: Sequence[Cost]) -> None:
    """Raise :class:`CapExceeded` unless every cap still holds with the new run."""
    for cap in caps:
        terms = (_of_run(costs, cap.adversary, cap.unit, cap.neighbours) for costs in (*before, asked))
        if not sum(terms, _Sum(Fraction(0), Fraction(0))).within(cap):
            question = (cap.adversary, cap.unit, cap.neighbours)
            raise CapExceeded(cap, total(before, *question), total([asked], *question))


def tightened(current: Mapping[Adversary, Cap], given: Iterable[Cap]) -> list[Cap]:
    """Return the given caps that are new or lower; refuse others, so that no study raises a cap by itself."""
    known, news = dict(current), []
    for cap in given:
        old = known.get(cap.adversary)
        if old is not None and not cap.within(old):
            raise BadValue(
                f"The cap for {cap.adversary} must not exceed the one in the ledger, epsilon {old.epsilon} and delta "
                f"{old.delta} ({old.unit}, {old.neighbours}), got epsilon {cap.epsilon} and delta {cap.delta} "
                f"({cap.unit}, {cap.neighbours}). Raise the ledger's cap on purpose first."
            )
        kept = cap if old is None else replace(cap, order=old.order)  # the rule of adding up does not change
        if kept != old:
            known[cap.adversary] = kept
            news.append(kept)
    return news
