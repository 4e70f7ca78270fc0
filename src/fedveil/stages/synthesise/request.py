"""The [generator] table of a study: which kind of generator, and how detailed it may be."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fedveil.core.errors import require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.tables import filled, table
from fedveil.core.values import number, whole
from fedveil.models.torch.criteria import PRECISIONS
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.synthesise.table import DateCells

KIND: Final = "torch"
VAE, MOMENTS, PAIR = "vae", "moments", "pair"
READY: Final = (VAE, MOMENTS, PAIR)  # generators that need no code


EXCLUSIONS: Final = tuple(
    Exclusion(
        name,
        f"a module other than {VAE} and {PAIR}",
        "Your own module has the sizes you give it, and moments have none.",
        lambda request: request.module not in (VAE, PAIR),
    )
    for name in ("latent", "units")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepRequest:
    """``module``: a ready one, or package.file:function of a module that gives each record's loss and draws rows.

    ``latent`` and ``units``: the sizes of "vae" and "pair"; None: 8 and 128. ``clip``, ``radius`` and ``precision`` are
    those of a torch model. ``image``: the height and width of rows that are pictures. ``shares``: public shares of the
    classes among the rows that are drawn; none: all alike. ``whole``: columns of numbers in which only whole numbers
    occur, or true for all of them.
    """

    kind: str = KIND
    module: str = VAE
    latent: int | None = None
    units: int | None = None
    clip: float = 1.0
    radius: float | None = None
    precision: str = "float32"
    image: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    whole: bool | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.kind == KIND, "generator.kind", f"be {KIND}", self.kind)
        fits = isinstance(self.module, str) and (self.module in READY or ":" in self.module)
        rule = f'be {" or ".join(READY)}, or name a function, "package.file:function"'
        require(fits, "generator.module", rule, self.module)
        check_exclusions(self, "generator", EXCLUSIONS)
        for name, most in (("latent", 1000), ("units", 10_000)):
            self._settle_size(name, most)
        clip = number("generator.clip", self.clip)
        require(1e-9 <= clip <= 1e9, "generator.clip", "lie in [1e-9, 1e9]", clip)
        object.__setattr__(self, "clip", clip)
        require(self.precision in PRECISIONS, "generator.precision", f"be one of {PRECISIONS}", self.precision)
        self._settle_rows()

    def _settle_size(self, name: str, most: int) -> None:
        given = getattr(self, name)
        if given is None:
            return
        size = whole(f"generator.{name}", given)
        require(1 <= size <= most, f"generator.{name}", f"lie between 1 and {most}", size)
        object.__setattr__(self, name, size)

    def _settle_rows(self) -> None:
        """Settle how rows are drawn and shown."""
        listed = isinstance(self.image, list | tuple) and len(self.image) in (0, 2)
        require(listed, "generator.image", "be [height, width]", self.image)
        image = tuple(whole("generator.image", size) for size in self.image)
        require(all(1 <= size <= 1000 for size in image), "generator.image", "have sides from 1 to 1000", image)
        object.__setattr__(self, "image", image)
        require(isinstance(self.shares, list | tuple), "generator.shares", "list a share of each class", self.shares)
        shares = tuple(number("generator.shares", share) for share in self.shares)
        right = not shares or (all(share >= 0 for share in shares) and abs(sum(shares) - 1) <= 1e-6)
        require(right, "generator.shares", "be shares that add up to 1", shares)
        object.__setattr__(self, "shares", shares)
        if not isinstance(self.whole, bool):
            names = isinstance(self.whole, list | tuple) and all(isinstance(name, str) for name in self.whole)
            require(names, "generator.whole", "list names of columns, or be true for all of them", self.whole)
            object.__setattr__(self, "whole", tuple(self.whole))

    @classmethod
    def read(cls, given: Any) -> "DeepRequest":
        """Return the request of a study's table."""
        result: DeepRequest = filled(cls, table(given, "generator"), "generator")
        return result


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
        result: GeneratorRequest = filled(cls, table(given, "generator"), "generator")
        return result

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
