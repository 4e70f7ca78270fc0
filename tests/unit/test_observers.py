"""Observers in closed form, and everything that is refused or withdrawn."""

import math
import time
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from fedveil.accounting.observers import Participation, calibrate_views, noise_left, observe, views
from fedveil.core.errors import BadValue, CannotCertify
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.divergence import log_theta
from fedveil.theory.numerics import smallest_epsilon

DELTA = 1e-5
RUN = LastIterate(rounds=10, batch=5, records=50, step_size=0.5, lipschitz=1.0, smoothness=1.0, noise_std=3.0)
SECRET = replace(RUN, order="secret")
SINGLE = Participation(clients=50, every_round=False)


def gaussian_epsilon(mu: float, delta: float = DELTA) -> float:
    return smallest_epsilon(lambda e: float(log_theta(e, mu)), delta)


def epsilon(run: LastIterate, adversary: Adversary, who: Participation = SINGLE) -> float:
    return observe(run, adversary, who, delta=DELTA).epsilon


@pytest.mark.parametrize("order", ["secret", "public"])
@pytest.mark.parametrize(("neighbours", "reach"), [("replace-one", 2.0), ("zero-out", 1.0)])
@pytest.mark.parametrize("passes", [1, 3])
def test_everything_but_hiding_is_a_gaussian(passes: int, neighbours: str, reach: float, order: str) -> None:
    run = replace(RUN, passes=passes, neighbours=neighbours, order=order)
    local = reach / 3.0 * math.sqrt(passes)
    assert epsilon(run, "server") == pytest.approx(gaussian_epsilon(local), rel=1e-6)
    assert epsilon(run, "server-with-secure-aggregation") == pytest.approx(gaussian_epsilon(local / math.sqrt(5)))
    assert epsilon(run, "every-model") == pytest.approx(gaussian_epsilon(local / math.sqrt(5)), rel=1e-6)
    fewer = replace(SINGLE, colluders=2, dropouts=1)
    seen = epsilon(run, "server-with-secure-aggregation", fewer)
    assert seen == pytest.approx(gaussian_epsilon(local / math.sqrt(2)), rel=1e-6)


def test_full_batches_use_every_unit_in_every_round() -> None:
    run = LastIterate(
        rounds=1, passes=12, batch=50, records=50, step_size=0.5, lipschitz=1.0, smoothness=1.0, noise_std=9.0
    )
    whole = 2 / 9 * math.sqrt(12 / 50)
    assert epsilon(run, "every-model") == pytest.approx(gaussian_epsilon(whole), rel=1e-6)
    assert epsilon(run, "server") == pytest.approx(gaussian_epsilon(2 / 9 * math.sqrt(12)), rel=1e-6)
    held = Participation(clients=5, largest_client=20, every_round=True)
    for order in ("secret", "public"):  # the client is in every round with all it has
        seen = epsilon(replace(run, order=order), "curious-client", held)
        assert seen == pytest.approx(gaussian_epsilon(whole * math.sqrt(50 / 30)), rel=1e-6)


def test_the_worst_round_counts_where_the_order_is_known() -> None:
    noise = (3.0, 1.0, *(3.0,) * 8)
    secret = replace(SECRET, noise_std=noise)
    assert epsilon(secret, "server") == pytest.approx(gaussian_epsilon(2.0), rel=1e-6)
    assert epsilon(secret, "server-with-secure-aggregation") == pytest.approx(
        gaussian_epsilon(2 / math.sqrt(5)), rel=1e-6
    )
    assert epsilon(secret, "every-model") < epsilon(secret, "server-with-secure-aggregation")
    here = replace(RUN, noise_std=noise, place=2)
    assert epsilon(here, "server") == pytest.approx(gaussian_epsilon(2.0), rel=1e-6)
    assert epsilon(replace(here, place=3), "server") == pytest.approx(gaussian_epsilon(2 / 3), rel=1e-6)


def test_a_public_order_leaves_a_curious_client_next_door_or_in_the_same_round() -> None:
    """The next round's client sees the model at once; one in the last round takes its own noise off."""
    seen = epsilon(RUN, "curious-client")
    assert seen == pytest.approx(gaussian_epsilon(2 / 3 / math.sqrt(4)), rel=1e-6)
    first = epsilon(replace(RUN, place=1), "curious-client")
    assert first == pytest.approx(gaussian_epsilon(2 / 3 / math.sqrt(5)), rel=1e-6)


