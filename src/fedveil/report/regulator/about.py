"""What only people know of a release: who made it, for what, where it is used. It is stated in a TOML file."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedveil.core.errors import require
from fedveil.core.tables import filled, read_tables, table

NOT_STATED = "not stated"
_LONGEST = 4000  # characters of one answer

# What each open question asks, in the words that the command line uses.
QUESTIONS = {
    "curators": "who holds the data and answers for the release",
    "intended_use": "what the model is for, and what it is not for",
    "region": "the region that the data and the model are about",
    "sector": "the sector: health, finance, technology, ...",
    "description": "what the data are, in a sentence or two",
    "published": "the day of publication, YYYY-MM-DD",
    "justification": "why this epsilon, this unit and this trust were chosen",
    "collection": "how the data were collected, and on what ground they may be used",
    "access": "who can reach the raw data and the hidden models, and how that is controlled",
    "contact": "whom to write to",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The answers of people. What is left out is shown as not stated, never guessed."""

    curators: tuple[str, ...] = ()
    intended_use: str | None = None
    region: str | None = None
    sector: str | None = None
    description: str | None = None
    published: str | None = None
    justification: str | None = None
    collection: str | None = None
    access: str | None = None
    contact: str | None = None
    tuning: str | None = None
    sources: str | None = None

    def __post_init__(self) -> None:
        named = isinstance(self.curators, tuple) and all(_answer(name) for name in self.curators)
        require(named, "about.curators", "be a list of names", self.curators)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "curators" and value is not None:
                require(_answer(value), f"about.{field.name}", f"be a text of at most {_LONGEST} characters", value)
        if self.published is not None:
            require(_is_day(self.published), "about.published", "be a day, YYYY-MM-DD", self.published)

    @property
    def open(self) -> tuple[str, ...]:
        """The questions that nobody has answered yet."""
        return tuple(name for name in QUESTIONS if not getattr(self, name))

    def answer(self, name: str) -> str:
        """Return the answer, or that there is none."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            return ", ".join(value) or NOT_STATED
        return value or NOT_STATED


def read_about(text: str) -> About:
    """Return the answers in a TOML text."""
    given = read_tables(text, "The file of --about")
    inner: Mapping[str, Any] = table(given["about"], "about") if set(given) == {"about"} else given
    values = {key: str(value) if key == "published" else value for key, value in inner.items()}
    about: About = filled(About, values, "about")
    return about


def _answer(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= _LONGEST


def _is_day(value: str) -> bool:
    parts = value.split("-")
    shaped = [len(part) for part in parts] == [4, 2, 2] and all(part.isascii() and part.isdigit() for part in parts)
    return shaped and 1 <= int(parts[1]) <= 12 and 1 <= int(parts[2]) <= 31
