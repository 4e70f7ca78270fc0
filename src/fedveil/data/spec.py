"""What a study states about its data: where they are, the public rule for features, and who owns which record.

The keys of ``[data]`` stand side by side in a study. Here they are grouped by what they decide: how files are read
(:class:`Reading`), what is predicted (:class:`Labelling`), and how columns become numbers (:class:`Features`).
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise
from typing import Any, Final, Literal, Self, get_args

from fedveil.core.errors import require
from fedveil.core.fields import check_fields, ruled
from fedveil.data.address import is_database, without_secret
from fedveil.data.cells import MISSING as MISSING
from fedveil.data.cells import canonical
from fedveil.data.rows import check_stated
from fedveil.data.tables import (
    by_column,
    field_names,
    known_keys,
    label,
    nearest,
    number,
    plain,
    sequence,
    span,
    stated,
    text,
    whole,
)

Format = Literal["csv", "parquet", "feather", "npz", "libsvm", "idx", "folder"]
Kind = Literal["column", "file", "equal", "uneven", "dirichlet", "record"]
Places = Literal["row numbers", "client column", "file names", "labels"]  # what decides who holds which record
Span = tuple[float, float]
Fill = float | str
Learned = Literal["nothing", "unstated", "all"]
SHIPPED = ("breast_cancer", "digits", "wine", "diabetes")  # with scikit-learn
OTHER = "(other)"  # a category of this name stands for every word that data.categories does not list
RULES = ("refuse", "drop-row")  # what becomes of a record without a value, or without a listed label
PLACES: dict[str, Places] = {"column": "client column", "file": "file names", "dirichlet": "labels"}
_APART: Final = ("learned", "secret", "frame", "unlabelled")  # fields that no study states as keys
_DECIMALS: Final = (".", ",")
_THOUSANDS: Final = (",", ".", " ", "'")
_MOST_INTERVALS: Final = 200
_LABELS_HINT: Final = (
    "Labels are declared, never learned: classes = 2 for labels 0 and 1, classes = ['no', 'yes'] for others, "
    "label_above = 0 for a threshold, target_scale = [low, high] for a number to predict, intervals = [1, 2, 5] "
    "with event for a survival model."
)


def _truth(name: str, value: Any) -> bool:
    require(isinstance(value, bool), name, "be true or false", value)
    return bool(value)


def _one_of(words: tuple[str, ...], rule: str = "") -> Any:
    def check(name: str, value: Any) -> str:
        known = isinstance(value, str) and value in words
        hint = nearest(str(value), words) if len(words) > 2 else ""
        require(known, name, rule or f"be one of {', '.join(words)}", value, hint)
        return str(value)

    return check


def _delimiter(name: str, value: Any) -> str:
    sign = text(name, value)
    single = len(sign) == 1 and sign.isascii() and sign not in '"\r\n'
    require(single, name, "be one character of ASCII, and no quote or line break", sign)
    return sign


def _column_list(name: str, value: Any) -> tuple[str, ...]:
    names = tuple(label(name, item) for item in sequence(name, value))
    require(len(set(names)) == len(names), name, "name each column once", names)
    return names


def _marks(name: str, value: Any) -> tuple[str, ...]:
    marks = sequence(name, value)
    require(all(isinstance(mark, str) for mark in marks), name, "be a list of texts", marks)
    return marks


def _width(name: str, value: Any) -> int:
    require(whole(name, value, 1) <= 10**6, name, "be at most 1e6", value)
    return int(value)


def _target(name: str, value: Any) -> str | int:
    right = isinstance(value, str | int) and not isinstance(value, bool)
    require(right, name, "be a column's name, or its number when there is no header", value)
    return value  # type: ignore[no-any-return]


def _classes(name: str, value: Any) -> tuple[str, ...] | int:
    if isinstance(value, list | tuple):
        return _distinct(name, tuple(value), least=2)
    require(whole(name, value, 2) <= 10**5, name, "be at most 1e5", value)
    return int(value)


def _interval_ends(name: str, value: Any) -> tuple[float, ...]:
    return tuple(number(name, end) for end in sequence(name, value))


def _categories(name: str, value: Any) -> dict[str, tuple[str, ...]]:
    return {
        column: _distinct(f"{name}.{column}", sequence(f"{name}.{column}", words), least=1)
        for column, words in by_column(name, value).items()
    }


def _distinct(name: str, values: tuple[Any, ...], least: int) -> tuple[str, ...]:
    right = all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in values)
    require(right, name, "list texts or numbers", values)
    words = tuple(canonical(value) for value in values)
    require(len(words) >= least, name, f"list at least {least}", values)
    counted = Counter(words)
    twice = next((word for word in words if counted[word] > 1), None)
    require(twice is None, name, "name each once (numbers that are equal are the same)", twice)
    return words


def _spans(name: str, value: Any) -> dict[str, Span]:
    return {column: span(f"{name}.{column}", given) for column, given in by_column(name, value).items()}


def _bends(name: str, value: Any) -> dict[str, float]:
    return {column: number(f"{name}.{column}", given) for column, given in by_column(name, value).items()}


def _fills(name: str, value: Any) -> dict[str, Fill]:
    given = by_column(name, value).items()
    return {column: fill if isinstance(fill, str) else number(f"{name}.{column}", fill) for column, fill in given}


def _default_fill(name: str, value: Any) -> Fill:
    fill = value if isinstance(value, str) else number(name, value)
    require(fill in RULES or isinstance(fill, float), name, 'be "refuse", "drop-row" or a number', fill)
    return fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How files are read.

    ``files``: the pattern of names in a folder. ``names``: of the columns, where the file has no header.
    ``delimiter``, ``decimal`` and ``thousands``: how a CSV file is written. ``missing``: texts that stand for no value.
    ``labels``: the file of labels beside a file of images (IDX). ``features``: the columns of a LIBSVM file, which does
    not say how many it has. ``query``: the rows of a database.
    """

    format: Format | None = ruled(_one_of(get_args(Format)))
    files: str = ruled(text, default="*")
    header: bool = ruled(_truth, default=True)
    names: tuple[str, ...] = ruled(_column_list, default=())
    delimiter: str | None = ruled(_delimiter)
    decimal: str = ruled(_one_of(_DECIMALS, 'be "." or ","'), default=".")
    thousands: str | None = ruled(_one_of(_THOUSANDS, 'be ",", ".", " " or "\'"'))
    missing: tuple[str, ...] = ruled(_marks, default=MISSING)
    labels: str | None = ruled(text)
    features: int | None = ruled(_width)
    query: str | None = ruled(text)

    def __post_init__(self) -> None:
        check_fields(self, "data")
        require(self.header is False or not self.names, "data.names", "go with header = false", self.names)
        require(self.thousands != self.decimal, "data.thousands", "differ from data.decimal", self.thousands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """What is predicted: the column ``target``, by one rule of four.

    ``classes``: the labels in order, or how many when they are 0, 1, ...; ``label_above``: 1 where the target is
    larger; ``target_scale``: the range of a number; ``intervals``: where each ends, for persons who were watched for
    the time in the target, with ``event``, the column that says whether something was seen to happen then.
    ``unlisted``: what becomes of a record whose label is not among ``classes``. ``unlabelled``: nothing is predicted
    and every column is a feature, as for a generator; no key of a study.
    """

    target: str | int | None = ruled(_target)
    classes: tuple[str, ...] | int | None = ruled(_classes)
    label_above: float | None = ruled(number)
    target_scale: Span | None = ruled(span)
    event: str | None = ruled(label)
    intervals: tuple[float, ...] = ruled(_interval_ends, default=())
    unlisted: str = ruled(_one_of(RULES, 'be "refuse" or "drop-row"'), default="refuse")
    unlabelled: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "data")
        if self.event is not None or self.intervals:
            object.__setattr__(self, "classes", _interval_classes(self))
            object.__setattr__(self, "unlisted", "drop-row")  # a person who was hardly seen has none of the classes

    @property
    def rules(self) -> list[str]:
        """The rules for labels that are stated; a source needs one, unless the data set itself knows its labels."""
        return [key for key in ("classes", "label_above", "target_scale") if getattr(self, key) is not None]


