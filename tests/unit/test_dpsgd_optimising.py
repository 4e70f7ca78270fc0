"""Optimisers, shapes of steps and averages in DP-SGD: what runs, what is written, and that no guarantee moves."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.planning.design import read_request
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.planning.study import study_of
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.protocol import HERE, Consortium, Total
from fedveil.stages.train.dpsgd.answering import unit_of
from fedveil.stages.train.dpsgd.client import Client
from fedveil.stages.train.dpsgd.clock import Journal
from fedveil.stages.train.dpsgd.observe import ATTACK_VIEW
from fedveil.stages.train.dpsgd.steps import clients_of, dpsgd_of, train_dpsgd
from fedveil.stages.train.optimiser import Optimiser, advance, averaged, begin, decayed, heading, project
from fedveil.stages.train.registry import facts_of
from fedveil.stages.train.settings import shaped
from sides import asking_of, in_shares, site_of
from unit.dpsgd_plans import LOCAL

_ADAM = {"kind": "adam", "momentum": 0.8, "beta2": 0.95, "weight_decay": 0.1}


def _records(clients: int = 1) -> Records:
    source = np.random.default_rng(7)
    features = source.normal(size=(60, 4))
    features /= np.maximum(1.0, np.linalg.norm(features, axis=1))[:, None] * 1.001
    targets = (features[:, 0] > 0).astype(np.float64)
    owner = np.arange(60, dtype=np.int64) % clients
    return Records(features=features, targets=targets, owner=owner, clients=clients, bound=1.0, classes=2)


def _plan(records: Records, **algorithm: Any) -> Plan:
    wish = {"kind": "dpsgd", "rounds": 12, "rate": 0.5, **algorithm}
    tables = {
        "model": {"kind": "logistic", "radius": 8.0},  # what is lost to rounding depends on the radius
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "algorithm": {key: value for key, value in wish.items() if value is not None},
        "schedule": {"step_size": 0.1},
    }
    return study_of(tables, base=Path(), data_given=True).planned(records.shape).plan


def _entropy() -> Entropy:
    return Entropy.from_seed(5)


def _tick(_: int) -> None:
    """Ignore the progress."""


def _by_hand(plan: Plan, records: Records, optimiser: Optimiser, average: float | None) -> Any:
    """The same training from the client's releases alone, which are all that is computed from records."""
    client = Client(plan, dpsgd_of(plan), 0, records.features, records.targets, _entropy())
    model, state, mean = np.zeros(plan.dimension), begin(optimiser, plan.dimension), np.zeros(plan.dimension)
    for turn in range(12):
        state = advance(optimiser, state, client.release(model, turn))
        model = project(model - 0.1 * decayed(optimiser, heading(optimiser, state), model), plan.radius)
        mean = model if average is None else averaged(average, mean, model, turn + 1)
    return mean


@pytest.mark.parametrize("average", [None, 0.9])
def test_adam_is_a_function_of_what_is_released(average: float | None) -> None:
    records = _records()
    plan = _plan(records, optimizer={**_ADAM, **({} if average is None else {"average": average})})
    found = train_dpsgd(plan, records, _entropy(), _tick).model
    optimiser = Optimiser(kind="adam", momentum=0.8, beta2=0.95, weight_decay=0.1)
    assert np.array_equal(found, _by_hand(plan, records, optimiser, average))


def test_every_observer_is_promised_the_same() -> None:
    """Whatever is done with the noised sums: the promises are those of momentum, to the bit."""
    records = _records()
    before = _plan(records)
    after = _plan(records, optimizer={**_ADAM, "average": 0.99, "decay": "cosine", "warm_up": 3})
    for adversary in get_args(Adversary):
        assert promise(before, adversary).epsilon == promise(after, adversary).epsilon


def test_one_optimiser_has_one_text() -> None:
    """Plain steps are momentum 0, however a study says it."""
    records = _records()
    plain = write_plan(_plan(records))
    assert write_plan(_plan(records, optimizer="momentum")) == plain
    assert write_plan(_plan(records, optimizer="sgd")) == write_plan(_plan(records, optimizer={"momentum": 0.0}))
    adam = _plan(records, optimizer={**_ADAM, "average": 0.99})
    assert read_plan(write_plan(adam)) == adam
    shown = dict(facts_of(adam.method, adam.setup))
    assert shown["optimizer"] == "adam, 0.8 and 0.95 of the past"
    assert shown["released"] == "the moving average of the models, 0.99 of the past"


def test_a_client_remembers_adam_between_windows() -> None:
    """A client that is set up again before every round goes on with the same bits."""
    records, found = _records(), []
    plan = _plan(records, optimizer=_ADAM)
    model = np.zeros(plan.dimension)
    whole = clients_of(plan, dpsgd_of(plan), records, _entropy())[0]
    kept = np.zeros(whole.memory.size)
    for turn in range(12):
        again = clients_of(plan, dpsgd_of(plan), records, _entropy())[0]
        again.remember(kept)
        steps = whole.update(model, turn), again.update(model, turn)
        found.append(np.array_equal(*steps))
        kept, model = again.memory, project(model - steps[0], plan.radius)
    assert all(found)


def test_windows_clock_and_server_release_the_same_average() -> None:
    records = _records(clients=3)
    plan = replace(_plan(records, optimizer={**_ADAM, "average": 0.9}), trust=LOCAL)
    windows = in_shares(replace(plan, trust=LOCAL), records, _entropy()).model
    clocked = train_dpsgd(plan, records, _entropy(), _tick, journal=Journal()).model
    assert np.allclose(windows, clocked, rtol=0, atol=1e-9)  # windows are added up in whole grid steps
    server = asking_of(plan, Consortium.here(records), _entropy())
    state, total = server.start(), np.full(plan.dimension, 2**30, dtype=np.int64)
    model, mean = np.zeros(plan.dimension), np.zeros(plan.dimension)
    for turn in range(3):
        asked = server.question(state, HERE)
        assert asked is not None
        assert np.array_equal(asked.rows["model"], model)
        state = server.advance(state, Total(total))
        model = project(model - total * unit_of(plan), plan.radius)
        mean = averaged(0.9, mean, model, turn + 1)
    assert np.array_equal(server.model(state), mean)
    assert not np.array_equal(mean, model)


