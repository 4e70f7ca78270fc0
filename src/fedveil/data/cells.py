"""What cells hold: how numbers are written, one spelling for equal labels, and columns of texts as words and codes."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.limits import TEXT

WHOLE = re.compile("[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")  # as it is usually written
NOT_FINITE = re.compile(r"[+-]?(?:nan(?:\(\w*\))?|(inf(?:inity)?))", re.IGNORECASE)
MARK = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")  # a number as canonical() spells it
MISSING = ("", "?", "NA", "nan", "NaN")  # what marks a missing value, unless a study says otherwise
# Ways to write a number, tried in this order: 1,234 is a thousand before it is a decimal, since groups are of three.
WRITINGS = ((".", None), (".", ","), (",", None), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
Numbers = NDArray[np.float64]
Place = Callable[[int], str]  # describes the place of a row in messages: "heart.csv, line 7"


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """A column of texts: every different one once, and each row's place among them; the empty text is missing."""

    words: Sequence[str]
    codes: NDArray[np.signedinteger[Any]]

    @classmethod
    def of(cls, cells: Iterable[object]) -> "Texts":
        """Return the column of these cells."""
        place: dict[str, int] = {}
        codes = [place.setdefault(str(cell).strip(), len(place)) for cell in cells]
        return cls(list(place), np.array(codes, dtype=np.int64))

    def __len__(self) -> int:
        return int(self.codes.size)

    def rows(self, chosen: Any) -> "Texts":
        """Return some of the rows."""
        return Texts(self.words, self.codes[chosen])

    def respelt(self, spell: Callable[[str], str]) -> "Texts":
        """Return the same rows with other words; words that become equal are one."""
        place: dict[str, int] = {}
        codes = np.array([place.setdefault(spell(word), len(place)) for word in self.words], dtype=np.int64)
        return Texts(list(place), codes[self.codes])

    def among(self, words: Collection[str]) -> NDArray[np.bool_]:
        """Return which rows hold one of these words."""
        return self.where(lambda word: word in words)

    def where(self, holds: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return which rows hold a word of which this holds."""
        return np.asarray(np.array([holds(word) for word in self.words], dtype=np.bool_)[self.codes])


def canonical(value: object) -> str:
    """Return one spelling of a label: equal numbers are the same label, other text stays as it is.

    >>> canonical("3.0"), canonical("+3"), canonical(3), canonical(" ill ")
    ('3', '3', '3', 'ill')
    """
    word = str(value).strip()
    if len(word) < 400 and WHOLE.fullmatch(word):
        return str(int(word))  # not as a float, so that long identifiers stay distinct
    number = float(word) if NUMBER.fullmatch(word) else math.nan
    if not math.isfinite(number):
        return word
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


def number_of(text: str) -> float | None:
    """Return the number that a text is, which may be infinite or NaN; None for any other text.

    >>> number_of("+1.5e2"), number_of("-inf"), number_of("1_000"), number_of("A")
    (150.0, -inf, None, None)
    """
    if NUMBER.fullmatch(text):
        return float(text)
    result = NOT_FINITE.fullmatch(text)
    if result is None:
        return None
    return math.nan if result[1] is None else math.copysign(math.inf, -1 if text[0] == "-" else 1)


def is_number(text: str) -> bool:
    """Return whether a text is a finite number, written as usual."""
    return NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def numbers_of(texts: Texts, missing: Collection[str], column: str, place: Place) -> Numbers:
    """Return a column of texts as numbers, with NaN for each of ``missing`` and for an empty text.

    Any other text is refused, with its place.
    """
    gone = {"", *missing}
    read = [math.nan if word in gone else number_of(word) for word in texts.words]
    wrong = np.array(
        [one is None or (one != one and word not in gone) for one, word in zip(read, texts.words, strict=True)],
        dtype=np.bool_,
    )[texts.codes]
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        word = texts.words[int(texts.codes[row])]
        hint = written_otherwise(word) or (
            "List it under data.missing, or declare the column under data.categories, or leave it out (data.ignore)."
        )
        require(False, f"{place(row)}, column {column!r}", "be a number", word, hint)
    return np.asarray(np.array([math.nan if one is None else one for one in read], dtype=np.float64)[texts.codes])


def refuse_infinite(values: Numbers, column: str, place: Place) -> None:
    """Refuse the first infinite number, by its place."""
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        row = int(infinite[0])
        require(False, f"{place(row)}, column {column!r}", "be a finite number", float(values[row]))


@lru_cache(maxsize=16)
def number_marks(missing: tuple[str, ...]) -> list[float]:
    """Return the numbers among the marks of a missing value, such as -9: then -9.0 is one, in a file or an array."""
    words = (canonical(word) for word in missing)
    return [float(word) for word in words if MARK.fullmatch(word)]


def usual_writing(text: str, decimal: str, thousands: str | None) -> str:
    """Return a number that is written with these signs as it is usually written; any other text stays as it is.

    >>> [usual_writing(text, ",", ".") for text in ("1.234,5", "7", "A,B")]
    ['1234.5', '7', 'A,B']
    """
    if _pattern(decimal, thousands).fullmatch(text) is None:
        return text
    joined = text if thousands is None else text.replace(thousands, "")
    return joined.replace(decimal, ".")


@cache
def _pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    grouped = "" if thousands is None else rf"[0-9]{{1,3}}(?:{re.escape(thousands)}[0-9]{{3}})+|"
    point = re.escape(decimal)
    return re.compile(rf"[+-]?(?:(?:{grouped}[0-9]+)(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?")


def writing_of(texts: Collection[str]) -> tuple[str, str | None] | None:
    """Return the signs (decimal, thousands) with which all these texts are numbers, the usual ones first; else None.

    >>> writing_of(["1,5", "2"]), writing_of(["1,234", "7"]), writing_of(["1.234,5"]), writing_of(["A"])
    ((',', None), ('.', ','), (',', '.'), None)
    """
    return next((signs for signs in WRITINGS if texts and all(is_written(text, signs) for text in texts)), None)


def is_written(text: str, signs: tuple[str, str | None]) -> bool:
    """Return whether a text is a number with these signs (decimal, thousands)."""
    return _pattern(*signs).fullmatch(text) is not None


def written_otherwise(text: str) -> str:
    """Return a hint for a number that is written with other signs; empty for any other text."""
    result = writing_of([text])
    if result is None or result == WRITINGS[0]:
        return ""
    if text.count(",") == 1 and "." not in text and " " not in text:  # 1,234 may be either
        whole = ' or, if it separates thousands, data.thousands = ","' if result == (".", ",") else ""
        return f'Is it a decimal comma? State data.decimal = ","{whole}.'
    decimal = "" if result[0] == "." else f'data.decimal = "{result[0]}" and '
    return f'Are thousands set apart? State {decimal}data.thousands = "{result[1]}".'


def check_texts(words: Iterable[str], column: str, file: str) -> None:
    """Refuse texts that are too long for a label, a category or a client's name, and the character of code 0."""
    words = list(words)
    longest = max(map(len, words), default=0)
    hint = "Leave a column of long texts out (data.ignore)."
    where = f"The column {column!r} of {file}"
    require(longest <= TEXT, where, f"hold texts of at most {TEXT} characters", longest, hint)
    refuse_nul(words, column, file)


def refuse_nul(texts: Iterable[str], column: str, file: str) -> None:
    """Refuse the character of code 0: arrays of texts lose it at the end of a text, so two texts would become one."""
    found = next((text for text in texts if "\0" in text), None)
    hint = "Take the NUL characters out of the data."
    name = f"The column {column!r} of {file}"
    require(found is None, name, "hold texts without the character of code 0", found, hint)
