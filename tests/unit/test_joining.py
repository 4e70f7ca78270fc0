"""How many records may join a round: what is charged, what is added to delta, and what happens when nobody can say."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from fedveil import account_for
from fedveil.accounting.sampled import joining, other_records
from fedveil.privacy.mechanism import Compose, Gaussian, LastIterate
from fedveil.theory.binomial_tail import binomial_tail, largest_usual

DELTA = 1e-5


def run(**changes: Any) -> LastIterate:
    values: dict[str, Any] = {
        "rounds": 1000,
        "order": "poisson",
        "rate": 0.01,
        "batch": 20,
        "step_size": 0.4,
        "lipschitz": 1.0,
        "smoothness": 1.0,
        "noise_std": 0.2,
        "neighbours": "zero-out",
    }
    return LastIterate(**{**values, **changes})


def scattered(**changes: Any) -> LastIterate:
    return run(**{"order": "independent", "rate": None, "rounds": 50, **changes})


@pytest.mark.parametrize("trials", [1, 7, 100, 60_000, 10**9])
@pytest.mark.parametrize("rate", [1e-9, 1e-3, 0.3, 0.999])
def test_the_tail_is_never_below_the_exact_one_and_not_far_above(trials: int, rate: float) -> None:
    mean, spread = trials * rate, (trials * rate * (1 - rate)) ** 0.5
    for away in (0.0, 1.0, 3.0, 6.0, 20.0):
        least = round(mean + away * spread + away)
        exact, found = float(binom.sf(least - 1, trials, rate)), binomial_tail(trials, rate, least)
        assert exact * (1 - 1e-7) <= found <= 1
        if least > trials:
            assert found == 0
        elif away >= 3 and exact > 1e-250:
            assert found <= 1.6 * exact


def test_the_smallest_usual_number_is_smallest() -> None:
    for trials, rate, chance in ((99, 0.01, 1e-11), (10_000, 0.01, 1e-9), (5, 0.9, 0.5), (0, 0.5, 0.1)):
        most = largest_usual(trials, rate, chance)
        assert binomial_tail(trials, rate, most + 1) <= chance
        assert most == 0 or binomial_tail(trials, rate, most) > chance or most == int(trials * rate)


def test_without_a_stated_number_it_follows_from_rate_and_records() -> None:
    """A record's smoothness was once taken for that of a whole round, and the steps for contractions."""
    rough = run(step_size=1.9)
    found = joining(rough, DELTA)
    assert 40 < found.most < 70
    assert 0 < found.chance <= 1e-3 * DELTA
    assert found.lipschitz.max() == pytest.approx(1.9 * found.most / 20 - 1)
    assert joining(rough, 1e-9).most > found.most
    answer = account_for(rough, delta=DELTA)
    assert answer.epsilon >= answer["unhidden"].epsilon * 0.99  # nothing is hidden by steps that expand so much
    assert f"up to {found.most:.12g} records" in answer["sampled-shift"].reason
    stated = run(step_size=1.9, records=2000, largest_batch=int(found.most))
    assert np.array_equal(joining(stated, DELTA).lipschitz, found.lipschitz)


def test_steps_with_room_for_more_cost_nothing() -> None:
    calm = joining(run(), DELTA)
    assert (calm.lipschitz.max(), calm.most) == (1.0, 99)  # 0.4 * 99/20 < 2: one more would not hurt, two would
    assert 0 < calm.chance < 1e-30
    linear = joining(run(smoothness=0.0), DELTA)
    assert (linear.lipschitz.max(), linear.chance) == (1.0, 0.0)
    ridge = joining(run(smoothness=0.1, strong_convexity=0.1), DELTA)
    assert (ridge.lipschitz.max(), ridge.chance) == (pytest.approx(0.96), 0.0)
    bent = joining(run(convex=False), DELTA)
    assert bent.lipschitz.max() == pytest.approx(1 + 0.4 * bent.most / 20)
    assert bent.chance <= 1e-3 * DELTA


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({}, 1999),
        ({"records": 5000}, 4999),
        ({"rate": 0.3, "batch": 1}, 3),
        ({"batch": (20, 20), "rounds": 2}, 1999),
        ({"batch": (20, 30), "rounds": 2}, None),
        ({"order": "independent", "rate": None, "rounds": 50}, 999),
        ({"order": "independent", "rate": None, "rounds": 2, "batch": (20, 30)}, 49),
        ({"order": "independent", "rate": None, "rounds": 50, "records": 1234}, 1233),
    ],
)
def test_how_many_records_there_are(changes: dict[str, Any], others: int | None) -> None:
    assert other_records(run(**changes)) == others


def test_where_the_number_of_records_cannot_be_known_the_bound_steps_aside() -> None:
    unknown = run(rounds=2, batch=(20, 30))
    found = account_for(unknown, delta=DELTA)
    assert found["sampled-shift"].status == "does-not-apply"
    assert "state records" in found["sampled-shift"].reason
    assert found.certified_by == "unhidden"
    assert account_for(run(rounds=2, batch=(20, 30), records=2500), delta=DELTA)["sampled-shift"].status == "certified"


def test_stated_numbers_are_charged_or_paid_for() -> None:
    calm = run(records=2000, largest_batch=80)
    assert joining(calm, DELTA).lipschitz.max() == 1.0
    assert 0 < joining(calm, DELTA).chance < 1e-12
    assert account_for(calm, delta=DELTA).certified_by == "sampled-shift"
    tight = run(records=2000, largest_batch=25)
    assert account_for(tight, delta=DELTA)["sampled-shift"].status == "does-not-apply"
    wild = run(records=2000, largest_batch=80, step_size=1.9)
    assert joining(wild, DELTA).lipschitz.max() == pytest.approx(1.9 * 4 - 1)


@pytest.mark.parametrize("make", [run, scattered])
def test_a_thousandth_of_delta_is_paid_where_there_is_no_room(make: Any) -> None:
    """Steps that expand a little when crowded: epsilon exceeds that of steps that never do, at every delta."""
    loose = make(rounds=40, step_size=0.9, smoothness=1.0)
    firm = make(rounds=40, step_size=0.9, smoothness=0.001)
    for delta in (1e-3, 1e-5, 1e-9):
        chance = joining(loose, delta).chance
        assert 0 < chance <= 1e-3 * delta
        assert account_for(firm, delta=delta).epsilon <= account_for(loose, delta=delta).epsilon


def test_crowded_rounds_enter_compositions() -> None:
    other = Gaussian(noise_multiplier=20.0)
    alone = account_for(run(rounds=40, step_size=0.9), delta=DELTA).epsilon
    both = account_for(Compose(parts=(run(rounds=40, step_size=0.9), other)), delta=DELTA).epsilon
    assert alone < both < 1.3 * alone
    harmless = account_for(Compose(parts=(run(rounds=40, step_size=0.9, smoothness=0.001), other)), delta=DELTA).epsilon
    assert harmless <= both
