"""What secret sampling gives without hiding, at the noise of a hidden run: against the accountants of released runs."""

import math
from dataclasses import replace
from typing import Any

import pytest

from fedveil import account_for
from fedveil.accounting.sampling_alone import SeenByAll, bought, seen_by_all
from fedveil.privacy.mechanism import IndependentGaussian, LastIterate, Repeat, SampledGaussian

DELTA = 1e-5


def run(**changes: Any) -> LastIterate:
    values = {
        "rounds": 50,
        "batch": 20,
        "order": "secret",
        "step_size": 0.5,
        "lipschitz": 1.0,
        "smoothness": 1.0,
        "diameter": 2.0,
        "noise_std": 0.6,
    }
    return LastIterate(**{**values, **changes})


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
@pytest.mark.parametrize("passes", [1, 3])
def test_it_is_what_released_runs_are_charged(neighbours: Any, passes: int) -> None:
    one = run(neighbours=neighbours, passes=passes)
    noise = 0.6 * math.sqrt(20)
    found = seen_by_all(one, DELTA)
    coin = SampledGaussian(sampling="poisson", rate=0.02, noise_multiplier=noise, neighbours=neighbours)
    assert found.poisson == pytest.approx(
        account_for(Repeat(of=coin, times=50 * passes), delta=DELTA).epsilon, rel=3e-3
    )
    pick = IndependentGaussian(rounds=50, noise_multiplier=noise, neighbours=neighbours)
    assert found.independent == pytest.approx(account_for(Repeat(of=pick, times=passes), delta=DELTA).epsilon, rel=3e-3)
    assert found.known == pytest.approx(account_for(one, delta=DELTA)["unhidden"].epsilon, rel=1e-6)


def test_a_secret_partition_may_buy_less_than_independent_draws() -> None:
    """The comparison that a reader makes first: 50 rounds of 20 among 1000 people."""
    found = seen_by_all(run(), DELTA)
    assert found.least == pytest.approx(0.3614, rel=2e-3)
    hidden = account_for(run(), delta=DELTA).epsilon
    assert hidden == pytest.approx(0.8638, rel=1e-3)
    assert bought(found, hidden) == pytest.approx(0.418, rel=1e-2)


def test_where_hiding_does_buy_something() -> None:
    one = run(order="poisson", rate=0.01, rounds=1000, batch=100, diameter=None, neighbours="zero-out", noise_std=0.05)
    found = seen_by_all(one, DELTA)
    assert found.independent is None  # ten joins are expected of a record: there is no pass to pick a round of
    assert found.known > found.poisson == found.least
    assert bought(found, account_for(one, delta=DELTA).epsilon) == pytest.approx(13.364 / 4.456, rel=5e-3)
    scattered = replace(one, order="independent", rate=None)
    assert seen_by_all(scattered, DELTA).independent < seen_by_all(scattered, DELTA).known


@pytest.mark.parametrize("drawn", [{"order": "poisson", "rate": 0.02}, {"order": "independent"}])
def test_next_to_no_noise_promises_nothing(drawn: Any) -> None:
    quiet = run(noise_std=1e-9)
    assert seen_by_all(quiet, DELTA) == SeenByAll(known=None, poisson=None, independent=None)
    assert account_for(replace(quiet, **drawn), delta=DELTA).epsilon == math.inf
    assert account_for(replace(quiet, **drawn), epsilon=1.0).delta == 1.0


def test_what_has_no_meaning_is_left_out() -> None:
    laplace = seen_by_all(run(noise="laplace", batch=1), DELTA)
    assert (laplace.poisson, laplace.independent) == (None, None)
    assert laplace.known is not None
    full = seen_by_all(run(rounds=1, batch=100, passes=4), DELTA)
    assert full.poisson == pytest.approx(full.known, rel=2e-3)
    assert full.independent == pytest.approx(full.known, rel=2e-3)
    uneven = seen_by_all(run(rounds=2, batch=(10, 30)), DELTA)
    assert uneven.known > uneven.independent > 0
    assert bought(SeenByAll(known=None, poisson=None, independent=None), 1.0) is None
