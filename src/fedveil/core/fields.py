"""Rules beside fields: a setting says what it may be where it is declared, and one function checks it.

A request of a study is a frozen dataclass. A field states its rule by :func:`real`, :func:`count` or :func:`word`;
settings that belong together are a dataclass of their own, a table inside the table (:func:`group`). Pairs that
exclude each other stand in one list with their reasons (:class:`Exclusion`), which the docs print.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, get_args

from fedveil.core.errors import require
from fedveil.core.tables import filled
from fedveil.core.values import number, whole

_RULE, _GROUP = "rule", "group"
Rule = Callable[[str, Any], Any]  # (name, what was given) -> the value that is kept; refuses what must not be


def real(
    low: float,
    high: float,
    *,
    default: Any = None,
    rule: str = "",
    hint: str = "",
    many: bool = False,
    open_low: bool = False,
    open_high: bool = False,
) -> Any:
    """A field for a number between ``low`` and ``high``, or with ``many`` one for each of several.

    ``rule``: how a refusal states the limits, where they are not an interval that a reader would write so.
    """
    said = rule or f"lie in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"

    def check(name: str, given: Any) -> float:
        value = number(name, given)
        above = low < value if open_low else low <= value
        below = value < high if open_high else value <= high
        require(above and below, name, said, given, hint)
        return value

    return ruled(_each(check) if many else check, default=default)


def listed(low: float, high: float, *, least: int = 1, default: Any = None, rule: str = "", hint: str = "") -> Any:
    """A field for a list of at least so many numbers between ``low`` and ``high``."""
    said = rule or f"lie in [{low:g}, {high:g}]"

    def check(name: str, given: Any) -> tuple[float, ...]:
        several = isinstance(given, list | tuple) and len(given) >= least
        require(several, name, f"be a list of at least {least} numbers" if least > 1 else "be a list of numbers", given)
        values = tuple(number(name, value) for value in given)
        require(all(low <= value <= high for value in values), name, said, list(values), hint)
        return values

    return ruled(check, default=default)


def count(least: int, most: int = 2**63 - 1, *, default: Any = None, hint: str = "", many: bool = False) -> Any:
    """A field for a whole number from ``least`` to ``most``, or with ``many`` one for each of several."""
    said = f"be at least {least}" if most >= 10**9 else f"lie between {least} and {most}"

    def check(name: str, given: Any) -> int:
        value = whole(name, given)
        require(least <= value <= most, name, said, given, hint)
        return value

    return ruled(_each(check) if many else check, default=default)


def word(choices: Any, *, default: Any = None, hint: str = "") -> Any:
    """A field for one of the words of a ``Literal``."""
    words = get_args(choices)

    def check(name: str, given: Any) -> str:
        require(given in words, name, f"be one of {', '.join(words)}", given, hint)
        return str(given)

    return ruled(check, default=default)


def ruled(check: Rule, *, default: Any = None, factory: Callable[[], Any] | None = None) -> Any:
    """A field with a rule of its own; ``factory`` makes a default that is not frozen."""
    if factory is not None:
        return field(default_factory=factory, metadata={_RULE: check})
    return field(default=default, metadata={_RULE: check})


def group(kind: Any, *, short: str | None = None, default: Any = None) -> Any:
    """A field for settings that belong together: a table, or a value of ``kind``; absent as a whole when absent.

    ``short``: the one key of the table that may be given alone in place of it.
    """

    def check(name: str, given: Any) -> Any:
        if isinstance(given, kind):
            return given
        if isinstance(given, Mapping):
            return filled(kind, given, name)
        known = short is not None
        rule = f"be a table, [{name}]" if short is None else f"be {short} alone, or a table, [{name}]"
        require(known, name, rule, given)
        return kind(**{str(short): given})

    return field(default=default, metadata={_RULE: check, _GROUP: kind})


def groups_of(kind: Any) -> dict[str, Any]:
    """Return the groups of settings of a request, by their names."""
    return {one.name: one.metadata[_GROUP] for one in fields(kind) if _GROUP in one.metadata}


def check_fields(value: Any, where: str) -> None:
    """Check every field of a dataclass by its own rule, and keep what the rule makes of it.

    None stands for what is left out, where that is the default. ``where``: the table, for the names in refusals.
    """
    for one in fields(value):
        given = getattr(value, one.name)
        if _RULE in one.metadata and not (given is None and one.default is None):
            object.__setattr__(value, one.name, one.metadata[_RULE](f"{where}.{one.name}", given))


def is_stated(value: Any, name: str) -> bool:
    """Return whether a setting differs from what it is when it is left out."""
    one = next(field for field in fields(value) if field.name == name)
    usual = one.default_factory() if one.default_factory is not MISSING else one.default
    return bool(getattr(value, name) != usual)


def check_empty(value: Any, where: str, given: str) -> None:
    """Refuse a part that is empty, having nothing ``given``, and states something all the same: there is one of it."""
    stated = [one.name for one in fields(value) if one.name != given and is_stated(value, one.name)]
    require(not stated, f"{where}.{given}", f"be given with {', '.join(stated)}", getattr(value, given))


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A setting that cannot be stated beside another one, or under some condition, and why.

    ``one`` and ``other`` are fields of what is checked. Where they are not, ``given`` returns what is stated of the
    first (None, False, 0 or something empty: nothing), and ``when`` whether the second holds; ``one`` is then its whole
    name, and ``other`` is said in words. Both are asked about the whole value, mostly by ``attrgetter``.
    """

    one: str
    other: str
    why: str
    when: Callable[[Any], object] | None = None
    given: Callable[[Any], object] | None = None

    def words(self) -> tuple[str, str, str]:
        """Return the row of the docs' table: the setting, what excludes it, and the reason."""
        return self.one, self.other, self.why

    def stated(self, value: Any) -> object:
        """Return what is stated although it must not be; None if there is nothing of the kind."""
        if not (is_stated(value, self.other) if self.when is None else self.when(value)):
            return None
        if self.given is not None:
            return self.given(value) or None
        return getattr(value, self.one) if is_stated(value, self.one) else None


def check_exclusions(value: Any, where: str, exclusions: Sequence[Exclusion]) -> None:
    """Refuse a setting that is excluded, with the reason; ``where``: the table of fields, for their names."""
    for pair in exclusions:
        given = pair.stated(value)
        name = f"{where}.{pair.one}" if pair.given is None else pair.one
        shown = "a table" if is_dataclass(given) else given
        require(given is None, name, f"be left out with {pair.other}", shown, pair.why)


def _each(check: Rule) -> Rule:
    """The same rule for one number, or for each of a list."""

    def checked(name: str, given: Any) -> Any:
        if isinstance(given, list | tuple):
            require(len(given) >= 1, name, "list at least one number", given)
            return tuple(check(name, value) for value in given)
        return check(name, given)

    return checked
