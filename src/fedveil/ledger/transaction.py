"""The transaction of every training run: charge what a plan costs, then record what it releases.

A run in this process, an aggregator, a site, a comparison and an estimator all use it, so there is one answer to what a
plan costs each observer. An unprotected plan promises nothing: every observer is charged with an infinite epsilon, and
what is released counts as not covered (``costs.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Self

from fedveil.core.errors import require
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap, Cost, total
from fedveil.ledger.costs import cost_of
from fedveil.ledger.entry import Entry
from fedveil.planning.plan import AnyPlan
from fedveil.planning.promises import ADVERSARIES
from fedveil.planning.study import Books
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.target import Target

Planned = tuple[AnyPlan, int]  # a plan, and how often it runs


def costs_of(planned: Sequence[Planned], target: Target) -> tuple[Cost, ...]:
    """Return what these runs together cost against each observer, for the target's unit and neighbours."""
    runs = [(plan, times) for plan, times in planned if times > 0]

    def row(adversary: Adversary) -> Cost:
        each = [[cost_of(plan, adversary)] for plan, times in runs for _ in range(times)]
        return each[0][0] if len(each) == 1 else total(each, adversary, target.unit, target.neighbours)

    return tuple(row(adversary) for adversary in ADVERSARIES)


def caps_of(books: Books, target: Target) -> list[Cap]:
    """Return the caps that a study states, for the unit and the neighbours of its target."""
    return [
        Cap(adversary=who, unit=target.unit, neighbours=target.neighbours, epsilon=epsilon, delta=delta)
        for who, epsilon, delta in books.caps
    ]


def moment(plan: AnyPlan, now: datetime) -> str | None:
    """Return the time in the form of the entries; None for a run that must repeat byte for byte."""
    return None if plan.seeded else now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True, eq=False)
class Transaction:
    """One run in open books: it is charged, and then it releases at most one thing.

    ``beside``: the ledgers of other data that it releases something about, which are charged alike: all or none.
    """

    ledger: Ledger
    run: str
    at: str | None = None
    beside: tuple[Ledger, ...] = ()

    def charge(self, plan: AnyPlan, *, caps: Sequence[Cap] = (), extra: Mapping[str, Any] | None = None) -> Entry:
        """Charge one run of this plan to the budget; the entry holds the plan, from which its cost follows."""
        return self.ledger.charge(
            self.run,
            plan.hash,
            costs_of([(plan, 1)], plan.target),
            rounds=plan.charged_rounds,
            mechanism=plan.text(),
            extra=extra,
            caps=caps,
            at=self.at,
            beside=self.beside,
        )

    def charge_together(
        self, planned: Sequence[Planned], target: Target, *, caps: Sequence[Cap] = (), extra: Mapping[str, Any]
    ) -> Entry:
        """Charge several runs to the budget, all or none; their plans are kept under ``extra.plans``."""
        require(len(planned) >= 1, "A charge", "be for at least one plan", len(planned))
        least = min(times for _, times in planned)
        require(least >= 1, "A charge", "be for plans that run at least once each", least)
        plans = [{"plan": plan.text(), "times": times} for plan, times in planned]
        return self.ledger.charge(
            self.run,
            sha256(" ".join(plan.hash for plan, _ in planned).encode()).hexdigest(),
            costs_of(planned, target),
            rounds=sum(times * plan.charged_rounds for plan, times in planned),
            extra={**extra, "plans": plans},
            caps=caps,
            at=self.at,
            beside=self.beside,
        )

    def release(self, output: bytes, *, also: Sequence[str] = ()) -> Self:
        """Record what is about to be released, by its SHA-256; only after this may it leave."""
        for ledger in (*self.beside, self.ledger):
            ledger.release(self.run, sha256(output).hexdigest(), also=also, at=self.at)
        return self

    def export(self) -> bytes:
        """Return the publishable record of this run."""
        return self.ledger.export(self.run)