def _interval_classes(labels: Labelling) -> tuple[str, ...]:
    """Return the classes that intervals declare; refuse ends that do not rise, and other rules beside them.

    For each interval "k+" (seen without the event to its end) and "k" (the event in it).
    """
    ends = labels.intervals
    both = labels.event is not None and bool(ends)
    hint = "The target holds times, event names the column of events, and intervals where each interval ends."
    require(both, "data.event", "be given with data.intervals", (labels.event, ends), hint)
    rising = all(0 < end < math.inf for end in ends) and all(a < b for a, b in pairwise(ends))
    few = len(ends) <= _MOST_INTERVALS
    require(rising and few, "data.intervals", f"be up to {_MOST_INTERVALS} ends that are positive and rise", ends[:5])
    others = [key for key in labels.rules if key != "classes"]
    require(not others, "data.intervals", "be the only rule for labels", others)
    require(labels.target is not None, "data.target", "name the column of times", None)
    words = tuple(word for k in range(1, len(ends) + 1) for word in (f"{k}+", f"{k}"))
    same = labels.classes in (None, words)
    require(same, "data.classes", "be those that data.intervals declare", labels.classes)
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """How columns become numbers, by public rules.

    ``columns`` or ``ignore``: which of them. ``scale``: public ranges, mapped to [-1, 1] after cutting what lies
    outside; ``bend``: a column with a range is measured by arcsinh(x / bend), nearly a logarithm. ``categories``: the
    words of a column of texts. ``fill``: what stands for a missing value.
    """

    columns: tuple[str, ...] = ruled(_column_list, default=())
    ignore: tuple[str, ...] = ruled(_column_list, default=())
    categories: Mapping[str, tuple[str, ...]] = ruled(_categories, factory=dict)
    scale: Mapping[str, Span] = ruled(_spans, factory=dict)
    default_scale: Span | None = ruled(span)
    bend: Mapping[str, float] = ruled(_bends, factory=dict)
    fill: Mapping[str, Fill] = ruled(_fills, factory=dict)
    default_fill: Fill = ruled(_default_fill, default="refuse")

    def __post_init__(self) -> None:
        check_fields(self, "data")
        both = sorted(set(self.columns) & set(self.ignore))
        require(not both, "data.ignore", "not name what data.columns names", both)
        ranged = sorted(set(self.scale) & set(self.categories))
        require(not ranged, "data.scale", "not name a column of data.categories", ranged)
        for column, value in self.fill.items():
            words, name = self.categories.get(column), f"data.fill.{column}"
            if words is None:
                require(value in RULES or isinstance(value, float), name, 'be a number, "refuse" or "drop-row"', value)
            else:
                right = value in RULES or canonical(value) in words
                require(right, name, f'be one of its categories {", ".join(words)}, "refuse" or "drop-row"', value)
        for column, unit in self.bend.items():
            require(unit > 1e-300, f"data.bend.{column}", "be positive", unit)
            ranged_column = column in self.scale or (self.default_scale is not None and column not in self.categories)
            require(ranged_column, f"data.bend.{column}", "be of a column with a range in data.scale", column)


