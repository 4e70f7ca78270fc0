"""What a profile found: computed from noisy sums and public numbers alone, so it may be published."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object

FILE: Final = "profile.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberColumn:
    """The range that holds the bulk of a column, its centre and spread, and the share of missing values.

    ``bend``: 0 for a straight scale; else numbers were measured by arcsinh(x / bend), nearly a logarithm, on which
    ``centre`` is the middle and ``spread`` is left out. ``share``: of the records, those whose number lies in the
    range, as far as noise lets see.
    """

    name: str
    low: float
    high: float
    bend: float
    centre: float
    spread: float | None
    missing: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """The frequent words of a column with their shares of the records, most frequent first.

    ``missing``: the share of empty cells, 0 where they are too rare to be shown. ``other``: of all that is left.
    """

    name: str
    words: tuple[tuple[str, float], ...]
    missing: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All that was found. ``target``: the column to predict, which may be among the numbers and the texts.

    ``correlated`` names the rows and columns of ``correlations``, which are empty where they were not measured.
    ``errors``: how far 95% of the shares and correlations are at most from those without noise.
    """

    records: int
    target: str | None
    numbers: tuple[NumberColumn, ...]
    texts: tuple[TextColumn, ...]
    correlated: tuple[str, ...]
    correlations: tuple[tuple[float, ...], ...]
    errors: dict[str, float]

    def number(self, name: str) -> NumberColumn | None:
        """Return what was found of a column of numbers."""
        return next((one for one in self.numbers if one.name == name), None)

    def words_of(self, name: str) -> TextColumn | None:
        """Return what was found of a column's words."""
        return next((one for one in self.texts if one.name == name), None)

    @property
    def classes(self) -> TextColumn | None:
        """The words of the target, if they are few and cover nearly all records; None if it is a number to predict."""
        result = None if self.target is None else self.words_of(self.target)
        if result is None or len(result.words) < 2:
            return None
        textual = self.number(result.name) is None
        covered = sum(share for _, share in result.words) >= 0.9 * (1 - result.missing)
        return result if textual or (covered and len(result.words) <= 20) else None

    def text(self) -> str:
        """Return the profile as JSON; reading it gives an equal value."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, text: str | bytes) -> "Profile":
        """Return the profile that :meth:`text` wrote."""
        given: dict[str, Any] = read_object(text, FILE)
        form = given.pop("format", None)
        require(form == FORMAT, f"{FILE}: format", f"be {FORMAT}", form, "It was written by another version.")
        try:
            numbers = tuple(NumberColumn(**row) for row in given.pop("numbers"))
            texts = tuple(
                TextColumn(**{**row, "words": tuple((word, share) for word, share in row["words"])})
                for row in given.pop("texts")
            )
            matrix = tuple(tuple(row) for row in given.pop("correlations"))
            return cls(
                numbers=numbers,
                texts=texts,
                correlations=matrix,
                correlated=tuple(given.pop("correlated")),
                **given,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadValue(f"{FILE} must be as a profile wrote it: {error}.") from error
