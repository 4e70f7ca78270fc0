"""What the sites say about their columns: the rule that they share, or the outline of one that is to be learned."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.strict_json import read_object
from fedveil.data.row_rule import RowRule
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.learned import read_outline
from fedveil.stages.prepare.reading import Reading
from fedveil.wire.content import Content

_MOST = 2**24  # bytes of a description


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
    require(len(block) <= _MOST, "A site's description", f"have at most {_MOST} bytes", len(block))
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
