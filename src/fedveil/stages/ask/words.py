"""Which words a column of texts holds, where nobody has listed them: across sites, too, which need not agree on a list.

A record adds one to the bucket that a public hash gives its word. In the buckets that stand out of the noise it then
adds one for each half of the letter at each place of the word, up to its end: the most frequent ones spell it. All
buckets and letters are public, so there is no threshold that could slip; a word that does not hash back into its
bucket is not shown.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.stages.ask.blocks import Block, Coded, Lettered
from fedveil.stages.ask.question import SURE, Answer, Expected, Question, Row, State, interval
from fedveil.stages.ask.rows import View, check_column
from fedveil.stages.prepare.columns import MISSING_WORD, Outline

_BUCKETS: Final = 512
_MOST: Final = 24  # buckets that are spelt
_PLACES: Final = 32  # letters of a word, with its end; the rest is cut
_HALF: Final = 9  # a letter is one of 81 pairs of halves: 18 numbers a place
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 -_.,/+()"
_END, _OTHER = len(_LETTERS), len(_LETTERS) + 1
_STANDS_OUT: Final = 4.0  # deviations: of 512 empty buckets one in sixty lists shows one, which then spells nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Words(Question):
    """The frequent words of a column of texts, with how often they occur."""

    kind: ClassVar[str] = "words"
    grouped: ClassVar[bool] = False
    laplace: ClassVar[bool] = False
    column: str

    @property
    def about(self) -> tuple[str, ...]:
        """The columns that it names."""
        return (self.column,)

    @property
    def shares(self) -> tuple[float, ...]:
        """Of counting buckets, and of spelling words."""
        return 0.3, 0.7

    def check(self, columns: Outline) -> None:
        """Refuse what does not fit the columns."""
        check_column(self.column, columns, f"{self.name}: column", "texts")
        super(Words, self).check(columns)

    def size(self, columns: Outline) -> int:
        """Return how many numbers a group has."""
        return _BUCKETS

    @property
    def step_size(self) -> int:
        """How many numbers the second sum has."""
        return _MOST * _PLACES * 2 * _HALF

    def block(self, view: View) -> Block:
        """Return what rows add."""
        spelt, codes = view.words(self.column)
        buckets = np.array([-1 if word == MISSING_WORD else bucket_of(_cut(word)) for word in spelt], dtype=np.int64)
        return Coded(np.where(self.group_of(view) < 0, -1, buckets[codes]), _BUCKETS)

    def start(self, sums: Vector, noise: float, view: View) -> State:
        """Return the buckets that stand out, the fullest first, with their counts and the noise of these."""
        order = np.argsort(-sums, kind="stable")[:_MOST]
        chosen = order[sums[order] > _STANDS_OUT * noise]
        return State(chosen.astype(np.float64), np.array([[noise, *sums[chosen].tolist()]]))

    def step_block(self, view: View, state: State) -> Block:
        """Return what rows add to the second sum: a letter at each place, in the buckets that were chosen."""
        spelt, codes = view.words(self.column)
        place = {int(bucket): k for k, bucket in enumerate(state.numbers)}
        letters = np.full((len(spelt), 2 * _PLACES), -1, dtype=np.int64)
        for number, word in enumerate(spelt):
            slot = None if word == MISSING_WORD else place.get(bucket_of(_cut(word)))
            if slot is not None:
                own = _halves(_cut(word))
                letters[number, : own.size] = (slot * 2 * _PLACES + np.arange(own.size)) * _HALF + own
        return Lettered(np.where(self.group_of(view) < 0, -1, codes), letters, self.step_size)

    def final(self, state: State, sums: Vector, noise: float, view: View, units: int) -> Answer:
        """Return the words that the letters spell."""
        first, *counts = state.matrix[0].tolist()
        halves = sums.reshape(_MOST, _PLACES, 2, _HALF).argmax(axis=3)
        seen = halves[:, :, 0] * _HALF + halves[:, :, 1]
        rows: list[Row] = []
        for bucket, count, letters in zip(state.numbers, counts, seen[: len(counts)], strict=True):
            word = _spelt(letters.tolist())
            if word and bucket_of(word) == int(bucket):
                rows.append({self.column: word} | interval(count, first, 0, units))
        note = f"Words are cut to {_PLACES - 1} letters; those that too few records hold for this noise are not shown."
        return Answer(tables={"": rows}, notes=[note])

    def expected(self, noise: float, columns: Outline, units: float) -> Expected:
        """Return the half-width that is expected."""
        return Expected("each word", SURE * noise / math.sqrt(self.shares[0]), units / 2)


def bucket_of(word: str) -> int:
    """Return the bucket of a word, by a hash that everybody knows."""
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") % _BUCKETS


def _cut(word: str) -> str:
    """The word as it can be spelt: its first letters, and a question mark for any that is not known."""
    return "".join(letter if letter in _LETTERS else "?" for letter in word[: _PLACES - 1]).rstrip()


def _halves(word: str) -> Indices:
    """Both halves of each letter of a word, and of its end."""
    symbols = np.array([*(_OTHER if letter == "?" else _LETTERS.index(letter) for letter in word), _END])
    return np.column_stack([symbols // _HALF, symbols % _HALF]).ravel().astype(np.int64)


def _spelt(symbols: Sequence[int]) -> str:
    """The word of these symbols, up to its end; noise may give one that is no letter."""
    known = (*_LETTERS, "\0", "?")
    letters = "".join(known[one] if one < len(known) else "?" for one in symbols)
    return letters.partition("\0")[0].rstrip()