def test_a_client_of_one_unit_is_the_same_however_it_is_dealt() -> None:
    other = Participation(clients=50, every_round=True)
    assert epsilon(SECRET, "curious-client", other) == epsilon(SECRET, "curious-client")


def test_the_bounds_have_names_and_reasons() -> None:
    found = observe(SECRET, "curious-client", SINGLE, delta=DELTA)
    assert [bound.name for bound in found.bounds] == ["unhidden", "segments", "position"]
    assert all(bound.reason for bound in found.bounds)
    for adversary in get_args(Adversary):
        assert observe(SECRET, adversary, SINGLE, delta=DELTA).certified_by is not None


def test_too_many_colluders_leave_no_guarantee() -> None:
    who = replace(SINGLE, colluders=3, dropouts=2)
    found = observe(RUN, "server-with-secure-aggregation", who, delta=DELTA)
    assert found.epsilon == math.inf
    assert found.certified_by is None
    assert "5 units" in found.bounds[0].reason
    assert observe(RUN, "server-with-secure-aggregation", who, epsilon=1.0).delta == 1.0
    with pytest.raises(CannotCertify, match="no amount of noise"):
        calibrate_views(RUN, lambda run: views(run, "server-with-secure-aggregation", who), epsilon=1.0, delta=DELTA)


def test_what_is_left_of_the_noise() -> None:
    run = replace(RUN, batch=(5, 2, *(5,) * 8), passes=2)
    who = Participation(clients=10, largest_client=3, every_round=True, colluders=1, dropouts=1)
    left = {adversary: noise_left(run, adversary, who)[9:12].tolist() for adversary in get_args(Adversary)}
    assert left == {
        "final-model": [1, 1, 1],
        "curious-client": [0.4, 0.4, 0.5],  # in the small round the victim's own noise is left
        "every-model": [1, 1, 1],
        "server-with-secure-aggregation": [0.6, 0.6, 0.0],
        "server": [0.2, 0.2, 0.5],
    }
    assert epsilon(run, "server-with-secure-aggregation", who) == math.inf
    there = epsilon(replace(run, place=1), "server-with-secure-aggregation", who)
    assert there == pytest.approx(gaussian_epsilon(2 / 3 * math.sqrt(2 / 3)), rel=1e-6)


def test_one_client_alone_has_nobody_to_fear() -> None:
    """One holder deals the units and adds all of the noise, so others get its noised sums at most."""
    alone = Participation(clients=1, largest_client=50, every_round=True)
    for run in (RUN, SECRET):
        seen = observe(run, "every-model", alone, delta=DELTA).epsilon
        assert seen < math.inf
        for who in ("curious-client", "server-with-secure-aggregation", "server"):
            assert observe(run, who, alone, delta=DELTA).epsilon == seen  # type: ignore[arg-type]
    assert "no other client" in observe(RUN, "curious-client", alone, delta=DELTA).bounds[0].reason
    colluding = replace(alone, colluders=50)
    assert observe(RUN, "server-with-secure-aggregation", colluding, delta=DELTA).epsilon == math.inf


def test_clients_dealt_whole_do_not_couple_positions() -> None:
    """Exchanging two records' rounds would move their whole clients, so single exchanges prove nothing."""
    run = replace(SECRET, batch=6, records=60)
    who = Participation(clients=30, largest_client=2, every_round=False)
    found = observe(run, "final-model", who, delta=DELTA)
    assert found["position"].status == "does-not-apply"
    assert found.certified_by != "position"
    single = Participation(clients=60, every_round=False)
    assert found.epsilon > observe(run, "final-model", single, delta=DELTA).epsilon
    assert observe(run, "curious-client", who, delta=DELTA)["position"].status == "does-not-apply"


def test_unequal_lots_are_charged_at_the_worst_rounds() -> None:
    uneven = Participation(clients=45, every_round=False)
    found = observe(SECRET, "curious-client", uneven, delta=DELTA)
    assert "equal lots" in found["segments"].reason
    assert found.epsilon == pytest.approx(epsilon(RUN, "curious-client"), rel=1e-6)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("order", ["secret", "public"])
