"""One place for charge and release: what a plan costs, and what is covered, is the same for all who train."""

import ast
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.core.errors import BadValue
from fedveil.jobs.estimators import Budget, PrivateLogisticRegression
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap, CapExceeded
from fedveil.ledger.costs import charged, cost_of, covered
from fedveil.ledger.odometer import observers, runs_of
from fedveil.ledger.transaction import Transaction, costs_of
from fedveil.planning.plan import HeldOutRecords, Plan, read_plan, write_plan
from fedveil.planning.promises import ADVERSARIES, promise
from unit.books import data
from unit.plans import some_plan, some_records

SOURCE = Path(fedveil.__file__).parent


def plan(**changes: bool) -> Plan:
    return replace(some_plan(some_records(), seeded=False), **changes)


def fitted(seed: int | None, budget: Budget | None = None) -> PrivateLogisticRegression:
    generator = np.random.default_rng(5)
    rows = generator.normal(size=(80, 2))
    model = PrivateLogisticRegression(epsilon=2.0, delta=1e-3, random_state=seed, budget=budget)
    return model.fit(rows, (rows[:, 0] > 0).astype(int))


def test_a_seeded_fit_is_neither_private_nor_covered() -> None:
    certificate = fitted(0).certificate_
    assert not certificate.private
    assert [row["covered"] for row in certificate.released] == [False]
    assert fitted(0).epsilon_ == math.inf


def test_a_fit_with_noise_that_nobody_knows_is_covered() -> None:
    certificate = fitted(None).certificate_
    assert certificate.private
    assert [row["covered"] for row in certificate.released] == [True]


@pytest.mark.parametrize("change", [{"seeded": True}, {"held_out": HeldOutRecords(baselines=True)}])
def test_an_unprotected_plan_costs_everything_and_covers_nothing(change: dict[str, Any]) -> None:
    for adversary in ADVERSARIES:
        assert cost_of(plan(**change), adversary).epsilon == math.inf
        assert cost_of(plan(), adversary).epsilon == promise(plan(), adversary).epsilon
    assert not covered(plan(**change))
    assert covered(plan())


def test_the_entry_of_a_charge_holds_the_whole_plan(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "books", data) as ledger:
        entry = Transaction(ledger, "a").charge(plan())
        assert read_plan(entry.payload["mechanism"]) == plan()
        found = Transaction(ledger, "b").charge_together([(plan(), 2)], plan().target, extra={"why": "trial"})
        assert [(read_plan(row["plan"]), row["times"]) for row in found.payload["extra"]["plans"]] == [(plan(), 2)]
        assert costs_of([(plan(), 2)], plan().target)[0].epsilon == 2 * entry.payload["costs"][0]["epsilon"]


def test_a_plan_of_which_nothing_is_promised_costs_everything_whatever_was_written_down(tmp_path: Path) -> None:
    """As in books of a version that charged a seeded run as if its noise were secret."""
    seeded = plan(seeded=True)
    stated = [replace(cost, epsilon=0.5) for cost in costs_of([(seeded, 1)], seeded.target)]
    cap = Cap(adversary="final-model", unit="record", neighbours="replace-one", epsilon=1e3, delta=0.1)
    with Ledger.open(tmp_path / "books", data) as ledger:
        ledger.charge("old", seeded.hash, stated, rounds=seeded.method.total, mechanism=write_plan(seeded))
        assert ledger.spent("final-model").epsilon == math.inf
        assert all(cost.epsilon == math.inf for run in runs_of(ledger.entries()) for cost in run.costs)
        assert all(row.composed == math.inf for row in observers(charged(ledger.entries()), ()))
        with pytest.raises(CapExceeded):
            Transaction(ledger, "new").charge(plan(), caps=[cap])


def test_plans_of_a_charge_run_at_least_once(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "books", data) as ledger:
        for times in (0, -1):
            with pytest.raises(BadValue, match="at least once"):
                Transaction(ledger, "a").charge_together([(plan(), 2), (plan(), times)], plan().target, extra={})
        assert ledger.entries() == []


def test_release_and_export_go_through_the_same_transaction(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "books", data) as ledger:
        run = Transaction(ledger, "a")
        run.charge(plan())
        assert b'"kind":"release"' in run.release(b"the model").export()


def test_estimators_charge_the_same_costs(tmp_path: Path) -> None:
    budget = Budget(str(tmp_path / "books"), epsilon=5.0, delta=1e-2)
    fit = fitted(None, budget).fit_
    assert budget.spent().epsilon == cost_of(fit.plan, "final-model").epsilon


def test_nobody_else_decides_what_unprotected_means() -> None:
    """``plan.unprotected`` is asked in one place: those who would ask it ask what a plan costs, or what is covered."""
    asking = [
        path.relative_to(SOURCE).as_posix()
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "unprotected"
    ]
    assert asking == ["ledger/costs.py"]
