"""What batch clipping is designed as where a study says nothing of rates, rounds, clip, noise and steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of
from fedveil.stages.train.dpsgd.design import usual_passes, usual_rate
from unit.plans import some_records


def planned(
    records: int,
    clients: int,
    schedule: dict[str, Any] | None = None,
    features: int = 3,
    epsilon: float = 1.0,
    **algorithm: Any,
) -> Plan:
    tables = {
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": epsilon, "delta": 1e-4, "adversary": "server-with-secure-aggregation"},
        "algorithm": {"kind": "dpsgd", "clipping": "batch", **algorithm},
        "schedule": schedule or {},
    }
    shape = some_records(records, clients=clients, features=features).shape
    return study_of(tables, base=Path(), data_given=True).planned(shape).plan


@pytest.mark.parametrize(("sampling", "clients"), [("poisson", 4), ("independent", 5)])
def test_a_batch_is_a_record_of_each_client_and_steps_are_for_the_mean_of_all_clients(sampling, clients) -> None:
    plan = planned(100 * clients, clients, sampling=sampling)
    one = plan.method.client_settings[0]
    assert one.rate == pytest.approx(0.01, rel=1e-12)
    assert one.rounds == 2000
    moved = np.sqrt(np.sum((one.steps() / (1 - 0.9)) ** 2)) * one.noise * one.clip / clients
    assert moved == pytest.approx(2.0, rel=0.01)  # standard deviations of a score of a row of norm 1


def test_a_large_client_has_batches_of_one_record_and_a_bearable_number_of_rounds() -> None:
    assert usual_rate(60_000, "batch") * 60_000 == pytest.approx(1.0, rel=1e-12)
    assert (usual_passes(60_000, "batch"), usual_passes(4000, "batch"), usual_passes(20, "batch")) == (1, 5, 20)
    assert usual_passes(60_000, "individual") == 20


def test_a_default_design_learns() -> None:
    records = some_records(300, clients=30)
    plan = planned(300, 30)
    model = train(plan, records, Entropy.from_seed(1)).model
    scores, truth = records.features @ model[: records.features.shape[1]], records.targets > 0
    area = np.mean(scores[truth][:, None] > scores[~truth][None, :])
    share = np.mean(truth)
    best_constant = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert area > 0.9
    assert np.mean(np.logaddexp(0.0, np.where(truth, -scores, scores))) < 0.8 * best_constant


def test_what_no_design_can_mend_is_refused_and_may_still_be_stated() -> None:
    match = r"algorithm\.clipping must be individual where .* A clipped mean moves by up to twice its clip"
    with pytest.raises(BadValue, match=match):
        planned(200, 1, features=30, sampling="shuffled")
    for stated in ({"rate": 0.05}, {"rounds": 40}, {"clip": 0.3}, {"steps": 0.01}, {"noise_multiplier": 80.0}):
        assert planned(200, 1, features=30, sampling="shuffled", **stated).method.clipping == "batch"
    assert planned(200, 1, {"passes": 2}, features=30, sampling="shuffled").method.clipping == "batch"
    assert planned(200, 1, features=30, sampling="shuffled", clipping="individual").method.clipping == "individual"
