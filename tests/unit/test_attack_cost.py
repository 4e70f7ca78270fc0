"""What a game would cost is known before it is played: large plans get fewer runs or none, and a sentence."""

from dataclasses import replace

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.jobs.attack.audit import Effort, most_runs, playable
from fedveil.jobs.attack.releases import rows_each, wide_problem
from unit.audit_plans import dpsgd_game_plan, game_plan, shape


def test_a_small_plan_is_played_as_wished() -> None:
    assert playable(game_plan(), Effort(runs=4000)) == (4000, "")


def test_a_plan_that_does_not_fit_is_left_out_with_a_sentence() -> None:
    plan = game_plan(2_000_000, rounds=2, batch=1_000_000, noise_std=1.0, features=1000)
    assert most_runs(plan) == 0
    runs, why = playable(plan, Effort(runs=4000))
    assert runs == 0
    assert why.startswith("the plan is too large")


def test_a_large_plan_gets_fewer_runs() -> None:
    plan = game_plan(20_000, rounds=2, batch=10_000, noise_std=0.1, features=50)
    runs, why = playable(plan, Effort(runs=100_000))
    assert 0 < runs < 100_000
    assert f"{runs:,} runs instead of 100,000" in why


def test_too_few_runs_are_still_refused() -> None:
    with pytest.raises(BadValue, match="be at least"):
        playable(game_plan(noise_std=0.02), Effort(runs=40))


def test_silent_records_take_no_room() -> None:
    """A client of a million records: coins are tossed for each alone, so victims need no company."""
    plan = replace(dpsgd_game_plan(), data=shape(1_000_000, 1))
    assert rows_each(plan) == 1
    _, records = wide_problem(plan, present=True)
    assert np.count_nonzero(records.features) == len(records) == 200
    assert most_runs(plan) > 100_000
