"""What was spent on a data set, by which runs, and what is left under its caps, for every observer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedveil.core.errors import FedveilError
from fedveil.ledger.books import budget_of, epsilon_of, question_of, spent_by, total_spent
from fedveil.ledger.budget import Cap, Cost, total
from fedveil.ledger.costs import Charged, Question, Rule, composed
from fedveil.ledger.entry import Entry
from fedveil.planning.plan import read_any_plan
from fedveil.privacy.guarantee import ADVERSARIES


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One charge: the run, its time, the study's name if known, how the run ended, its cost, and what expires.

    ``expires``: how many of the records behind what was released expire in each month, by their public dates.
    """

    run: str
    at: str | None
    study: str | None
    plan: str
    ended: str
    costs: tuple[Cost, ...]
    expires: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a cap has left: the remaining share, and how many more runs like the last would fit.

    ``spent``: the epsilon of all runs at the cap's delta, by the cap's own rule.
    """

    cap: Cap
    spent: float
    share: float
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverRow:
    """All runs together against one observer, for one unit and relation.

    ``added``: epsilons and deltas added up, valid however runs were chosen; ``composed``: the epsilon at ``delta`` by
    ``rule``, valid if the runs were fixed in advance.
    """

    question: Question
    added: Cost
    composed: float
    rule: Rule
    delta: float
    left: Left | None


def runs_of(entries: Sequence[Entry]) -> list[RunRow]:
    """Return all charges in the order in which they were made."""
    ends = {entry.run: entry.kind for entry in entries if entry.kind in ("release", "failed")}
    expires = {entry.run: entry.payload.get("expires", {}) for entry in entries if entry.kind == "release"}
    words = {"release": "released", "failed": "failed"}
    return [
        RunRow(
            run=entry.run,
            at=entry.at,
            study=_study(Charged.read(entry.payload)),
            plan=str(entry.payload["plan"]),
            ended=words.get(ends.get(entry.run, ""), "open"),
            costs=Charged.read(entry.payload).costs,
            expires=expires.get(entry.run, {}),
        )
        for entry in entries
        if entry.kind == "charge"
    ]


def observers(runs: Sequence[Charged], caps: Sequence[Cap], delta: float | None = None) -> list[ObserverRow]:
    """Return one row for each observer, and for each unit and relation of a charge or of its cap.

    ``delta``: where the composition is evaluated; by default the cap's delta, or the sum of the runs' deltas.
    """
    known = {cap.adversary: cap for cap in caps}
    asked = {(cost.unit, cost.neighbours) for run in runs for cost in run.costs}
    rows = []
    for adversary in ADVERSARIES:
        cap = known.get(adversary)
        own = {(cap.unit, cap.neighbours)} if cap is not None else set()
        for unit, neighbours in sorted(asked | own):
            question: Question = (adversary, unit, neighbours)
            added = total([run.costs for run in runs], *question)
            here = cap if cap is not None and question_of(cap) == question else None
            at = delta if delta is not None else added.delta if here is None else here.delta
            epsilon, rule = composed(runs, question, at)
            rows.append(
                ObserverRow(
                    question=question,
                    added=added,
                    composed=epsilon,
                    rule=rule,
                    delta=at,
                    left=None if here is None else left_under(here, runs),
                )
            )
    return rows


def left_under(cap: Cap, runs: Sequence[Charged]) -> Left:
    """Return what is left under a cap, by its own rule."""
    question = question_of(cap)
    if cap.order is None:
        added = total([run.costs for run in runs], *question)
        last = runs[-1].stated(question) if runs else None
        shares = [_share(added.epsilon, cap.epsilon), _share(added.delta, cap.delta)]
        more = 0 if last is None else _times(cap.epsilon - added.epsilon, last.epsilon)
        more = more if last is None else min(more, _times(cap.delta - added.delta, last.delta))
        return Left(cap=cap, spent=added.epsilon, share=max(0.0, 1 - max(shares)), more=more)
    spent, budget = total_spent(runs, cap, cap.order), budget_of(cap, cap.order)
    shares = [_share(spent.divergence, budget.divergence), _share(spent.outside, budget.outside)]
    more = 0
    if runs:
        one = spent_by(runs[-1], cap, cap.order)
        rest = budget.divergence - spent.divergence, budget.outside - spent.outside
        more = min(_times(rest[0], one.divergence), _times(rest[1], one.outside))
    epsilon = epsilon_of(spent, cap, cap.order) if runs else 0.0
    return Left(cap=cap, spent=epsilon, share=max(0.0, 1 - max(shares)), more=more)


def _share(spent: float, whole: float) -> float:
    if spent == 0:
        return 0.0
    return spent / whole if whole > 0 and spent < math.inf else math.inf


def _times(rest: float, once: float) -> int:
    """Return how often ``once`` fits into ``rest``, rounded down with a safety margin."""
    if not (0 <= rest < math.inf and 0 <= once < math.inf):
        return 0
    return 10**9 if once == 0 else min(10**9, math.floor(rest / once * (1 - 1e-9) + 2e-9))


def _study(run: Charged) -> str | None:
    """Return the study's name from the plan, if there is one."""
    try:
        names = {read_any_plan(text).name for text, _ in run.plans}
    except (ValueError, FedveilError):
        return None
    return ", ".join(sorted(names)) or None