def test_sites_that_restart_every_window_give_the_bits_of_one_process(tmp_path: Path) -> None:
    records = _records(clients=3)
    plan = replace(_plan(records, optimizer={**_ADAM, "average": 0.9}), trust=LOCAL)
    server = asking_of(plan, Consortium.here(records), _entropy())
    state = server.start()
    for turn in range(server.last):
        site, asked = site_of(plan, records, (0, 1, 2), _entropy(), tmp_path), server.question(state, HERE)
        assert asked is not None
        parts = site.parts(turn, asked)
        again = site.parts(turn, asked)  # a question that is asked twice
        assert all(np.array_equal(parts[client], again[client]) for client in parts)
        state = server.advance(state, Total(sum(parts.values(), np.zeros(plan.dimension, dtype=np.int64))))
    assert np.array_equal(server.model(state), in_shares(plan, records, _entropy()).model)


def test_attackers_read_the_sums_whatever_the_optimiser_made_of_them() -> None:
    records = _records(clients=2)
    plain, adam = _plan(records), _plan(records, optimizer={**_ADAM, "momentum": 0.9, "average": 0.9})
    seen = [ATTACK_VIEW.observe(plan, records, _entropy(), [0], False) for plan in (plain, adam)]
    first, second = (found.own[0].gradient for found in seen)
    assert np.array_equal(first, second)
    ends = [found.shared[-1].gradient for found in seen]
    assert not np.array_equal(*ends)


def test_no_update_of_adam_exceeds_the_limit() -> None:
    """The proved bound on a heading, against a direction that grows fast after a long rest, as bad as we know."""
    optimiser = Optimiser(kind="adam", momentum=0.9, beta2=0.999)
    state, most = begin(optimiser, 2), 0.0
    for turn in range(3000):
        state = advance(optimiser, state, np.full(2, 0.0 if turn < 2900 else 1.11 ** (turn - 2900)))
        most = max(most, float(np.linalg.norm(heading(optimiser, state))))
    limit = optimiser.longest(1.0, 2)
    assert 0.5 * limit < most <= limit


@pytest.mark.parametrize(
    ("decay", "warm_up", "expected"),
    [
        (None, None, 2.0),
        ("constant", None, 2.0),
        ("constant", 2, (1.0, 2.0, 2.0, 2.0)),
        ("linear", None, (2.0, 1.5, 1.0, 0.5)),
        ("cosine", None, (2.0, 1 + np.sqrt(0.5), 1.0, 1 - np.sqrt(0.5))),
        ("cosine", 2, (1.0, 2.0, 2.0, 1.0)),
    ],
)
def test_shapes_of_steps(decay: Any, warm_up: int | None, expected: Any) -> None:
    assert np.allclose(shaped(2.0, 4, decay, warm_up), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        ({"optimizer": "lion"}, "algorithm.optimizer.kind must be one of sgd, momentum, adam"),
        ({"optimizer": {"kind": "sgd", "momentum": 0.9}}, "algorithm.optimizer.momentum must be 0 for sgd"),
        ({"optimizer": {"beta2": 0.9}}, "algorithm.optimizer.beta2 must go with adam alone"),
        ({"optimizer": {"kind": "adam", "beta2": 0.5}}, "algorithm.optimizer.momentum must be at most beta2"),
        ({"optimizer": {"average": 1.0}}, "algorithm.optimizer.average must lie between 0 and 1"),
        ({"optimizer": {"average": float("nan")}}, "algorithm.optimizer.average must lie between 0 and 1"),
        ({"optimizer": {"decay": "steps"}}, "algorithm.optimizer.decay must be one of constant, linear, cosine"),
        ({"optimizer": {"warm_up": 12}}, "algorithm.optimizer.warm_up must leave a round of the 12"),
        ({"optimizer": {"warm_up": -1}}, "algorithm.optimizer.warm_up must be at least 0"),
        ({"steps": [[0.1] * 12], "optimizer": {"decay": "linear"}}, "must be left out with a list of steps"),
        (
            {"segments": [{"rounds": 12}], "rounds": None, "optimizer": {"warm_up": 1}},
            "algorithm.segments must be left out with a decay or warm-up of steps",
        ),
    ],
)
def test_bad_wishes_are_refused(algorithm: dict[str, Any], told: str) -> None:
    with pytest.raises(BadValue) as refused:
        _plan(_records(), **algorithm)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_adam_asks_for_a_step() -> None:
    tables = {
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "algorithm": {"kind": "dpsgd", "optimizer": "adam"},
    }
    with pytest.raises(ValueError, match=r"schedule\.step_size must be given for adam"):
        study_of(tables, base=Path(), data_given=True).planned(_records().shape)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"optimizer": "adam"}, "Momentum and Adam remember earlier gradients"),
        ({"optimizer": {"average": 0.99}}, "computed from models that must stay hidden"),
        ({"optimizer": {"weight_decay": 0.1}}, "state model.l2"),
        ({"optimizer": {"decay": "cosine"}}, "for falling steps schedule.step_size"),
        ({"momentum": 0.9}, "It is a setting of simfl"),
    ],
)
def test_hidden_training_says_why_not(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadValue) as refused:
        read_request({"kind": "hidden", **given})
    assert told in str(refused.value)
