"""Rules of asynchronous rounds: how far a client may go alone, who is asked in a window, steps by windows."""

from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.stages.train.dpsgd.clock import Journal
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import Network
from fedveil.stages.train.dpsgd.steps import train_dpsgd
from fedveil.stages.train.optimiser import Optimiser
from unit.dpsgd_plans import dpsgd_plan, settings
from unit.plans import some_records

RECORDS = some_records(90, clients=3)
SLOW: dict[str, Any] = {"speeds": (3.0, 1.0, 0.5), "jitter": 0.3, "delay": 0.7, "loss": 0.2, "seed": 5}


def ran(network: Network, **changes: Any) -> tuple[Plan, Journal, np.ndarray]:
    plan = dpsgd_plan(RECORDS, settings(rounds=12), network=network, optimiser=Optimiser(momentum=0.5), **changes)
    journal = Journal(keep=True)
    return plan, journal, train_dpsgd(plan, RECORDS, Entropy.from_seed(3), lambda done: None, journal=journal).model


@pytest.mark.parametrize("others", [{}, SLOW, {"window": 3.0}], ids=["instant", "slow", "windows of three"])
def test_no_deviation_at_all_is_the_synchronous_run_to_the_bit(others: dict[str, Any]) -> None:
    """Synchronous: a client waits after every round for a newer model."""
    _, journal, model = ran(Network(**others, max_deviation=0.0))
    _, waited, synchronous = ran(Network(**others, max_lag=1))
    assert model.tobytes() == synchronous.tobytes()
    assert [(m.client, m.round, m.sent_at) for m in journal.messages] == [
        (m.client, m.round, m.sent_at) for m in waited.messages
    ]


def test_a_round_a_window_without_delays_is_synchronous_already() -> None:
    assert ran(Network(max_deviation=0.0))[2].tobytes() == ran(Network())[2].tobytes()


def test_a_wide_deviation_changes_nothing_and_a_narrow_one_bounds_how_far_clients_go() -> None:
    network = {**SLOW, "window": 4.0}
    plain, wide = ran(Network(**network))[2], ran(Network(**network, max_deviation=1e9))[2]
    assert plain.tobytes() == wide.tobytes()
    free, bound = (ran(Network(**network, max_deviation=most))[1] for most in (1e9, 1e-3))
    assert bound.messages[-1].sent_at > free.messages[-1].sent_at  # clients had to wait
    assert len(bound.messages) == len(free.messages) == 3 * 12  # every round is done, and charged


def test_only_those_who_are_asked_begin_rounds_in_a_window() -> None:
    plan, journal, _ = ran(Network(participants=1))
    assert len(journal.messages) == 3 * 12
    windows: dict[int, set[int]] = {}
    for message in journal.messages:  # a round of a unit of time, begun when its window opened
        windows.setdefault(round(message.sent_at), set()).add(message.client)
    assert all(len(clients) == 1 for clients in windows.values())
    asked = [windows[number].pop() for number in sorted(windows)]
    assert set(asked) == {0, 1, 2}
    assert asked[:12] != sorted(asked[:12])  # in no fixed order
    again = ran(Network(participants=1))[1]
    assert [m.client for m in again.messages] == [m.client for m in journal.messages]
    assert ran(Network(participants=3))[2].tobytes() == ran(Network())[2].tobytes()
    assert dpsgd_of_charges(plan) == dpsgd_of_charges(ran(Network())[0])  # asking fewer is not counted in favour


def dpsgd_of_charges(plan: Plan) -> list[tuple[int, float]]:
    assert isinstance(plan.method, DpSgd)
    return plan.method.clients(1e-5, plan.setup)


def test_steps_of_windows_multiply_what_clients_send() -> None:
    assert ran(Network(window_steps=(1.0,)))[2].tobytes() == ran(Network())[2].tobytes()
    _, halved, _ = ran(Network(window_steps=(1.0, 0.5)))
    _, whole, _ = ran(Network())
    assert np.array_equal(halved.updates[0, 0], whole.updates[0, 0])  # the first window
    by_hand = dpsgd_plan(
        RECORDS, settings(rounds=12, step_size=(0.5, *([0.25] * 11))), optimiser=Optimiser(momentum=0.5)
    )
    model = train_dpsgd(by_hand, RECORDS, Entropy.from_seed(3), lambda done: None, journal=Journal()).model
    assert ran(Network(window_steps=(1.0, 0.5)))[2] == pytest.approx(model, rel=1e-12)


def test_windows_by_shares_take_the_same_steps() -> None:
    plan, _, model = ran(Network(window_steps=(1.0, 0.5)))
    assert train(plan, RECORDS, Entropy.from_seed(3)).model == pytest.approx(model, abs=1e-9)


def test_plans_read_back_and_rules_that_are_not_used_are_not_written() -> None:
    plan = ran(Network(max_deviation=0.5, participants=2, window_steps=(1.0, 0.5)))[0]
    assert read_plan(write_plan(plan)) == plan
    text = write_plan(ran(Network())[0])
    assert all(word not in text for word in ("max_deviation", "participants", "window_steps"))


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({"max_deviation": -1.0}, "algorithm.network.max_deviation must be finite and non-negative"),
        ({"max_deviation": float("nan")}, "algorithm.network.max_deviation must be"),
        ({"participants": 0}, "algorithm.network.participants must be at least 1"),
        ({"participants": 2.5}, "algorithm.network.participants must be a whole number"),
        ({"window_steps": ()}, "algorithm.network.window_steps must be a list of numbers"),
        ({"window_steps": (1.0, 2.0)}, r"algorithm.network.window_steps must lie in \(0, 1\]"),
        ({"window_steps": 0.5}, "algorithm.network.window_steps must be a list"),
    ],
)
def test_a_bad_rule_gets_one_sentence(rules: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        Network(**rules)


def test_more_participants_than_clients_and_rules_behind_masks_are_refused() -> None:
    with pytest.raises(BadValue, match=r"algorithm.participants must be at most the 3 clients"):
        ran(Network(participants=4))
    from fedveil.privacy.trust import Trust

    plan = ran(Network(max_deviation=0.5))[0]
    with pytest.raises(BadValue, match=r"wait for each other.*max_deviation and participants out"):
        plan.method.check_shares(
            Plan(
                name=plan.name, method=ran(Network())[0].method, data=plan.data, model=plan.model, target=plan.target,
                grid=plan.grid, seeded=True, trust=Trust(server="secure-aggregation", noise="local"),
            ).setup,
            plan.grid,
        )  # fmt: skip
