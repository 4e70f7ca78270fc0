"""kind = "auto": every algorithm that can meet the target is designed, and the yardstick chooses among them.

For records these are hidden and dpsgd, for clients hidden and fedavg. All are measured by the same expected risk
(docs/theory/schedules.md), with the noise that each needs against the observer of the target.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from fedveil.core.errors import CannotCertify, FedveilError, require
from fedveil.stages.train.base import Method
from fedveil.stages.train.registry import request_type, weighed_for
from fedveil.stages.train.request import AlgorithmRequest, Draft, RiskKnownBefore, Task

_CLOSE = 1.03  # risks this close are alike: then the one of less gradient work


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRequest:
    """Leaves the algorithm to the design, with all that belongs to an algorithm alone."""

    kind: ClassVar[str] = "auto"

    def design(self, task: Task) -> Draft:
        """The draft of least expected risk; of those that are alike, the one of least work."""
        known = task.model.constants(task.data.bound).smoothness is not None
        hint = "The yardstick knows nothing about it: name an algorithm."
        require(known, "algorithm.kind", f"be named for a {task.model.kind} model", self.kind, hint)
        kinds = weighed_for(task.target.unit)
        drafts: dict[str, Draft] = {}
        refused: dict[str, str] = {}
        outdone: dict[str, float] = {}
        for kind in sorted(kinds, key=lambda kind: isinstance(_request(kind), RiskKnownBefore)):  # the quick ones first
            try:
                floor = _least_risk(kind, task) if drafts else None
                if floor is not None and _surely_worse(floor, drafts):
                    outdone[kind] = floor
                else:
                    drafts[kind] = _request(kind).design(task)
            except (FedveilError, ValueError) as error:
                refused[kind] = " ".join(str(error).split()).rstrip(".")
        if not drafts:
            raise CannotCertify("; ".join(f"{kind}: {refused[kind]}" for kind in kinds))
        drafts = {kind: drafts[kind] for kind in kinds if kind in drafts}
        chosen = _chosen(drafts)
        words = {kind: _told(kind, draft) for kind, draft in drafts.items()}
        words |= {kind: f"{kind} at least {floor:.3g}, even without noise" for kind, floor in outdone.items()}
        told = [words[kind] for kind in kinds if kind in words]
        told += [f"{kind} was refused ({refused[kind]})" for kind in kinds if kind in refused]
        why = _why(chosen, drafts, others=bool(outdone))
        said = f"algorithm {chosen}, {why}: {'; '.join(told)}. {drafts[chosen].reason}"
        return replace(drafts[chosen], reason=said)

    def grid(self, method: Method, task: Task) -> int:
        """As the chosen algorithm has it."""
        return _request(method.kind).grid(method, task)

    def recalibrated(self, method: Method, task: Task, *, epsilon: float, delta: float) -> Method:
        """As the chosen algorithm does it."""
        return _request(method.kind).recalibrated(method, task, epsilon=epsilon, delta=delta)


@cache
def _request(kind: str) -> AlgorithmRequest:
    found: AlgorithmRequest = request_type(kind)()
    return found


def _least_risk(kind: str, task: Task) -> float | None:
    request = _request(kind)
    return request.least_risk(task) if isinstance(request, RiskKnownBefore) else None


def _surely_worse(floor: float, drafts: dict[str, Draft]) -> bool:
    """Return whether a draft of at least this risk would not be chosen, whatever noise it needs."""
    risks = [draft.risk for draft in drafts.values() if draft.risk is not None]
    return bool(risks) and floor > _CLOSE * min(risks)


def _chosen(drafts: dict[str, Draft]) -> str:
    risks = {kind: draft.risk for kind, draft in drafts.items() if draft.risk is not None}
    if not risks:
        return next(iter(drafts))
    least = min(risks.values())
    close = [kind for kind, risk in risks.items() if risk <= _CLOSE * least]
    return min(close, key=lambda kind: drafts[kind].passes or 0.0)


def _why(chosen: str, drafts: dict[str, Draft], *, others: bool) -> str:
    """Return why this one was chosen, in words; ``others``: some are surely worse and were not designed."""
    risks = {kind: draft.risk for kind, draft in drafts.items() if draft.risk is not None}
    if len(drafts) == 1 and not others:
        return "the only one that can be planned here"
    if chosen not in risks:
        return "whose risk nothing is known about, like that of the others"
    if risks[chosen] == min(risks.values()):
        return "because its expected risk is the least"
    return "because its expected risk is within 3% of the least, at less work"


def _told(kind: str, draft: Draft) -> str:
    risk = "unknown" if draft.risk is None else f"{draft.risk:.3g}"
    return f"{kind} {risk}" + ("" if draft.passes is None else f" with {draft.passes:.3g} passes")
