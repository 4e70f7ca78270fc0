"""The one list of algorithms. A new one is a folder here and a name in ``KINDS``.

Parts of an algorithm are imported when they are needed: reading or certifying a plan loads no training code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Final

from fedveil.core.errors import CannotCertify, FedveilError, require
from fedveil.core.fields import Exclusion
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.base import Method, Setup
from fedveil.stages.train.request import AlgorithmRequest, Draft, RiskKnownBefore, Task
from fedveil.stages.train.share_words import Row

KINDS: Final = ["hidden", "dpsgd", "fedavg", "simfl"]
DEFAULT: Final = "hidden"  # of a study that names no algorithm


def read_method(kind: str, table: Mapping[str, Any]) -> Method:
    """Return the method that a plan's [method] table states."""
    result: Method = _part(kind, "method").METHOD.read(table)
    return result


def title_of(kind: str) -> str:
    """Return what the algorithm is called in the middle of a sentence; its name where it states none."""
    return str(getattr(_part(kind, "method"), "TITLE", kind))


def pulls_when_empty(kind: str) -> bool:
    """Return whether a client without records still sends something that depends on the model (see ``Served``)."""
    return bool(_part(kind, "method").METHOD.pulls_when_empty)


def request_type(kind: str) -> Any:
    """Return the type of the study's [algorithm] table."""
    return _part(kind, "design").REQUEST


def weighed_for(unit: str) -> list[str]:
    """Return the algorithms among which ``kind = "auto"`` chooses where this unit is protected."""
    return [kind for kind in KINDS if unit in getattr(_part(kind, "design"), "WEIGHED_FOR", ())]


def why_not(kind: str, setting: str) -> str:
    """Return why an algorithm does not have a setting of another one; empty where nothing more can be said."""
    result: str = getattr(_part(kind, "design"), "REFUSED", {}).get(setting, "")
    return result


def exclusions_of(kind: str) -> tuple[Exclusion, ...]:
    """Return what an algorithm excludes among its own settings, and beside them in a study, with the reasons."""
    part = _part(kind, "design")
    result: tuple[Exclusion, ...] = getattr(part, "EXCLUSIONS", ()) + part.BESIDE
    return result


def assumptions_of(method: Method, adversary: Adversary, setup: Setup) -> Sequence[Row]:
    """Return what a method's guarantee assumes besides feature bound, randomness and grid, in words."""
    result: Sequence[Row] = _part(method.kind, "words").assumption_rows(method, adversary, setup)
    return result


def facts_of(method: Method, setup: Setup) -> Sequence[tuple[str, str]]:
    """Return what a reader of the report should know of a method, as (name, value)."""
    result: Sequence[tuple[str, str]] = _part(method.kind, "words").fact_rows(method, setup)
    return result


def _part(kind: str, name: str) -> Any:
    return import_module(f"fedveil.stages.train.{kind}.{name}")


# Which algorithms let a module add its own answer to a noised direction, as an adversarial pair does.
#
# All that such an algorithm's update is computed from is noised before; the others promise more by hiding models, or
# let clients train with plain gradients, and an answer has no place there.


ANSWERING: Final = ("dpsgd",)


# One noised sum over all records, as tables of a study: all that a model needs whose loss is linear.


ONE_ROUND: Final[Mapping[str, Any]] = {
    "algorithm": {"kind": "dpsgd", "optimizer": "sgd", "rate": 1.0, "rounds": 1},
    "schedule": {"step_size": 1.0},
}


# kind = "auto": every algorithm that can meet the target is designed, and the yardstick chooses among them.
#
# For records these are hidden and dpsgd, for clients hidden and fedavg. All are measured by the same expected risk
# (docs/theory/schedules.md), with the noise that each needs against the observer of the target.

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
    result: AlgorithmRequest = request_type(kind)()
    return result


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
