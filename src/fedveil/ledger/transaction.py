"""The transaction of every training run: charge what a plan costs, then record what it releases.

A run in this process, an aggregator, a site, a comparison and an estimator all use it, so there is one answer to what
a plan costs each observer. An unprotected plan promises nothing: every observer is charged with an infinite epsilon,
and what is released counts as not covered (``costs.py``).
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
from fedveil.privacy.guarantee import ADVERSARIES, Adversary
from fedveil.privacy.target import Target

PERSONS = "persons"  # under an entry's ``extra``: the column that names the persons who are protected
Planned = tuple[AnyPlan, int]  # a plan, and how often it runs


def costs_of(planned: Sequence[Planned], target: Target) -> tuple[Cost, ...]:
    """Return what these runs together cost against each observer, for the target's unit and neighbours."""
    runs = [(plan, times) for plan, times in planned if times > 0]

    def row(adversary: Adversary) -> Cost:
        each = [[cost_of(plan, adversary)] for plan, times in runs for _ in range(times)]
        return each[0][0] if len(each) == 1 else total(each, adversary, target.unit, target.neighbours)

    return tuple(row(adversary) for adversary in ADVERSARIES)


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

    def charge(
        self,
        plan: AnyPlan,
        *,
        caps: Sequence[Cap] = (),
        extra: Mapping[str, Any] | None = None,
        persons: str | None = None,
    ) -> Entry:
        """Charge one run of this plan to the budget; the entry holds the plan, from which its cost follows.

        ``persons``: the column that says whose a record is, which the entry keeps where persons are protected.
        """
        if plan.target.unit == "person" and persons is not None:
            self._check_persons(persons)
            extra = {**(extra or {}), PERSONS: persons}
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

    def _check_persons(self, column: str) -> None:
        """Refuse other persons than those of earlier runs: a patient's guarantee and a household's do not add up."""
        charges = [entry for entry in self.ledger.entries() if entry.kind == "charge"]
        known = {entry.payload.get("extra", {}).get(PERSONS, column) for entry in charges} - {column}
        hint = "Guarantees for different persons do not add up; name the same column."
        rule = f"be {sorted(known)[0]!r}, as in the earlier runs on this data set" if known else ""
        require(not known, "data.person_column", rule, column, hint)

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

    def release(self, output: bytes, *, also: Sequence[str] = (), expires: Mapping[str, int] | None = None) -> Self:
        """Record what is about to be released, by its SHA-256; only after this may it leave."""
        for ledger in (*self.beside, self.ledger):
            own = expires if ledger is self.ledger else None  # held-out records have dates of their own
            ledger.release(self.run, sha256(output).hexdigest(), also=also, expires=own, at=self.at)
        return self

    def export(self) -> bytes:
        """Return the publishable record of this run."""
        return self.ledger.export(self.run)
