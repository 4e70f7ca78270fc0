"""What a study states about its data: where they are, the public rule for features, and who owns which record."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

from fedveil.core.checks import require
from fedveil.data.address import is_database, without_secret
from fedveil.data.cells import MISSING as MISSING
from fedveil.data.cells import canonical
from fedveil.data.feature_map import check_stated
from fedveil.data.spec_rules import RULES, check_writing, interval_classes
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
APART = ("learned", "secret", "frame", "unlabelled")  # fields that no study states as keys
# keys that studies of the first version did not have
LATER = ("bend", "decimal", "event", "feature_map", "intervals", "query", "thousands", "unlisted")
PLACES: dict[str, Places] = {"column": "client column", "file": "file names", "dirichlet": "labels"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where records are, and the fixed public rule that turns them into bounded rows; nothing is learned from the data.

    ``source``: a path, ``sklearn:NAME``, or the address of a database, whose password is kept apart as ``secret``
    and shown nowhere; ``query`` selects its rows. ``frame``: columns that a program brings, in place of a source.
    ``scale``: public ranges, mapped to [-1, 1] after cutting what lies outside. Labels: ``classes`` (in order, or
    how many when they are 0, 1, ...), or ``label_above`` (1 where the target is larger), or ``target_scale`` for
    regression, or ``intervals`` (where each ends) for persons who were watched for the time in the target, with
    ``event``, the column that says whether something was seen to happen then. Rows are cut to norm
    ``feature_bound``, then ``intercept`` is appended as a constant column (0: none). ``bend``: a column with a
    range is measured by arcsinh(x / bend), nearly a logarithm. ``decimal`` and ``thousands``: how numbers are
    written in a CSV file. ``unlisted``: what becomes of a record whose label is not among ``classes``.
    ``feature_map``: a public function that every scaled row goes through before it is cut. ``public`` declares that
    these records are known to everybody: the one place where a study says so. ``learned``: what of the rule is left
    to a private preparation, which is no key of [data] (the [prepare] table decides it): nothing, what the study and
    published descriptions leave open, or all that the study itself leaves open. ``unlabelled``: no column is to be
    predicted, and every column is a feature; no key either, since only a generator can do without a target.
    """

    source: str
    feature_bound: float
    format: Format | None = None
    target: str | int | None = None
    labels: str | None = None
    files: str = "*"
    header: bool = True
    names: tuple[str, ...] = ()
    delimiter: str | None = None
    features: int | None = None
    columns: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] | int | None = None
    label_above: float | None = None
    scale: Mapping[str, Span] = field(default_factory=dict)
    default_scale: Span | None = None
    target_scale: Span | None = None
    missing: tuple[str, ...] = MISSING
    fill: Mapping[str, Fill] = field(default_factory=dict)
    default_fill: Fill = "refuse"
    intercept: float = 1.0
    client_column: str | None = None
    public: bool = False
    learned: Learned = field(default="nothing", repr=False)
    bend: Mapping[str, float] = field(default_factory=dict, repr=False)
    decimal: str = field(default=".", repr=False)
    thousands: str | None = field(default=None, repr=False)
    unlisted: str = field(default="refuse", repr=False)
    query: str | None = field(default=None, repr=False)
    event: str | None = field(default=None, repr=False)
    intervals: tuple[float, ...] = field(default=(), repr=False)
    feature_map: str | None = field(default=None, repr=False)
    unlabelled: bool = field(default=False, repr=False)
    secret: str | None = field(default=None, repr=False, compare=False)
    frame: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _settle_source(self)
        _check_source(self)
        _check_labels(self)

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
        """True if a row with a missing value may be dropped."""
        return "drop-row" in (self.default_fill, self.unlisted, *self.fill.values())

    @property
    def later(self) -> dict[str, Any]:
        """What is stated under keys that studies of the first version did not have."""
        return {key: value for key, value in stated(self).items() if key in LATER}

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str = "[data]") -> Self:
        """Return the source of a TOML table."""
        values = known_keys(table, [key for key in field_names(cls) if key not in APART], where)
        for key in ("source", "feature_bound"):
            require(key in values, f"{where}: {key}", "be given", None)
        return cls(**values)

    def table(self) -> dict[str, Any]:
        """Return the TOML table that parses to this."""
        return {key: value for key, value in stated(self).items() if key not in APART}


def _settle_source(source: Source) -> None:
    """Convert given entries to plain tuples, floats and texts; refuse what cannot be converted."""

    def settle(key: str, value: Any) -> None:
        object.__setattr__(source, key, value)

    for key in ("source", "files"):
        text(f"data.{key}", getattr(source, key))
    shown, secret = without_secret(source.source)
    if secret is not None:
        settle("source", shown)
        settle("secret", secret)
    for key in ("labels", "client_column", "delimiter", "query", "event"):
        if getattr(source, key) is not None:
            named = key in ("client_column", "event")
            settle(key, (label if named else text)(f"data.{key}", getattr(source, key)))
    settle("intervals", tuple(number("data.intervals", end) for end in sequence("data.intervals", source.intervals)))
    for key in ("feature_bound", "intercept", "label_above"):
        if getattr(source, key) is not None or key != "label_above":
            settle(key, number(f"data.{key}", getattr(source, key)))
    for key in ("names", "columns", "ignore"):
        settle(key, tuple(label(f"data.{key}", item) for item in sequence(f"data.{key}", getattr(source, key))))
    for key in ("default_scale", "target_scale"):
        if getattr(source, key) is not None:
            settle(key, span(f"data.{key}", getattr(source, key)))
    settle("scale", {k: span(f"data.scale.{k}", v) for k, v in by_column("data.scale", source.scale).items()})
    settle("bend", {k: number(f"data.bend.{k}", v) for k, v in by_column("data.bend", source.bend).items()})
    fills = by_column("data.fill", source.fill).items()
    settle("fill", {k: v if isinstance(v, str) else number(f"data.fill.{k}", v) for k, v in fills})
    if not isinstance(source.default_fill, str):
        settle("default_fill", number("data.default_fill", source.default_fill))
    settle("categories", _categories(source.categories))
    missing = sequence("data.missing", source.missing)
    require(all(isinstance(item, str) for item in missing), "data.missing", "be a list of texts", missing)
    settle("missing", missing)


