"""A run of DP-SGD that goes on from what it kept ends in the same bits as one that was never stopped.

What is kept is written down only when the run is over: a round that changed it later would be found out.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of
from fedveil.stages.train.acting import Interim, Trained
from fedveil.stages.train.dpsgd.client import Client
from fedveil.stages.train.dpsgd.steps import dpsgd_of

_ADAM = {"kind": "adam", "momentum": 0.8, "beta2": 0.95, "weight_decay": 0.1}
_AVERAGED = {**_ADAM, "average": 0.9}
_CORRELATED = {"correlation": {"bands": 3}}
_SPEEDS = {"speeds": [1.0, 0.7, 1.6]}
ALONE: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd"},
    "momentum": {},
    "adam": {"optimizer": _ADAM},
    "the average": {"optimizer": _AVERAGED},
    "cyclic batches": {**_CORRELATED, "sampling": "cyclic", "rate": 0.25},
    "classes of records": {**_CORRELATED, "sampling": "poisson", "rate": 0.25},
    "buffers": {"correlation": {"buffers": 2}, "sampling": "cyclic", "rate": 0.25},
    "a clip by belief": {"clip": {"start": 0.3}},
    "a clip by its rate": {"clip": {"start": 0.3, "rate": 0.5}, "optimizer": "adam"},
    "segments": {"rounds": None, "segments": [{"rounds": 5, "noise": 9.0}, {"rounds": 4, "noise": 8.0, "step": 0.1}]},
    "shuffled": {"sampling": "shuffled", "rate": 0.25},
    "independent": {"sampling": "independent", "rate": None, "rounds": None},
    "fewer coordinates": {"compression": {"kind": "random-k", "keep": 0.5}},
}
_SLOW = {"speeds": [1.0, 0.4, 2.5], "jitter": 0.3, "delay": 0.7, "loss": 0.2, "window": 1.5, "max_lag": 3}
BY_THE_CLOCK: dict[str, dict[str, Any]] = {
    "in step": {"optimizer": _AVERAGED},
    "slow and lossy": {"optimizer": _AVERAGED, "network": _SLOW},
    "asked in turn": {"network": {**_SPEEDS, "delay": 0.2, "participants": 2, "max_deviation": 0.5}},
    "own budgets": {"own_epsilon": [2.0, 3.0, 3.9], "network": _SPEEDS},
    "steps by window": {"network": {"window_steps": [1.0, 0.5], "window": 2.0}, "clip": "adaptive"},
    "correlated": {**_CORRELATED, "sampling": "cyclic", "rate": 0.25, "network": _SPEEDS},
}
IN_WINDOWS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": _AVERAGED},
    "wide": {"network": {"window": 2.0}, "rounds": 9, "clip": "adaptive"},
    "correlated": {**_CORRELATED, "sampling": "cyclic", "rate": 0.25},
}
SHARED: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": _AVERAGED},
    "wide": IN_WINDOWS["wide"],
    "slow and lossy": {"optimizer": _AVERAGED, "network": _SLOW},
    "asked in turn": {"network": {**_SPEEDS, "delay": 0.2, "participants": 2}},
    "own budgets": {"own_epsilon": [2.0, 3.0, 3.9], "network": _SPEEDS},
}
_SCHEDULES = {"segments": {}, "independent": {"step_size": 0.1, "rounds": 4, "passes": 2}}
CASES = [
    *((1, name, wish, {}) for name, wish in ALONE.items()),
    *((3, f"local, {name}", wish, {"noise": "local"}) for name, wish in BY_THE_CLOCK.items()),
    *((3, f"local windows, {name}", wish, {"noise": "local", "dropouts": 1}) for name, wish in IN_WINDOWS.items()),
    *((3, f"shares, {name}", wish, {"dropouts": 1}) for name, wish in SHARED.items()),
    *((3, f"central, {name}", wish, {}) for name, wish in SHARED.items()),
    (3, "shares, correlated", IN_WINDOWS["correlated"], {"server": "trusted"}),
    (3, "central, correlated", IN_WINDOWS["correlated"], {}),
]


def _records(clients: int) -> Records:
    source = np.random.default_rng(7)
    features = source.normal(size=(60, 4))
    features /= np.maximum(1.0, np.linalg.norm(features, axis=1))[:, None] * 1.001
    targets = (features[:, 0] > 0).astype(np.float64)
    owner = np.arange(60, dtype=np.int64) % clients
    return Records(features=features, targets=targets, owner=owner, clients=clients, bound=1.0, classes=2)


def _plan(records: Records, algorithm: dict[str, Any], trust: dict[str, Any], name: str = "") -> Plan:
    wish = {"kind": "dpsgd", "rounds": 9, "rate": 0.5, **algorithm}
    tables = {
        "model": {"kind": "logistic", "radius": 8.0},
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "algorithm": {key: value for key, value in wish.items() if value is not None},
        "schedule": _SCHEDULES.get(name, {"step_size": 0.1}),
        **({"trust": trust} if trust else {}),
    }
    return study_of(tables, base=Path(), data_given=True).planned(records.shape).plan


def _run(plan: Plan, records: Records, begun: Any = None) -> tuple[Trained, list[Any]]:
    """Train, with a client that now and then fails where that is planned for; return all states that were told."""
    told: list[Any] = []
    fails = (lambda turn, client: client == turn % 5) if plan.trust.dropouts else (lambda turn, client: False)
    trained = train(plan, records, Entropy.from_seed(5), begun=begun, watch=told.append, fails=fails)
    return trained, told


@pytest.mark.parametrize(("clients", "name", "wish", "trust"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_a_run_that_goes_on_ends_in_the_same_bits(
    clients: int, name: str, wish: dict[str, Any], trust: dict[str, Any]
) -> None:
    records = _records(clients)
    plan = _plan(records, wish, trust, name)
    whole, told = _run(plan, records)
    kept = [state for state in told if isinstance(state, Interim)]
    assert len(kept) >= 4
    assert whole.model.any()
    for state in kept:
        again, rest = _run(plan, records, Interim.read(state.round, state.position, state.dropped))
        assert np.array_equal(again.model, whole.model)
        assert (again.bytes_up, again.bytes_down) == (whole.bytes_up, whole.bytes_down)
        assert len(rest) == len(told) - 1 - told.index(state)  # nothing is done twice
        assert all(
            np.array_equal(one.position, other.position)
            for one, other in zip(rest[::-1], told[::-1], strict=False)
            if isinstance(one, Interim)
        )


def test_what_was_dropped_before_is_counted() -> None:
    records = _records(1)
    plan = _plan(records, {}, {})
    state = next(found for found in _run(plan, records)[1] if found.round == 4)
    assert _run(plan, records, Interim.read(4, state.position, 7))[0].dropped == 7


@pytest.mark.parametrize(("clients", "wish"), [(1, {}), (3, {}), (3, {"network": _SLOW})])
def test_numbers_that_do_not_fit_the_plan_are_refused(clients: int, wish: dict[str, Any]) -> None:
    records = _records(clients)
    plan = _plan(records, wish, {})
    state = next(found for found in _run(plan, records)[1] if isinstance(found, Interim))
    for bad in (state.position[:-1], np.append(state.position, 0.0), np.zeros(0), np.zeros(3)):
        with pytest.raises(BadValue, match=r"The checkpoint must hold (\d+ numbers for|the rows of) this plan, got"):
            _run(plan, records, Interim.read(state.round, bad, 0))


def test_a_resumed_client_still_counts_who_took_part() -> None:
    """The pattern that correlated noise is proved for is watched over the whole run, not from the resumption on."""
    records = _records(1)
    plan = _plan(records, ALONE["cyclic batches"], {})
    client = Client(plan, dpsgd_of(plan), 0, records.features, records.targets, Entropy.from_seed(5))
    client.resume(client.memory, 4)
    early = client._sampler.batch(3)
    assert client._attendance is not None
    with pytest.raises(BadValue, match="take part at most"):
        client._attendance.note(5, early)
