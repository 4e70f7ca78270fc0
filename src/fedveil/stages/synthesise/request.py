"""The [generator] table of a study: which kind of generator, and how detailed it may be."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedveil.core.checks import require
from fedveil.core.tables import filled, table
from fedveil.core.values import number, whole
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.synthesise.cells import DateCells

KINDS = ("marginals",)
_LARGEST = 2**22  # cells of a model: 32 MB a table, of which a fit holds a few


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorRequest:
    """``groups``: cells of a column that are told apart with the others, at most (twice as many for words).

    ``coarse``: groups of a column in the first look at all pairs. ``pairs``: how many pairs of columns are measured
    precisely at most; None: four times as many as there are columns. ``target_weight``: how much more a pair with the
    target counts than another. ``model_cells``: cells of the model's tables together, at most. ``whole``: columns of
    numbers that hold whole numbers alone, beside those that the source's schema declares integers; true for all
    columns, false for none. ``dates``: columns of dates, with the first and the last that are told apart. ``zeros``:
    combinations of words that no record may have. ``sums``: columns that are the sum of others, which are computed and
    not measured.
    """

    kind: str = "marginals"
    groups: int = 16
    coarse: int = 6
    pairs: int | None = None
    target_weight: float = 3.0
    model_cells: int = 2**18
    whole: tuple[str, ...] | bool = ()
    dates: dict[str, tuple[str, str]] = field(default_factory=dict, hash=False)
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
        if not isinstance(self.whole, bool):
            _names("generator.whole", self.whole)
            object.__setattr__(self, "whole", tuple(self.whole))
        for name, ends in table(self.dates, "generator.dates").items():
            paired = isinstance(ends, list | tuple) and len(ends) == 2 and all(isinstance(end, str) for end in ends)
            require(paired, f"generator.dates.{name}", 'be two dates such as ["2020-01-01", "2024-12-31"]', ends)
            DateCells(name=name, first=ends[0], last=ends[1])
        object.__setattr__(self, "dates", {name: (ends[0], ends[1]) for name, ends in self.dates.items()})
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
        for name in () if isinstance(self.whole, bool) else self.whole:
            require(name in numbers, "generator.whole", "name columns of numbers", name)
        for name in self.dates:
            require(name in columns and name not in numbers, "generator.dates", "name columns of dates", name)
        for zero in self.zeros:
            for name in zero:
                require(name in columns, "generator.zeros", "name columns of the data", name)
        for total, parts in self.sums.items():
            for name in parts:
                require(name in numbers, f"generator.sums.{total}", "name columns of numbers", name)

    def whole_in(self, outline: Outline, name: str) -> bool:
        """Return whether a column of numbers holds whole numbers alone: as stated here, or as the schema has it."""
        return self.whole if isinstance(self.whole, bool) else name in self.whole or name in outline.whole

    def stated(self, outline: Outline) -> Outline:
        """Return the outline without words to be learned in columns of dates, whose range is stated."""
        dated = {name: () for name in outline.texts if name in self.dates}
        return replace(outline, categories={**outline.categories, **dated}) if dated else outline


def _names(name: str, given: Any) -> None:
    listed = isinstance(given, list | tuple) and all(isinstance(word, str) for word in given)
    require(listed, name, "list names of columns", given)