def test_laplace_noise_is_charged_as_seen(passes: int, order: str) -> None:
    run = replace(RUN, batch=1, records=10, passes=passes, order=order, noise="laplace", noise_std=4.0)
    who = Participation(clients=10, every_round=False)
    final, curious, every, summed, server = (epsilon(run, a, who) for a in get_args(Adversary))
    assert final <= curious
    assert curious == every == summed == server
    assert observe(run, "curious-client", who, delta=DELTA)["segments"].status == "does-not-apply"


def test_random_stopping_still_shows_all_models_to_those_who_see_them() -> None:
    run = replace(SECRET, stopping="random")
    assert epsilon(run, "every-model") == epsilon(SECRET, "every-model")
    assert epsilon(run, "server") == epsilon(SECRET, "server")
    found = observe(run, "curious-client", SINGLE, delta=DELTA)
    assert found.certified_by == "unhidden"
    assert found.epsilon >= epsilon(run, "every-model")


@pytest.mark.parametrize("smoothness", [None, 1e6])
def test_without_contraction_a_curious_client_sees_all(smoothness: float | None) -> None:
    run = replace(SECRET, smoothness=smoothness, convex=smoothness is not None)
    found = observe(run, "curious-client", SINGLE, delta=DELTA)
    assert found["segments"].epsilon == pytest.approx(found["unhidden"].epsilon, rel=1e-3)


def test_unequal_batches() -> None:
    run = replace(SECRET, batch=(2, 3, 4, 5, 6, 7, 8, 6, 5, 4), records=52)
    for who in (
        Participation(clients=52, every_round=False),
        Participation(clients=9, largest_client=9, every_round=True),
    ):
        final, curious, every, summed, server = (epsilon(run, a, who) for a in get_args(Adversary))
        assert final <= curious <= server
        assert every <= summed <= server


@pytest.mark.parametrize(
    "fields",
    [
        {"clients": math.nan},
        {"clients": 0},
        {"clients": 2.5},
        {"largest_client": 0},
        {"largest_client": math.nan},
        {"colluders": -1},
        {"dropouts": math.inf},
        {"every_round": "yes"},
        {"every_round": math.nan},
    ],
)
def test_participation_is_checked_at_birth(fields: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="Participation"):
        Participation(**{"clients": 50, "every_round": False} | fields)


@pytest.mark.parametrize("adversary", get_args(Adversary))
@pytest.mark.parametrize(
    "asked", [{}, {"delta": math.nan}, {"delta": 0.0}, {"epsilon": math.nan}, {"delta": 0.1, "epsilon": 1}]
)
def test_bad_questions_are_refused(adversary: Adversary, asked: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        observe(RUN, adversary, SINGLE, **asked)
    with pytest.raises(BadValue):
        calibrate_views(RUN, lambda run: views(run, adversary, SINGLE), epsilon=math.nan, delta=DELTA)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadValue, match="adversary"):
        observe(RUN, "nobody", SINGLE, delta=DELTA)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="LastIterate"):
        observe(None, "server", SINGLE, delta=DELTA)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="Participation"):
        observe(RUN, "server", None, delta=DELTA)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="another client"):
        observe(RUN, "curious-client", Participation(clients=2, largest_client=50, every_round=True), delta=DELTA)
    with pytest.raises(BadValue, match="fit into a round"):
        observe(RUN, "curious-client", Participation(clients=5, largest_client=10, every_round=False), delta=DELTA)


def test_a_hundred_thousand_rounds_take_seconds() -> None:
    steps = tuple((0.5 * 0.9999 ** np.arange(100_000)).tolist())
    run = LastIterate(
        rounds=100_000, batch=3, order="secret", step_size=steps, lipschitz=1.0, smoothness=1.0, noise_std=3.0
    )
    for who in (
        Participation(clients=300_000, every_round=False),
        Participation(clients=300, largest_client=1000, every_round=True),
    ):
        start = time.perf_counter()
        found = observe(run, "curious-client", who, delta=1e-7)
        assert time.perf_counter() - start < 200  # a hang, not a speed test
        assert found.certified_by == "segments"
        assert found.epsilon < observe(run, "every-model", who, delta=1e-7).epsilon
