"""The [generator] table of a study: which kind of generator, and how detailed it may be."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.checks import require
from fedveil.tables import filled, table
from fedveil.values import number, whole

KINDS = ("marginals",)
_LARGEST = 2**22  # cells of a model: 32 MB a table, of which a fit holds a few


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorRequest:
    """``groups``: cells of a column that are told apart with the others, at most (twice as many for words).

    ``coarse``: groups of a column in the first look at all pairs. ``pairs``: how many pairs of columns are measured
    precisely at most; None: four times as many as there are columns. ``target_weight``: how much more a pair with the
    target counts than another. ``model_cells``: cells of the model's tables together, at most. ``whole``: columns of
    numbers that hold whole numbers alone. ``zeros``: combinations of words that no record may have. ``sums``: columns
    that are the sum of others, which are computed and not measured.
    """

    kind: str = "marginals"
    groups: int = 16
    coarse: int = 6
    pairs: int | None = None
    target_weight: float = 3.0
    model_cells: int = 2**18
    whole: tuple[str, ...] = ()
    zeros: tuple[dict[str, str], ...] = field(default=(), hash=False)
    sums: dict[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "generator.kind", "be marginals or torch", self.kind)
        ranges = {"groups": (2, 100), "coarse": (2, 20), "model_cells": (2**10, _LARGEST)}
        for name, (least, most) in ranges.items():
            value = whole(f"generator.{name}", getattr(self, name))
            require(least <= value <= most, f"generator.{name}", f"lie between {least} and {most}", value)
            object.__setattr__(self, name, value)
        if self.pairs is not None:
            object.__setattr__(self, "pairs", whole("generator.pairs", self.pairs))
            require(1 <= (self.pairs or 0) <= 1000, "generator.pairs", "lie between 1 and 1000", self.pairs)
        weight = number("generator.target_weight", self.target_weight)
        require(0.1 <= weight <= 100, "generator.target_weight", "lie in [0.1, 100]", weight)
        object.__setattr__(self, "target_weight", weight)
        _names("generator.whole", self.whole)
        for zero in self.zeros:
            fits = isinstance(zero, dict) and len(zero) >= 1 and all(isinstance(word, str) for word in zero.values())
            require(fits, "generator.zeros", 'list tables such as {sex = "male", pregnant = "yes"}', zero)
        for total, parts in table(self.sums, "generator.sums").items():
            _names(f"generator.sums.{total}", parts)
            require(len(parts) >= 1 and total not in parts, f"generator.sums.{total}", "list other columns", parts)
        object.__setattr__(self, "sums", {key: tuple(parts) for key, parts in self.sums.items()})

    @classmethod
    def read(cls, given: Any) -> "GeneratorRequest":
        """Return the request of a study's table."""
        found: GeneratorRequest = filled(cls, table(given, "generator"), "generator")
        return found

    def check(self, numbers: tuple[str, ...], columns: Mapping[str, Any]) -> None:
        """Refuse names that the data do not have; ``columns``: all, sums left out."""
        for name in self.whole:
            require(name in numbers, "generator.whole", "name columns of numbers", name)
        for zero in self.zeros:
            for name in zero:
                require(name in columns, "generator.zeros", "name columns of the data", name)
        for total, parts in self.sums.items():
            for name in parts:
                require(name in numbers, f"generator.sums.{total}", "name columns of numbers", name)


def _names(name: str, given: Any) -> None:
    listed = isinstance(given, list | tuple) and all(isinstance(word, str) for word in given)
    require(listed, name, "list names of columns", given)
