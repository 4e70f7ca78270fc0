"""Who sees more learns no less; more noise helps against everybody; what is calibrated is met."""

import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.accounting.compare import account_for
from fedveil.accounting.curious import units_of
from fedveil.accounting.observers import Participation, calibrate_views, observe, views
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import LastIterate

DELTA = 1e-5
ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)
RUN = LastIterate(
    rounds=8, batch=4, records=34, order="secret", step_size=0.5, lipschitz=1.0, smoothness=1.0, noise_std=3.0
)  # fmt: skip
SINGLE = Participation(clients=34, every_round=False)


@st.composite
def runs(draw: st.DrawFn) -> LastIterate:
    rounds, passes, batch = draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    steps = draw(st.lists(st.floats(0.05, 1.0), min_size=rounds, max_size=rounds))
    return LastIterate(
        rounds=rounds,
        passes=passes,
        batch=batch,
        records=max(2, rounds * batch) + draw(st.integers(0, 3)),
        order=draw(st.sampled_from(["secret", "public"])),
        step_size=tuple(steps),
        lipschitz=1.0,
        smoothness=draw(st.sampled_from([0.0, 1.0, None])),
        diameter=draw(st.sampled_from([None, 5.0, 50.0])),
        noise_std=draw(st.floats(0.5, 20.0)),
        neighbours=draw(st.sampled_from(["replace-one", "zero-out"])),
    )


def singles(run: LastIterate) -> Participation:
    return Participation(clients=units_of(run), every_round=False)


def epsilon(run: LastIterate, adversary: Adversary, who: Participation) -> float:
    return observe(run, adversary, who, delta=DELTA).epsilon


@settings(max_examples=20)
@given(run=runs())
def test_who_sees_more_learns_no_less(run: LastIterate) -> None:
    who = singles(run)
    final, curious, every, summed, server = (epsilon(run, adversary, who) for adversary in ADVERSARIES)
    slack = 1 + 1e-6
    assert final <= curious * slack + 1e-9
    assert final <= every * slack
    assert every <= summed * slack
    assert summed <= server * slack
    assert curious <= server * slack
    # A client that sees every model has at most its own noise on top of that.
    alone = replace(run, noise_std=run.noise_std * math.sqrt((run.batch - 1) / run.batch)) if run.batch > 1 else run  # type: ignore[operator]
    assert curious <= epsilon(alone, "every-model", who) * slack


@settings(max_examples=20)
@given(run=runs(), held=st.integers(2, 6), spread=st.booleans())
def test_larger_clients_learn_no_less(run: LastIterate, held: int, spread: bool) -> None:
    batch = held * (1 + units_of(run) % 2)
    run = replace(run, batch=batch, records=batch * run.rounds + held)
    large = Participation(largest_client=held, clients=units_of(run) // held, every_round=spread)
    single = singles(run)
    alone = observe(run, "curious-client", single, delta=DELTA)["segments"].epsilon
    found = observe(run, "curious-client", large, delta=DELTA).epsilon
    assert alone is not None
    if spread:
        assert found >= alone * (1 - 1e-6)
    assert found <= epsilon(run, "server", large) * (1 + 1e-6)


@settings(max_examples=10)
@given(run=runs(), factor=st.floats(1.01, 4.0))
def test_more_noise_never_hurts(run: LastIterate, factor: float) -> None:
    assert isinstance(run.noise_std, float)
    louder, who = replace(run, noise_std=run.noise_std * factor), singles(run)
    for adversary in ADVERSARIES[1:]:  # the final model has its own laws
        assert epsilon(louder, adversary, who) <= epsilon(run, adversary, who) * (1 + 1e-6) + 1e-9


@settings(max_examples=10)
@given(run=runs(), missing=st.integers(0, 3), more=st.integers(0, 2))
def test_colluders_and_dropouts_never_help(run: LastIterate, missing: int, more: int) -> None:
    name: Adversary = "server-with-secure-aggregation"
    few = Participation(clients=9, every_round=False, colluders=missing)
    many = Participation(clients=9, every_round=False, colluders=missing, dropouts=more)
    assert epsilon(run, name, few) <= epsilon(run, name, many) * (1 + 1e-9)
    both = Participation(clients=9, every_round=False, colluders=missing + more)
    assert epsilon(run, name, both) == epsilon(run, name, many)


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("order", ["secret", "public"])
def test_calibrate_then_observe_meets_the_target_and_wastes_little(adversary: Adversary, order: str) -> None:
    run = replace(RUN, order=order, passes=2)
    factor, found = calibrate_views(run, lambda noisy: views(noisy, adversary, SINGLE), epsilon=0.8, delta=DELTA)
    assert found.noise_std == pytest.approx(run.noise_std * factor)  # type: ignore[operator]
    assert 0.995 * 0.8 <= epsilon(found, adversary, SINGLE) <= 0.8


@settings(max_examples=6)
@given(run=runs())
def test_the_final_model_is_what_it_always_was(run: LastIterate) -> None:
    assert observe(run, "final-model", singles(run), delta=DELTA) == account_for(run, delta=DELTA)
    assert observe(run, "final-model", singles(run), epsilon=0.7) == account_for(run, epsilon=0.7)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_epsilon_and_delta_are_inverse(adversary: Adversary) -> None:
    there = observe(RUN, adversary, SINGLE, delta=DELTA)
    back = observe(RUN, adversary, SINGLE, epsilon=there.epsilon)
    assert back.delta <= DELTA * (1 + 1e-9)
    assert back.delta == pytest.approx(DELTA, rel=1e-3)
    assert there.certified_by is not None
