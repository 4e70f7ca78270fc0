"""The cells of a study's feature columns before any rule, and what is public about the columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix
from fedveil.data.rows import total_bound
from fedveil.data.spec import Span

MISSING_WORD = ""  # the one spelling of a missing text; a cell is never empty otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What a plan may know about the columns: their names, which are numbers, and what the study states of each.

    ``slots``: places kept for categories that are to be learned, of all columns of texts together. Each such column has
    one more, for all that is rare. ``components``: how many principal components rows are projected onto, if any;
    ``whiten``: whether each direction is divided by its spread. ``order``: all columns as the source has them;
    ``whole``: those that its schema declares integers. Neither changes a row.

    ``knots``: cells between the knots of each column's curve, where the model is additive; None where it is linear.
    ``knots_at``: knots that the study states, in the column's own unit.
    """

    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    scale: Mapping[str, Span] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bend: Mapping[str, float] = field(default_factory=dict)  # units of bent scales, of columns with a stated range
    slots: int = 0
    bound: float = 1.0
    intercept: float = 1.0
    components: int | None = None
    whiten: bool = False
    knots: int | None = None
    knots_at: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    order: tuple[str, ...] = field(default=(), compare=False)
    whole: tuple[str, ...] = field(default=(), compare=False)

    @property
    def turned(self) -> bool:
        """Whether rows are turned onto directions of their own, which are measured."""
        return self.components is not None or self.whiten

    @property
    def open_numbers(self) -> tuple[str, ...]:
        """Columns of numbers whose range is not stated."""
        return tuple(name for name in self.numbers if name not in self.scale)

    @property
    def open_texts(self) -> tuple[str, ...]:
        """Columns of texts whose categories are not stated."""
        return tuple(name for name in self.texts if name not in self.categories)

    @property
    def stated_texts(self) -> tuple[str, ...]:
        """Columns of texts whose categories are stated."""
        return tuple(name for name in self.texts if name in self.categories)

    @property
    def counted(self) -> tuple[str, ...]:
        """Columns of numbers whose knots are to be learned."""
        return () if self.knots is None else tuple(name for name in self.numbers if name not in self.knots_at)

    def hats(self, name: str) -> int:
        """Return how many places a row has for the hats of a column of numbers."""
        return len(self.knots_at.get(name, ())) or (self.knots or 0) + 1

    def block(self, name: str) -> int:
        """Return how many features a column of numbers has: one, or a line, hats and the indicator of a gap."""
        return 1 if self.knots is None else self.hats(name) + 2

    @property
    def unprojected(self) -> int:
        """Features of a row before it is projected onto components, without the intercept."""
        stated = sum(len(self.categories[name]) for name in self.stated_texts)
        learned = self.slots + len(self.open_texts) if self.open_texts else 0
        return sum(self.block(name) for name in self.numbers) + stated + learned

    @property
    def width(self) -> int:
        """Features of a row, the intercept included."""
        own = self.unprojected if self.components is None else self.components
        return own + (1 if self.intercept else 0)

    @property
    def total(self) -> float:
        """The bound of a row with its intercept."""
        return total_bound(self.bound, self.intercept)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Words:
    """A column of texts: ``spelt`` holds every word once, sorted, and ``codes`` each row's place in it."""

    spelt: tuple[str, ...]
    codes: Indices

    def __post_init__(self) -> None:
        require(list(self.spelt) == sorted(set(self.spelt)), "Words.spelt", "be sorted, each once", self.spelt[:5])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Rows as they were read: numbers with NaN where one is missing (a column each), and words."""

    numbers: Matrix
    texts: Mapping[str, Words]

    def __len__(self) -> int:
        return int(self.numbers.shape[0])

    def rows(self, chosen: "Indices | NDArray[np.bool_]") -> "Columns":
        """Only some of the rows; these columns themselves where all of them are asked for in order."""
        if chosen.dtype != np.bool_ and chosen.size == len(self) and np.array_equal(chosen, np.arange(len(self))):
            return self
        texts = {name: Words(spelt=words.spelt, codes=words.codes[chosen]) for name, words in self.texts.items()}
        return Columns(numbers=self.numbers[chosen], texts=texts)

    def fingerprint(self, key: bytes) -> str:
        """A keyed hash of all cells."""
        digest = blake2b(key=key, digest_size=32)
        digest.update(repr((self.numbers.shape, list(self.texts))).encode())
        for first in range(0, len(self), 2**16):  # as one array of rows, without a second copy of it
            digest.update(np.ascontiguousarray(self.numbers[first : first + 2**16], dtype="<f8").data)
        for words in self.texts.values():
            digest.update(repr(words.spelt).encode())
            digest.update(np.ascontiguousarray(words.codes.astype("<i8")).data)
        return digest.hexdigest()
