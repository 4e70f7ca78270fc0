"""What a site has accepted, how often it may run, and what its caps hold."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.federation.site.guard import Terms
from fedveil.ledger.books import ORDERS, epsilon_of, total_spent
from fedveil.ledger.budget import Cap
from fedveil.ledger.costs import Charged
from fedveil.ledger.transaction import costs_of
from fedveil.planning.plan import Plan, write_plan
from unit.federations import Trial, study
from unit.plans import some_records
from unit.test_site_guard import ask, asked_last

PRIVATE: dict[str, Any] = {"study": {"name": "trial"}}


def test_a_plan_that_was_named_runs_once(tmp_path: Path) -> None:
    """A hash is accepted once: run again under other names, it would cost its epsilon again and again."""
    trial = Trial(tmp_path, some_records(60, clients=9), terms=Terms())
    with pytest.raises(SiteRefused, match="has not accepted"):
        trial.run(study(**PRIVATE))
    named = Terms(accept=frozenset({trial.plans[0].hash}))
    trial.restart_guards(named)
    trial.run(study(**PRIVATE), resume=True)
    (tmp_path / "out").rename(tmp_path / "first")
    _, proposal = asked_last(trial, "propose")
    assert ask(trial, "e" * 32, "propose", 0, proposal)[1].values == {"code": "already-run"}
    plan, delta = trial.plans[0], 1e-3
    epsilon = between_two_and_three(plan, delta)
    capped = Terms(accept=named.accept, caps=(("final-model", epsilon, delta),), neighbours="zero-out")
    trial.restart_guards(capped)
    assert ask(trial, "e" * 32, "propose", 0, proposal, 2**51)[0] == "accepted"
    assert exact_delta(plan, 2, epsilon) <= delta  # so it was right to accept the second run
    assert ask(trial, "d" * 32, "propose", 0, proposal)[1].values == {"code": "over-cap"}


def between_two_and_three(plan: Plan, delta: float) -> float:
    """A cap's epsilon that holds two runs of this plan and not three, whichever rule of adding up the cap gets."""
    (cost,) = (cost for cost in costs_of([(plan, 1)], plan.target) if cost.adversary == "final-model")
    about: dict[str, Any] = {"adversary": cost.adversary, "unit": cost.unit, "neighbours": cost.neighbours}
    cap, run = Cap(epsilon=1.0, delta=delta, **about), Charged((cost,), ((write_plan(plan), 1),))

    def least(count: int) -> float:
        spent = {order: total_spent([run] * count, cap, order) for order in ORDERS}
        return min(count * cost.epsilon, *(epsilon_of(spent[order], cap, order) for order in ORDERS))

    return (least(2) + least(3)) / 2


def exact_delta(plan: Plan, runs: int, epsilon: float) -> float:
    """Of all models of these runs, every one seen: each run moves one Gaussian by its record's share of one batch."""
    run = plan.run
    assert run.passes == 1
    share = run.lipschitz / (float(np.min(run.noise_std)) * math.sqrt(float(np.min(run.batch))))
    moved = math.sqrt(runs) * share

    def above(x: float) -> float:
        return math.erfc(x / math.sqrt(2)) / 2

    return above(epsilon / moved - moved / 2) - math.exp(epsilon) * above(epsilon / moved + moved / 2)


def test_what_a_cap_counts_is_not_left_to_the_plan(tmp_path: Path) -> None:
    """The plan is for zero-out neighbours; who caps replace-one has not allowed it."""
    terms = Terms(accept=frozenset({"any"}), caps=(("final-model", 100.0, 0.1),))
    with pytest.raises(SiteRefused, match="cap"):
        Trial(tmp_path, some_records(60, clients=9), terms=terms).run(study(**PRIVATE))


def test_a_run_over_the_cap_may_be_proposed_again_under_a_higher_one(tmp_path: Path) -> None:
    low = Terms(accept=frozenset({"any"}), caps=(("final-model", 1e-6, 1e-5),), neighbours="zero-out")
    trial = Trial(tmp_path, some_records(60, clients=9), terms=low)
    with pytest.raises(SiteRefused, match="cap"):
        trial.run(study(**PRIVATE))
    trial.restart_guards(replace(low, caps=(("final-model", 100.0, 0.1),)))
    assert (trial.run(study(**PRIVATE), resume=True) / "model.npz").exists()
