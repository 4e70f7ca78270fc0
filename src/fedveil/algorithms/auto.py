"""kind = "auto": every algorithm that can meet the target is designed, and the yardstick chooses among them.

For records these are hidden and dpsgd, for clients hidden and fedavg. All are measured by the same expected risk
(docs/theory/schedules.md), with the noise that each needs against the observer of the target.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from fedveil.algorithms.base import Method
from fedveil.algorithms.registry import request_type, weighed_for
from fedveil.algorithms.request import AlgorithmRequest, Draft, Task
from fedveil.checks import require
from fedveil.errors import CannotCertify, FedveilError

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
        drafts: dict[str, Draft] = {}
        refused: dict[str, str] = {}
        for kind in weighed_for(task.target.unit):
            try:
                draft = _request(kind).design(task)
            except (FedveilError, ValueError) as error:
                refused[kind] = " ".join(str(error).split()).rstrip(".")
            else:
                drafts[kind] = draft
        if not drafts:
            raise CannotCertify("; ".join(f"{kind}: {why}" for kind, why in refused.items()))
        chosen = _chosen(drafts)
        told = [_told(kind, draft) for kind, draft in drafts.items()]
        told += [f"{kind} was refused ({why})" for kind, why in refused.items()]
        why = "least work among the least expected risks" if len(drafts) > 1 else "the only one that can be planned"
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


def _chosen(drafts: dict[str, Draft]) -> str:
    risks = {kind: draft.risk for kind, draft in drafts.items() if draft.risk is not None}
    if not risks:
        return next(iter(drafts))
    least = min(risks.values())
    close = [kind for kind, risk in risks.items() if risk <= _CLOSE * least]
    return min(close, key=lambda kind: drafts[kind].passes or 0.0)


def _told(kind: str, draft: Draft) -> str:
    risk = "unknown" if draft.risk is None else f"{draft.risk:.3g}"
    return f"{kind} {risk}" + ("" if draft.passes is None else f" with {draft.passes:.3g} passes")