def _categories(given: Any) -> dict[str, tuple[str, ...]]:
    found = {}
    for column, values in by_column("data.categories", given).items():
        name = f"data.categories.{column}"
        found[column] = _distinct(name, sequence(name, values), least=1)
    return found


def _distinct(name: str, values: tuple[Any, ...], least: int) -> tuple[str, ...]:
    right = all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in values)
    require(right, name, "list texts or numbers", values)
    words = tuple(canonical(value) for value in values)
    require(len(words) >= least, name, f"list at least {least}", values)
    counted = Counter(words)
    twice = next((word for word in words if counted[word] > 1), None)
    require(twice is None, name, "name each once (numbers that are equal are the same)", twice)
    return words


def _check_source(source: Source) -> None:
    bound = source.feature_bound
    require(1e-9 <= bound <= 1e9, "data.feature_bound", "lie in [1e-9, 1e9]", bound)
    hint = "Use 1 for a constant column, 0 for none."
    within = 0 <= source.intercept <= 1000 * bound
    require(within, "data.intercept", "lie between 0 and 1000 times feature_bound", source.intercept, hint)
    formats = get_args(Format)
    right = source.format is None or source.format in formats
    require(
        right, "data.format", f"be one of {', '.join(formats)}", source.format, nearest(str(source.format), formats)
    )
    if source.shipped is not None:
        name = source.shipped
        require(
            name in SHIPPED, "data.source", f"be sklearn: and one of {', '.join(SHIPPED)}", name, nearest(name, SHIPPED)
        )
    for key in ("header", "public"):
        require(isinstance(getattr(source, key), bool), f"data.{key}", "be true or false", getattr(source, key))
    require(source.header is False or not source.names, "data.names", "go with header = false", source.names)
    sign = source.delimiter
    single = sign is None or (len(sign) == 1 and sign.isascii() and sign not in '"\r\n')
    require(single, "data.delimiter", "be one character of ASCII, and no quote or line break", sign)
    for key in ("names", "columns", "ignore"):
        given = getattr(source, key)
        require(len(set(given)) == len(given), f"data.{key}", "name each column once", given)
    both = sorted(set(source.columns) & set(source.ignore))
    require(not both, "data.ignore", "not name what data.columns names", both)
    if source.features is not None:
        require(whole("data.features", source.features, 1) <= 10**6, "data.features", "be at most 1e6", source.features)
    _check_fill(source)
    check_writing(source)
    check_stated(source.feature_map, source.learned)


def _check_fill(source: Source) -> None:
    default = source.default_fill
    right = default in RULES or isinstance(default, float)
    require(right, "data.default_fill", 'be "refuse", "drop-row" or a number', default)
    for column, value in source.fill.items():
        allowed = source.categories.get(column)
        name = f"data.fill.{column}"
        if allowed is None:
            require(value in RULES or isinstance(value, float), name, 'be a number, "refuse" or "drop-row"', value)
        else:
            right = value in RULES or canonical(value) in allowed
            require(right, name, f'be one of its categories {", ".join(allowed)}, "refuse" or "drop-row"', value)
    ranged = sorted(set(source.scale) & set(source.categories))
    require(not ranged, "data.scale", "not name a column of data.categories", ranged)


def _check_labels(source: Source) -> None:
    if source.target is not None:
        right = isinstance(source.target, str | int) and not isinstance(source.target, bool)
        require(right, "data.target", "be a column's name, or its number when there is no header", source.target)
    if isinstance(source.classes, list | tuple):
        object.__setattr__(source, "classes", _distinct("data.classes", tuple(source.classes), least=2))
    elif source.classes is not None:
        require(whole("data.classes", source.classes, 2) <= 10**5, "data.classes", "be at most 1e5", source.classes)
    if source.event is not None or source.intervals:
        object.__setattr__(source, "classes", interval_classes(source))
        object.__setattr__(source, "unlisted", "drop-row")  # a person who was hardly seen has none of the classes
        return
    given = [key for key in ("classes", "label_above", "target_scale") if getattr(source, key) is not None]
    hint = (
        "Labels are declared, never learned: classes = 2 for labels 0 and 1, classes = ['no', 'yes'] for others, "
        "label_above = 0 for a threshold, target_scale = [low, high] for a number to predict, intervals = [1, 2, 5] "
        "with event for a survival model."
    )
    least = 0 if source.shipped else 1
    require(
        least <= len(given) <= 1, "[data]", "state one of classes, label_above and target_scale", given or "none", hint
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
        shared = ("feature_bound", "feature_map", "intercept", "public", *APART)
        theirs = [key for key in field_names(Source) if key not in shared]
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
            default = getattr(self.source, key)
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
