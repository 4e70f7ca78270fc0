"""The sites of a run as the aggregator knows them: the clients of each, their records, and one numbering for all."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object
from fedveil.core.values import Indices
from fedveil.data.records import DataShape, Records
from fedveil.data.row_rule import RowRule
from fedveil.data.spec import Places
from fedveil.engine.files import write_atomically
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.learned import LearnedRule, read_outline
from fedveil.stages.prepare.loading import Reading, Unprepared, preparation_of
from fedveil.stages.protocol import Consortium, Member
from fedveil.wire.content import Content

_NAMED: tuple[Places, ...] = ("client column", "file names")  # descriptions that a site may give; others are ignored
_MOST = 10**8  # most records of a site, so that a false statement cannot exhaust the aggregator's memory


def consortium(described: Mapping[str, Content]) -> Consortium:
    """Build the consortium from what the sites say about themselves.

    Records and clients are numbered site by site, in the order of the sites' names, unless a trial has fixed the
    numbers.
    """
    names = sorted(described)
    require(len(names) >= 1, "sites", "be at least one", 0)
    kinds = {_kind(described[name]) for name in names}
    rule = "have the same features, classes and bound"
    require(len(kinds) == 1, "The sites' data", rule, sorted(map(str, kinds)), "Describe them alike at every site.")
    fixed = ["positions" in described[name].rows for name in names]
    require(all(fixed) or not any(fixed), "The sites' data", "be all a trial's or none", fixed)
    members: dict[str, Member] = {}
    owners: list[tuple[Indices, Indices]] = []
    first_client = first_record = 0
    for name in names:
        sizes = _sizes(described[name], name)
        if all(fixed):
            member, owner = _fixed(described[name])
        else:
            member = Member(first_client + np.arange(sizes.size), first_record + np.arange(int(sizes.sum())))
            owner = np.repeat(member.clients, sizes)
        members[name] = member
        owners.append((member.records, owner))
        first_client, first_record = first_client + sizes.size, first_record + int(sizes.sum())
    ((features, classes, bound),) = kinds
    owner_of = _whole(owners, first_record)
    counts = np.bincount(owner_of, minlength=first_client)
    require(
        counts.size == first_client and counts.min() >= 1, "The sites' clients", "be numbered once each", counts.size
    )
    shape = DataShape(
        records=first_record,
        features=features,
        classes=classes,
        clients=first_client,
        largest_client=int(counts.max()),
        smallest_client=int(counts.min()),
        bound=bound,
    )
    values = [said.values for said in described.values()]
    places = next((word for word in _NAMED if any(said.get("places") == word for said in values)), None)
    blank = any(said.get("blank_rows") is True for said in values)
    held = _held(described, members, first_client)
    largest = {} if held is None else {"largest_client": int(held.max()), "smallest_client": int(held.min())}
    counted = None if held is None else replace(shape, records=int(held.sum()), **largest)
    left = [count for said in values if type(count := said.get("left")) is int and 0 <= count <= first_record]
    return Consortium(members, shape, owner_of, places, blank, counted, held, sum(left))


def _held(described: Mapping[str, Content], members: Mapping[str, Member], clients: int) -> Indices | None:
    """Return how many records each client holds out; None where no site does."""
    stated = {name: "held" in said.rows for name, said in described.items()}
    if not any(stated.values()):
        return None
    hint = "State [data.held_out] in the data files of all sites, or of none."
    others = sorted(name for name, own in stated.items() if not own)
    require(not others, "The sites", "all hold records out, or none", f"none at {others}", hint)
    result = np.zeros(clients, dtype=np.int64)
    for name, said in described.items():
        sizes = _sizes(said, name, "held")
        own = members[name].clients
        require(sizes.size == own.size, f"The clients of {name}", f"hold records out, all {own.size}", sizes.size)
        result[own] = sizes
    return result


def _kind(said: Content) -> tuple[int, int, float]:
    try:
        return int(said.values["features"]), int(said.values["classes"]), float(said.values["bound"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadValue("A site's description must state features, classes and bound.") from error


def _sizes(said: Content, name: str, key: str = "sizes") -> Indices:
    sizes: Any = said.rows.get(key)
    right = sizes is not None and sizes.dtype == np.int64 and sizes.size >= 1
    right = right and bool(np.all((sizes >= 1) & (sizes <= _MOST)) and float(sizes.astype(np.float64).sum()) <= _MOST)
    rule = f"have at least one record each, and all together at most {_MOST}"
    require(right, f"The clients of {name}", rule, "something else")
    return np.asarray(sizes, dtype=np.int64)


def _fixed(said: Content) -> tuple[Member, Indices]:
    numbers, positions, owner = (said.rows.get(key) for key in ("numbers", "positions", "owner"))
    if numbers is None or positions is None or owner is None:
        raise BadValue("A trial's site must state numbers, positions and owner.")
    numbers, positions, owner = (row.astype(np.int64) for row in (numbers, positions, owner))
    inside = bool(np.all((owner >= 0) & (owner < numbers.size)))
    require(inside, "A trial's owners", f"lie between 0 and {numbers.size - 1}", "something else")
    return Member(numbers, positions), numbers[owner]


def _whole(owners: list[tuple[Indices, Indices]], count: int) -> Indices:
    """Return the owner of every record; refuse unless each record is numbered exactly once."""
    result = np.full(count, -1, dtype=np.int64)
    for records, owner in owners:
        right = records.size == owner.size and bool(np.all((records >= 0) & (records < count)))
        require(right, "The sites' records", f"be numbered from 0 to {count - 1}", records.size)
        result[records] = owner
    require(bool(np.all(result >= 0)), "The sites' records", "be numbered once each", "a number twice")
    return result


# What the sites say about their columns: the rule that they share, or the outline of one that is to be learned.

_MOST_BYTES = 2**24  # bytes of a description


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """``outline``: of columns whose rule is to be learned, with what is known of reading them; else the ``rule``.

    The rule is None where sites do not state one, or not the same one; then only they know how rows were made.
    """

    outline: Outline | None = None
    reading: Reading | None = None
    rule: RowRule | None = None


def described_by(said: Mapping[str, Content]) -> Described:
    """Return what all sites say alike; refuse sites that leave different things open."""
    names = sorted(said)
    blocks = [said[name].blocks.get("columns") for name in names]
    if all(block is None for block in blocks):
        rules = {said[name].blocks.get("rule") for name in names}
        (rule,) = rules if len(rules) == 1 else (None,)
        return Described(rule=None if rule is None else _read(rule, RowRule.read))
    hint = "State data.feature_bound at all sites, or at none."
    listed = [name for name, block in zip(names, blocks, strict=True) if block is None]
    require(not listed, "The sites", "all leave the rule for their rows open, or none", f"stated by {listed}", hint)
    found = [_read(block or b"", _columns) for block in blocks]
    first: Described = found[0]
    for name, other in zip(names, found, strict=True):
        _check_alike(first, other, names[0], name)
    return first


def _columns(given: Any) -> Described:
    reading = given.get("reading")
    return Described(outline=read_outline(given["outline"]), reading=None if reading is None else Reading.read(reading))


def _read(block: bytes, how: Any) -> Any:
    require(len(block) <= _MOST_BYTES, "A site's description", f"have at most {_MOST_BYTES} bytes", len(block))
    try:
        return how(read_object(block, "A site's description"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadValue(f"A site's description of its columns must be as a guard wrote it: {error}.") from error


def _check_alike(first: Described, other: Described, one: str, two: str) -> None:
    """Refuse two sites whose columns differ, by the first difference."""
    mine, theirs = first.outline, other.outline
    assert mine is not None and theirs is not None  # noqa: S101, PT018  for the type checker
    hint = "State types at both sites: prepare.numbers and prepare.texts."
    for key in ("numbers", "texts"):
        stray = sorted(set(getattr(mine, key)) ^ set(getattr(theirs, key)))
        require(not stray, f"The columns of {key} at {one} and {two}", "be the same", stray[:5], hint)
    same = mine == theirs and first.reading == other.reading
    rule = "state the same of their columns (order, ranges, categories, bound, labels, fills)"
    require(same, f"The sites {one} and {two}", rule, "different statements")


# What an aggregator has besides the sites: records to measure on, and the rule from a record to a row.

_RULE: Final = "rule.json"  # in the private folder: how a record becomes a row, as the sites say


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Records that the aggregator may measure on, whether they are public, and how they were made, if it knows.

    ``cells``: in place of records, where the rule that makes them is learned.
    """

    records: Records | None = None
    public: bool = True
    preparation: RowRule | None = None
    cells: Unprepared | None = None

    @property
    def count(self) -> int:
        """Number of records, zero if there are none."""
        held = self.records if self.cells is None else self.cells.test
        return 0 if held is None else len(held)

    def rows(self, learned: LearnedRule | None) -> Records | None:
        """Return the records, made by the rule that was learned where there are only cells."""
        return self.records if self.cells is None or learned is None else self.cells.tested(learned)


def keep_rule(folder: Path, described: Described, learned: LearnedRule | None) -> None:
    """Keep how a record becomes a row, where the sites say it, for the bundle of the model."""
    rule = described.rule
    if learned is not None and described.reading is not None:
        rule = preparation_of(learned, described.reading)
    if rule is not None:
        write_atomically(folder / "private" / _RULE, json.dumps(rule.table(), allow_nan=False).encode())


def kept_rule(folder: Path) -> RowRule | None:
    """Return how a record becomes a row, as the sites said it; None where they did not."""
    path = folder / "private" / _RULE
    return RowRule.read(read_object(path.read_bytes(), _RULE)) if path.exists() else None