def _written_day(given: Any) -> str:
    """Return a day as it is written in a file, where it may also be a date of TOML."""
    try:
        written = given.isoformat() if isinstance(given, date) else str(date.fromisoformat(given))
    except (TypeError, ValueError):
        written = ""
    require(len(written) == len("2027-01-31"), "data.as_of", "be a date such as 2027-01-31", given)
    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where records are, and the fixed public rule that turns them into bounded rows; nothing is learned from the data.

    ``source``: a path, ``sklearn:NAME``, or the address of a database, whose password is kept apart as ``secret``
    and shown nowhere. ``frame``: columns that a program brings, in place of a source. Rows are cut to norm
    ``feature_bound``, then ``intercept`` is appended as a constant column (0: none). ``feature_map``: a public function
    that every scaled row goes through before it is cut. ``person_column``: whose each row is, where several may be one
    person's; ``largest_person``: how many of them are used at most. ``expires_column``: from which day on each row
    may no longer be in a released model; rows that have expired by the day ``as_of`` are blank. ``public`` declares
    that these records are known to everybody: the one place where a study says so. ``learned``: what of
    the rule is left to a private preparation, which is no key of [data] (the [prepare] table decides it): nothing, what
    the study and published descriptions leave open, or all that the study itself leaves open.
    """

    source: str
    feature_bound: float
    reading: Reading = Reading()
    labelling: Labelling = Labelling()
    features: Features = field(default_factory=Features)
    intercept: float = 1.0
    feature_map: str | None = None
    client_column: str | None = None
    person_column: str | None = None
    largest_person: int | None = None
    expires_column: str | None = None
    as_of: str | None = None
    public: bool = False
    learned: Learned = "nothing"
    secret: str | None = field(default=None, repr=False, compare=False)
    frame: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        shown, secret = without_secret(text("data.source", self.source))
        if secret is not None:
            object.__setattr__(self, "source", shown)
            object.__setattr__(self, "secret", secret)
        for key in ("client_column", "person_column", "expires_column"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, label(f"data.{key}", getattr(self, key)))
        both = (self.person_column is None) == (self.largest_person is None)
        hint = "Persons need a column that names them, and the most rows of one person that may be used."
        given = (self.person_column, self.largest_person)
        require(both, "data.person_column", "be given with data.largest_person", given, hint)
        if self.largest_person is not None:
            whole("data.largest_person", self.largest_person, 1)
        if self.as_of is not None:
            require(self.expires_column is not None, "data.as_of", "go with data.expires_column", self.as_of)
            object.__setattr__(self, "as_of", _written_day(self.as_of))
        for key in ("feature_bound", "intercept"):
            object.__setattr__(self, key, number(f"data.{key}", getattr(self, key)))
        bound, name = self.feature_bound, self.shipped
        require(1e-9 <= bound <= 1e9, "data.feature_bound", "lie in [1e-9, 1e9]", bound)
        hint = "Use 1 for a constant column, 0 for none."
        within = 0 <= self.intercept <= 1000 * bound
        require(within, "data.intercept", "lie between 0 and 1000 times feature_bound", self.intercept, hint)
        if name is not None:
            _one_of(SHIPPED, f"be sklearn: and one of {', '.join(SHIPPED)}")("data.source", name)
        _truth("data.public", self.public)
        check_stated(self.feature_map, self.learned)
        by_query = self.reading.query is None or self.database
        require(by_query, "data.query", "go with a database as data.source", self.source)
        rules = self.labelling.rules
        one = (name is not None and not rules) or len(rules) == 1
        require(one, "[data]", "state one of classes, label_above and target_scale", rules or "none", _LABELS_HINT)

    @property
    def shipped(self) -> str | None:
        """The name of a data set that comes with scikit-learn, or None."""
        return self.source.removeprefix("sklearn:") if self.source.startswith("sklearn:") else None

    @property
    def database(self) -> bool:
        """Whether the rows come from a query."""
        return is_database(self.source)

    @property
    def drops_rows(self) -> bool:
        """True if a row may be dropped: it lacks a value, its person has too many, or it has expired."""
        return (
            self.largest_person is not None
            or self.as_of is not None
            or "drop-row"
            in (
                self.features.default_fill,
                self.labelling.unlisted,
                *self.features.fill.values(),
            )
        )

    @property
    def parts(self) -> tuple[Reading, Labelling, Features]:
        """The groups, whose keys stand side by side in a study."""
        return self.reading, self.labelling, self.features

    @classmethod
    def of(cls, **keys: Any) -> Self:
        """Return the source that these keys state: those of a study, and the fields that no study states.

        >>> Source.of(source="a.csv", feature_bound=1, target="ill", classes=2).labelling.target
        'ill'
        """
        own = {name: keys.pop(name) for name in field_names(cls) if name in keys and name not in _GROUPS}
        groups = {
            name: kind(**{key: keys.pop(key) for key in field_names(kind) if key in keys})
            for name, kind in _GROUPS.items()
        }
        return cls(**own, **groups, **keys)

    def with_keys(self, **keys: Any) -> Self:
        """Return the same source with other values of these keys."""
        groups = {
            name: replace(getattr(self, name), **own)
            for name, kind in _GROUPS.items()
            if (own := {key: keys.pop(key) for key in field_names(kind) if key in keys})
        }
        return replace(self, **groups, **keys)

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str = "[data]") -> Self:
        """Return the source of a TOML table."""
        values = known_keys(table, KEYS, where)
        for key in ("source", "feature_bound"):
            require(key in values, f"{where}: {key}", "be given", None)
        return cls.of(**values)

    def table(self) -> dict[str, Any]:
        """Return the TOML table that parses to this."""
        own = {key: value for key, value in stated(self).items() if key not in _GROUPS}
        flat = own | {key: value for part in self.parts for key, value in stated(part).items()}
        return {key: flat[key] for key in KEYS if key in flat}


_GROUPS: Final[Mapping[str, type[Any]]] = {"reading": Reading, "labelling": Labelling, "features": Features}
KEYS: Final = tuple(
    key
    for kind in (Source, *_GROUPS.values())
    for key in field_names(kind)
    if key not in _APART and (kind is not Source or key not in _GROUPS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Who owns which record: as the data say (``column``, ``file``), or as assigned by a rule of the study.

    ``equal``: sizes differ by at most one. ``uneven``: after one record each, client i gets a share of the rest
    proportional to i**-alpha.
    ``dirichlet``: each class is spread by its own Dirichlet(alpha) draw; small alpha, more skew. ``record``: each
    record is its own client. Every client has at least one record.

    Every other client sees who holds what, so a split must not reveal private values: ``places`` says what it depends
    on.
    """

    kind: Kind
    count: int | None = None
    alpha: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        kinds = get_args(Kind)
        right = isinstance(self.kind, str) and self.kind in kinds
        require(right, "clients.kind", f"be one of {', '.join(kinds)}", self.kind, nearest(str(self.kind), kinds))
        counted, shaped = self.kind in ("equal", "uneven", "dirichlet"), self.kind in ("uneven", "dirichlet")
        rule = f"be {{}} for kind {self.kind}"
        given = "given" if counted else "left out"
        require((self.count is not None) == counted, "clients.count", rule.format(given), self.count)
        given = "given" if shaped else "left out"
        require((self.alpha is not None) == shaped, "clients.alpha", rule.format(given), self.alpha)
        if self.count is not None:
            whole("clients.count", self.count, 1)
        if self.alpha is not None:
            alpha = number("clients.alpha", self.alpha)
            low, high = (0.0, 10.0) if self.kind == "uneven" else (1e-3, 1e6)
            require(low <= alpha <= high, "clients.alpha", f"lie in [{low:g}, {high:g}]", alpha)
            object.__setattr__(self, "alpha", alpha)
        whole("clients.seed", self.seed, 0)

    @property
    def natural(self) -> bool:
        """True if the data themselves say who owns what."""
        return self.kind in ("column", "file")

    @property
    def places(self) -> Places:
        """What decides who holds which record; everything but the labels is public (the column by declaration)."""
        return PLACES.get(self.kind, "row numbers")

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str = "[clients]") -> Self:
        """Return the split of a TOML table."""
        values = known_keys(table, field_names(cls), where)
        require("kind" in values, f"{where}: kind", "be given", None)
        return cls(**values)

    def table(self) -> dict[str, Any]:
        """Return the TOML table that parses to this."""
        return stated(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Records kept from training, for measuring: another source, or a fraction of the rows.

    Unless they are ``public``, whatever is measured on them is itself a release about them. A fraction of records that
    ``data.public`` declares public is public without saying so again.
    """

    source: Source | None = None
    fraction: float | None = None
    public: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        one = (self.source is None) != (self.fraction is None)
        got = "both" if self.source is not None else "neither"
        require(one, "[data.held_out]", "state either source or fraction", got)
        if self.fraction is not None:
            fraction = number("data.held_out.fraction", self.fraction)
            require(0 < fraction < 1, "data.held_out.fraction", "lie strictly between 0 and 1", fraction)
            object.__setattr__(self, "fraction", fraction)
        require(isinstance(self.public, bool), "data.held_out.public", "be true or false", self.public)
        whole("data.held_out.seed", self.seed, 0)

    @classmethod
    def parse(cls, table: Mapping[str, Any], train: Source, where: str = "[data.held_out]") -> Self:
        """Return the held-out rows of a TOML table.

        A source there states only how it differs from the training source.
        """
        own = ["fraction", "public", "seed"]
        theirs = [key for key in KEYS if key not in ("feature_bound", "feature_map", "intercept", "public")]
        values = known_keys(table, own + theirs, where)
        differing = {key: value for key, value in values.items() if key not in own}
        stray = sorted(set(differing) - {"source"})
        require("source" in values or not stray, where, "name a source when it says how to read one", stray)
        source = Source.parse({**_read_alike(train), **differing}, where) if differing else None
        if source is not None and source.source == train.source:  # the same database, under the same password
            source = replace(source, secret=train.secret)
        return cls(source=source, **{key: values[key] for key in own if key in values})

    def table(self, train: Source) -> dict[str, Any]:
        """Return the TOML table that parses to this, next to ``train``."""
        table = {key: value for key, value in stated(self).items() if key != "source"}
        if self.source is None:
            return table
        kept, base = _read_alike(self.source), _read_alike(train)
        for key in base.keys() - kept.keys():  # a missing key would be inherited, so defaults are written too
            default = next(getattr(part, key) for part in (*self.source.parts, self.source) if hasattr(part, key))
            require(default is not None, f"data.held_out.{key}", "be given when data states it", default)
            kept[key] = plain(default)
        return table | {key: value for key, value in kept.items() if key == "source" or base.get(key) != value}


def _read_alike(source: Source) -> dict[str, Any]:
    """Return what a held-out source inherits: how to read it, but not whether it is public."""
    return {key: value for key, value in source.table().items() if key != "public"}


def parse_data(table: Mapping[str, Any]) -> tuple[Source, HeldOut | None]:
    """Return the [data] table of a study, with [data.held_out] if it is there."""
    require(isinstance(table, Mapping), "[data]", "be a table", table)
    source = Source.parse({key: value for key, value in table.items() if key != "held_out"})
    return source, HeldOut.parse(table["held_out"], source) if "held_out" in table else None
