"""Single cells: read a text as a number, and spell equal labels alike."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedveil.checks import require
from fedveil.limits import TEXT, check_cells

WHOLE = re.compile("[+-]?[0-9]+")
# Ways to write a number, tried in this order: 1,234 is a thousand before it is a decimal, since groups are of three.
WRITINGS = ((".", None), (".", ","), (",", None), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
Numbers = NDArray[np.float64]
Place = Callable[[int], str]  # describes the place of a row in messages: "heart.csv, line 7"


def canonical(value: object) -> str:
    """Return one spelling of a label: equal numbers are the same label, other text stays as it is.

    >>> canonical("3.0"), canonical("+3"), canonical(3), canonical(" ill ")
    ('3', '3', '3', 'ill')
    """
    word = str(value).strip()
    if len(word) < 400 and WHOLE.fullmatch(word):
        return str(int(word))  # not as a float, so that long identifiers stay distinct
    try:
        number = float(word)
    except ValueError:
        return word
    if not math.isfinite(number) or "_" in word:
        return word
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


def usual_writing(texts: Sequence[str], decimal: str, thousands: str | None) -> Sequence[str]:
    """Return numbers that are written with these signs as they are usually written; other texts stay as they are.

    >>> usual_writing(["1.234,5", "7", "A,B"], ",", ".")
    ['1234.5', '7', 'A,B']
    """
    if decimal == "." and thousands is None:
        return texts
    pattern = _pattern(decimal, thousands)

    def usual(text: str) -> str:
        joined = text if thousands is None else text.replace(thousands, "")
        return joined.replace(decimal, ".")

    return [usual(text) if pattern.fullmatch(text) else text for text in texts]


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


def numbers_of(texts: Sequence[str], missing: Collection[str], column: str, place: Place) -> Numbers:
    """Return the texts of a column as numbers, with NaN for each of ``missing``.

    Any other text is refused, with its place.
    """
    try:
        values = [math.nan if text in missing else float(text) for text in texts]
    except ValueError:
        values = [_number_or_nan(text) for text in texts]  # NaN marks the wrong cell, which is found below
    found = np.array(values, dtype=np.float64)
    suspects = np.flatnonzero(~np.isfinite(found))
    underscores = any("_" in text for text in texts)  # Python reads 1_000 as a number, other programs do not
    for row in range(len(texts)) if underscores else suspects.tolist():
        text = texts[row]
        if text in missing:
            continue
        name = f"{place(row)}, column {column!r}"
        hint = written_otherwise(text) or (
            "List it under data.missing, or declare the column under data.categories, or leave it out (data.ignore)."
        )
        require("_" not in text and not math.isnan(_number_or_nan(text)), name, "be a number", text, hint)
        require(math.isfinite(_number_or_nan(text)), name, "be a finite number", text)
    return found


def written_otherwise(text: str) -> str:
    """Return a hint for a number that is written with other signs; empty for any other text."""
    found = writing_of([text])
    if found is None or found == WRITINGS[0]:
        return ""
    if text.count(",") == 1 and "." not in text and " " not in text:  # 1,234 may be either
        whole = ' or, if it separates thousands, data.thousands = ","' if found == (".", ",") else ""
        return f'Is it a decimal comma? State data.decimal = ","{whole}.'
    decimal = "" if found[0] == "." else f'data.decimal = "{found[0]}" and '
    return f'Are thousands set apart? State {decimal}data.thousands = "{found[1]}".'


def texts_of(texts: Sequence[str], column: str, file: str) -> NDArray[np.str_]:
    """Return the texts of a column as an array, in which every text takes as much memory as the longest."""
    longest = max(map(len, texts), default=0)
    name = f"The column {column!r} of {file}"
    hint = "Leave a column of long texts out (data.ignore)."
    require(longest <= TEXT, name, f"hold texts of at most {TEXT} characters", longest, hint)
    check_cells(file, len(texts), longest)
    refuse_nul(texts, column, file)
    return np.array(texts, dtype=np.str_)


def refuse_nul(texts: Iterable[str], column: str, file: str) -> None:
    """Refuse the character of code 0: arrays of texts lose it at the end of a text, so two texts would become one."""
    found = next((text for text in texts if "\0" in text), None)
    hint = "Take the NUL characters out of the data."
    name = f"The column {column!r} of {file}"
    require(found is None, name, "hold texts without the character of code 0", found, hint)


def _number_or_nan(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
