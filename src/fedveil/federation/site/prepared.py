"""A site's records after a private preparation: the sums are told once, kept, and decide the rows of all rounds.

A second rule for the same run is refused: with the noise of a round known to be the same, rows of another rule would be
another question.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np

from fedveil.algorithms.across_sites import SiteWork
from fedveil.data.records import Records
from fedveil.federation.site.measuring import Measuring
from fedveil.prepare.learned import LearnedRule
from fedveil.prepare.notes import notes_for_holder
from fedveil.run.files import write_atomically
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

SUMS: Final = "preparation.sums"  # in the private folder during the run: what all sums of the preparation were


def told(measuring: Measuring, path: Path, asked: Content) -> LearnedRule | None:
    """Keep the sums of the whole preparation and return what they say; None if they were told before."""
    sums = measuring.sums(asked, measuring.rounds)
    found = measuring.learned(sums)
    body = Content(rows={"sums": np.concatenate(sums)}).write()
    if path.exists():
        if path.read_bytes() != body:
            raise Refused("other-preparation")
        return None
    write_atomically(path, body)
    return found


def learned_at(measuring: Measuring, path: Path) -> LearnedRule:
    """Return what this run learned; refuse to train before it is known."""
    if not path.exists():
        raise Refused("not-prepared")
    return measuring.learned(measuring.sums(Content.read(path.read_bytes()), measuring.rounds))


def notes_at(measuring: Measuring, learned: LearnedRule) -> list[str]:
    """Return what the site's operator should know of its own records, and nobody else."""
    records = measuring.data.records
    present = np.flatnonzero(~records.blank)
    columns = measuring.cells.columns.rows(present)
    return notes_for_holder(columns, records.targets[present], records, learned)


@final
@dataclass(slots=True)
class PreparedWork:
    """Implements SiteWork: the measurements first, and then the algorithm on the rows that they give."""

    measuring: Measuring
    path: Path
    then: Callable[[Records], SiteWork]
    _work: SiteWork | None = None

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what the clients of this round send; rounds of training come after those of the preparation."""
        if turn < self.measuring.rounds:
            return self.measuring.parts(turn, asked)
        if self._work is None:
            self._work = self.then(self.measuring.data.prepared(learned_at(self.measuring, self.path)))
        return self._work.parts(turn - self.measuring.rounds, asked)
