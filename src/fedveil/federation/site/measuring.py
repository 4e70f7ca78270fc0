"""A site's part of a private preparation: what its clients add to each sum, and the rule that all sums together give.

Every question brings the noisy sums so far. The site works out by itself what is measured next, from the plan that it
has agreed to, so the sums decide on which scale a record is measured, and never how much it may add.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from fedveil.errors import FedveilError
from fedveil.federation.agreements.turns import length_of, measured, measurement_of
from fedveil.federation.site.data import Cells, SiteData
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from fedveil.prepare.columns import Outline
from fedveil.prepare.learned import LearnedRule
from fedveil.prepare.replay import Asked, replayed
from fedveil.prepare.sizes import check_sizes
from fedveil.run.preparing import units_of
from fedveil.stages.adding import ClientShares
from fedveil.stages.sums import STEPS, NoisySums
from fedveil.stages.units import by_client
from fedveil.sums.seam import Whole
from fedveil.values import Vector
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

_LARGEST = 2.0**63 / STEPS  # no sum of 64-bit grid steps is larger


def outline_at(plan: Plan, data: SiteData, proposal: Content) -> Outline | None:
    """Return the outline of the rows that are to be learned, None for a site whose rows are made already.

    Refuse a plan with measurements for such a site, one without for the other kind, and one that does not fit.
    """
    planned, cells = plan.preparation, data.cells
    if planned is None and cells is None:
        return None
    if planned is None or cells is None:
        raise Refused("other-preparation")
    asked, whiten = proposal.values.get("components"), proposal.values.get("whiten", False)
    most = cells.outline.unprojected
    counted = asked is None or (type(asked) is int and 1 <= asked < most)
    if not counted or not isinstance(whiten, bool) or cells.outline.open_texts:
        raise Refused("other-preparation")
    try:
        outline = replace(cells.outline, components=asked, whiten=whiten, slots=0)
        check_sizes(planned, outline, data.records.classes)
    except FedveilError as error:
        raise Refused("other-preparation") from error
    return outline


def sums_in(plan: Plan, asked: Content, turns: range) -> list[Vector]:
    """Return the noisy sums of some rounds in a question; refuse anything but finite rows of their sizes."""
    row = asked.rows.get("sums")
    sizes = [length_of(plan, turn) for turn in turns]
    right = row is not None and row.dtype == np.float64 and row.shape == (sum(sizes),)
    if row is None or not right or not bool(np.all(np.abs(row) <= _LARGEST)):
        raise Refused("wrong-sums")
    return np.split(row.astype(np.float64), np.cumsum(sizes)[:-1]) if sizes else []


@final
@dataclass(frozen=True, slots=True, eq=False)
class Measuring:
    """The preparation of one run at one site; ``numbers``: its clients' numbers in the whole study."""

    plan: Plan
    planned: NoisySums
    data: SiteData
    cells: Cells
    outline: Outline
    numbers: tuple[int, ...]
    entropy: Entropy

    @classmethod
    def make(cls, plan: Plan, data: SiteData, proposal: Content, entropy: Entropy) -> "Measuring | None":
        """Set up the site's part; None for a plan without a preparation."""
        outline = outline_at(plan, data, proposal)
        if outline is None or plan.preparation is None or data.cells is None:
            return None
        numbers = tuple(proposal.rows["numbers"].tolist())
        return cls(plan, plan.preparation, data, data.cells, outline, numbers, entropy)

    def parts(self, turn: int, asked: Content) -> dict[int, Whole]:
        """Return what the clients add to the measurement of this round, by their numbers, noise included."""
        found = self._after(self.sums(asked, turn))
        one = measurement_of(self.plan, turn)
        if not isinstance(found, Asked) or found.planned != one:
            raise Refused("no-such-round")
        records = self.data.records
        present = np.flatnonzero(~records.blank).astype(np.int64)
        shares = ClientShares(self.plan.target, self.entropy, self.plan.trust, self.plan.data.clients)
        parts: dict[int, Whole] = {}
        for number, rows in zip(self.numbers, by_client(records.owner, records.clients, present), strict=True):
            sent = shares.sent(found.planned, found.contributions, rows, number)
            if sent is not None:
                parts[number] = sent
        return parts

    def learned(self, sums: list[Vector]) -> LearnedRule:
        """Return what all sums together say."""
        found = self._after(sums)
        if isinstance(found, Asked):
            raise Refused("malformed")
        return found

    def sums(self, asked: Content, turns: int) -> list[Vector]:
        """Return the noisy sums of the first rounds in a question; refuse anything but finite rows of their sizes."""
        return sums_in(self.plan, asked, range(turns))

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return measured(self.plan)

    def _after(self, sums: list[Vector]) -> Asked | LearnedRule:
        records = self.data.records
        try:
            return replayed(
                self.planned,
                self.outline,
                self.cells.columns,
                records.targets,
                records.classes,
                units_of(self.plan),
                sums,
            )
        except (FedveilError, ValueError, ArithmeticError) as error:
            raise Refused("wrong-sums") from error
