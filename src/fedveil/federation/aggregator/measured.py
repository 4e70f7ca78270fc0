"""Carry out a stage of noisy sums at sites: the aggregator computes the result from the sums, without a record."""

from dataclasses import dataclass, field, replace
from typing import final

from fedveil.engine.job import Release
from fedveil.engine.measured import planned_measured
from fedveil.federation.aggregator.across import Across
from fedveil.federation.aggregator.conversation import Conversation
from fedveil.federation.aggregator.described import Described
from fedveil.federation.aggregator.federate import together
from fedveil.federation.aggregator.generate import check_sizes, columns_at_sites
from fedveil.federation.aggregator.job import Agreed, conduct
from fedveil.planning.study import Study
from fedveil.stages.measured.plan import MeasuredPlan, Settings
from fedveil.stages.measured.stage import stage_named
from fedveil.stages.protocol import Consortium
from fedveil.stages.synthesise.table import Table


@final
@dataclass(slots=True, kw_only=True)
class MeasuredJob:
    """Implements Job: a stage that one start of an aggregator carries out with its sites."""

    study: Study
    stage: str
    settings: Settings
    talk: Conversation
    what: str = "result"
    also_told: tuple[str, ...] = ()
    _rows: Table = field(init=False)

    def conduct(self) -> bytes:
        """Measure, and return what is released."""
        conduct(self, self.talk)
        return (self.talk.folder / stage_named(self.stage).file).read_bytes()

    def agree(self, members: Consortium, described: Described) -> Agreed:
        """Return the plan; every site learns the numbers of its clients."""
        self._rows = columns_at_sites(described)
        study = together(self.study, members)
        plan = planned_measured(study, self.stage, self.settings, self._rows.outline, members.shape)
        check_sizes(plan)
        plan = replace(plan, places=plan.places or members.places, blank_rows=plan.blank_rows or members.blank_rows)
        return Agreed(plan=plan, rows={site: {"numbers": one.clients} for site, one in members.members.items()})

    def carry_out(self, across: Across) -> Release:
        """Measure sum after sum, and compute the result from them."""
        plan, code = across.plan, stage_named(self.stage)
        if not isinstance(plan, MeasuredPlan):
            raise TypeError("a plan of noisy sums was expected")
        # A contribution may have any sign, so exchanging a unit moves a sum by up to twice its bound.
        by = across.measures(plan.stages[0].name, across.members.sizes, times=2)
        found = code.result(self.settings, plan.sums, self._rows, plan.units, by)
        return Release(output=found, files={code.file: found})
