"""Delays, losses and reordering against a replay of the message log that shares no code with the clock.

A client's charge and certificate are those of its own releases, whatever the network did.
"""

from collections import Counter

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from fedveil.noise.entropy import Entropy
from fedveil.stages.train.dpsgd.clock import Journal
from fedveil.stages.train.dpsgd.settings import Network
from fedveil.stages.train.dpsgd.steps import train_dpsgd
from fedveil.stages.train.optimiser import Optimiser
from unit.dpsgd_plans import dpsgd_plan, settings
from unit.plans import some_records

RECORDS = some_records(90, clients=3)
SETTINGSS = (settings(rounds=30), settings(rate=0.2, rounds=12, noise=3.0), settings(rounds=20, noise=4.0, clip=0.25))
NETWORKS = [
    Network(),
    Network(speeds=(3.0, 1.0, 0.5), jitter=0.3, delay=2.0, loss=0.25, window=1.5, max_lag=4, seed=5),
    Network(speeds=(1.0, 1.0, 9.0), delay=8.0, loss=0.6, window=0.5, max_lag=2, seed=6),
]


def ran(network: Network) -> tuple[object, Journal, np.ndarray]:
    plan = dpsgd_plan(RECORDS, *SETTINGSS, weights=(0.5, 0.2, 0.3), network=network, optimiser=Optimiser(momentum=0.5))
    journal = Journal(keep=True)
    trained = train_dpsgd(plan, RECORDS, Entropy.from_seed(3), lambda done: None, journal=journal)
    return plan, journal, trained.model


def replay(journal: Journal, weights: tuple[float, ...], length: float) -> tuple[dict[int, list], np.ndarray]:
    """The server's model after all windows, from what was sent and when it arrived; no ball is reached here."""
    windows: dict[int, list] = {}
    for message in journal.messages:
        if message.arrives_at is not None:
            number = 1
            while message.arrives_at > number * length:
                number += 1
            windows.setdefault(number, []).append((message.client, message.round))
    model = np.zeros(3)
    for number in sorted(windows):
        applied = np.zeros(3)
        for client, turn in sorted(windows[number]):
            applied = applied + weights[client] * journal.updates[client, turn]
        model = model - applied
        np.testing.assert_array_equal(journal.models[number], model)
    return windows, model


@pytest.mark.parametrize("network", NETWORKS, ids=["instant", "slow", "hardly any"])
def test_the_server_applies_what_a_replay_of_the_log_applies(network: Network) -> None:
    plan, journal, model = ran(network)
    windows, replayed = replay(journal, plan.method.weights, network.window)
    np.testing.assert_array_equal(model, replayed)
    for message in journal.finish():
        if message.arrives_at is None:
            assert message.window is None
        else:
            assert (message.client, message.round) in windows[message.window]
    assert np.linalg.norm(model) < plan.radius


@pytest.mark.parametrize("network", NETWORKS[1:], ids=["slow", "hardly any"])
def test_the_log_has_losses_delays_and_overtaking(network: Network) -> None:
    _, journal, _ = ran(network)
    arrived = [m for m in journal.messages if m.arrives_at is not None]
    assert 0 < len(arrived) < len(journal.messages)
    order = [[m.arrives_at for m in arrived if m.client == c] for c in range(3)]
    assert any(times != sorted(times) for times in order)
    assert any(b.arrives_at is None for b in journal.broadcasts)


@pytest.mark.parametrize("network", NETWORKS, ids=["instant", "slow", "hardly any"])
def test_charges_and_certificates_are_those_of_the_releases_in_the_log(network: Network) -> None:
    plan, journal, _ = ran(network)
    sent = Counter(m.client for m in journal.messages)
    assert dict(sent) == {0: 30, 1: 12, 2: 20}  # lost ones too, and each round once
    assert len({(m.client, m.round) for m in journal.messages}) == 62
    for client, epsilon in plan.method.clients(1e-5, plan.setup):
        one, accountant = SETTINGSS[client], pld.PLDAccountant()
        event = dp_accounting.PoissonSampledDpEvent(one.rate, dp_accounting.GaussianDpEvent(one.noise))
        accountant.compose(event, sent[client])
        assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    worst = max(epsilon for _, epsilon in plan.method.clients(1e-5, plan.setup))
    for adversary in ("final-model", "server", "curious-client"):
        assert plan.method.answer(adversary, plan.setup, 1e-5).epsilon == worst


def test_certificates_do_not_depend_on_the_network() -> None:
    found = [ran(network)[0] for network in NETWORKS]
    assert len({tuple(plan.method.clients(1e-5, plan.setup)) for plan in found}) == 1


@pytest.mark.parametrize("network", NETWORKS, ids=["instant", "slow", "hardly any"])
def test_a_client_works_on_the_newest_model_it_has_and_waits_when_it_has_none(network: Network) -> None:
    """Replay of the clients' side: between two deliveries of newer models no client sends more than max_lag updates."""
    _, journal, _ = ran(network)
    for client in range(3):
        newest, fresh = 0, []
        for b in sorted(
            (b for b in journal.broadcasts if b.client == client and b.arrives_at is not None),
            key=lambda b: (b.arrives_at, b.version),
        ):
            if b.version > newest:
                newest = b.version
                fresh.append(b.arrives_at)
        sent = sorted(m.sent_at for m in journal.messages if m.client == client)
        for start, end in zip([-1.0, *fresh], [*fresh, np.inf], strict=True):
            # a round that was under way when the model came still counts to the old one or the new one
            assert sum(start < at <= end for at in sent) <= network.max_lag + 1


def test_runs_repeat_to_the_byte() -> None:
    first, second = ran(NETWORKS[1]), ran(NETWORKS[1])
    np.testing.assert_array_equal(first[2], second[2])
    assert first[1].finish() == second[1].finish()
