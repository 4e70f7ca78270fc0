"""What an aggregator has besides the sites: records to measure on, and the rule from a record to a row."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedveil.core.strict_json import read_object
from fedveil.data.records import Records
from fedveil.data.row_rule import RowRule
from fedveil.engine.files import write_atomically
from fedveil.federation.aggregator.described import Described
from fedveil.stages.prepare.bundled import preparation_of
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.prepare.loading import Unprepared

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
