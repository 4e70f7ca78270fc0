"""A run of federated averaging that goes on from what it kept ends in the bits of one that was never stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import some_records

from fedveil.core.errors import BadValue
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of
from fedveil.stages.train.acting import Interim
from fedveil.stages.train.rounds import unpacked

RECORDS = some_records(count=120, clients=12)
KEY = Entropy.from_seed(4)
WISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "adam": {"optimizer": "adam", "server_step": 0.1},
    "momentum": {"optimizer": {"kind": "momentum", "momentum": 0.7}},
    "a bound that adapts": {"clip": "adaptive", "cohort": 6},
    "correlated": {"correlation": {"bands": 3}, "cohort": 4},
    "a cohort": {"cohort": 6, "sampling": "poisson"},
}


def plan_of(wish: dict[str, Any], **more: Any) -> Plan:
    tables = {
        "algorithm": {"kind": "fedavg", **wish},
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {"epsilon": 4.0, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"},
        "schedule": {"rounds": 6},
        **more,
    }
    return study_of(tables, base=Path(), data_given=True).planned(RECORDS.shape).plan


@pytest.mark.parametrize("name", WISHES)
def test_a_run_that_goes_on_ends_in_the_same_bits(name: str) -> None:
    plan, told = plan_of(WISHES[name]), list[Any]()
    whole = train(plan, RECORDS, KEY, watch=told.append)
    assert [state.round for state in told] == [1, 2, 3, 4, 5, 6]
    for state in told:  # written down only now: a later round may not have changed it
        rest = list[Any]()
        begun = Interim.read(state.round, state.position, 3)
        again = train(plan, RECORDS, KEY, begun=begun, watch=rest.append)
        assert np.array_equal(again.model, whole.model)
        assert again.dropped == whole.dropped + 3
        assert [later.round for later in rest] == list(range(state.round + 1, 7))
    with pytest.raises(BadValue, match="The checkpoint must hold"):
        train(plan, RECORDS, KEY, begun=Interim.read(1, told[0].position[1:], 0))


@pytest.mark.parametrize(
    "damaged", [[], [0.0], [1.0], [-1.0, 2.0], [1.0, 0.5], [1.0, np.nan], [np.nan], [np.inf, 1.0], [2.0, -1.0, 1.0]]
)
def test_what_is_no_row_of_rows_is_refused(damaged: list[float]) -> None:
    with pytest.raises(BadValue, match="The checkpoint must hold"):
        unpacked(np.array(damaged))
