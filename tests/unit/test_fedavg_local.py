"""Clients that are trained together get what each gets alone, to the bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plans import some_records

from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.adjusted import Adjusted
from fedveil.models.loss import Loss
from fedveil.models.margin import Huber, Logistic
from fedveil.models.softmax import Softmax
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, write_plan
from fedveil.planning.study import study_of
from fedveil.stages.train.fedavg.local import Held, Local, changes, trained
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.stages.train.fedavg.steps import sent_rows, sent_steps

KEY = Entropy.from_seed(5)


def uneven() -> Records:
    """40 clients of 1, 2, 9 or 20 records, mixed."""
    sizes = np.array([1, 2, 9, 20] * 10)
    base = some_records(int(sizes.sum()), features=6, clients=1)
    owner = np.repeat(np.arange(40), sizes)[np.random.default_rng(1).permutation(base.targets.size)]
    return replace(base, owner=owner, clients=40, names=())


@pytest.mark.parametrize("loss", [Logistic(), Huber(), Softmax(classes=2), Adjusted(Logistic(), (1.0, 2.0))])
@pytest.mark.parametrize("batch", [0, 1, 4, 9])
def test_company_movedno_bit(loss: Loss, batch: int) -> None:
    held, model = Held.of(uneven()), np.random.default_rng(2).normal(size=loss.size(6))
    local = Local(loss, 0.3, 0.01, 0.7, 2, batch)
    for drawn in (np.arange(40), np.array([0, 3, 4, 5, 8, 12, 16, 39]), np.array([7])):
        found = {
            int(client): row
            for group, rows in changes(local, model, held, drawn, KEY, 3)
            for client, row in zip(group, rows, strict=True)
        }
        assert sorted(found) == drawn.tolist()
        for client, row in found.items():
            assert row.tobytes() == (trained(local, model, held, client, KEY, 3) - model).tobytes()


SCORED = [Logistic(), Huber(), Softmax(classes=3)]


@pytest.mark.parametrize("loss", SCORED)
@pytest.mark.parametrize(("l2", "proximal"), [(0.0, 0.0), (0.1, 0.3)])
def test_products_of_records_give_the_same_steps_in_any_company(loss: Loss, l2: float, proximal: float) -> None:
    """The last bits are others than those of plain steps, and the same with whomever a client is trained."""
    held, model = Held.of(uneven()), np.random.default_rng(2).normal(size=loss.size(6))
    held.targets[3] = 7.5  # of no class: left out in both ways
    plain = Local(loss, 0.3, l2, 0.7, 5, 0, proximal)
    local = replace(plain, by_products=True)
    for drawn in (np.arange(40), np.array([0, 3, 4, 5, 8, 12, 16, 39]), np.array([7])):
        for group, rows in changes(local, model, held, drawn, KEY, 3):
            for client, row in zip(group.tolist(), rows, strict=True):
                alone = trained(local, model, replace(held, products={}), client, KEY, 3) - model
                assert row.tobytes() == alone.tobytes()
                stepwise = trained(plain, model, held, client, KEY, 3) - model
                assert np.abs(row - stepwise).max() <= 1e-12 * np.abs(stepwise).max()
                assert np.abs(stepwise).max() > 1e-3


def test_a_client_without_records_changes_nothing_by_products() -> None:
    held = Held(np.zeros((0, 3)), np.zeros(0), np.zeros(0), np.zeros(2, dtype=np.int64))
    local = Local(Logistic(), 1.0, 0.0, 0.5, 2, 0, by_products=True)
    assert trained(local, np.arange(3.0), held, 0, KEY, 0).tolist() == [0.0, 1.0, 2.0]


def wide(**local: object) -> Plan:
    """A plan of 24 features, with clients of 5 records."""
    tables = {
        "algorithm": {"kind": "fedavg", "local": local},
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {"epsilon": 4.0, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"},
        "schedule": {"rounds": 2},
    }
    return study_of(tables, base=Path(), data_given=True).planned(some_records(60, features=24, clients=12).shape).plan


def test_several_epochs_of_wide_rows_go_by_products_and_the_plan_says_so() -> None:
    assert "by_products = true" in write_plan(wide(epochs=3))
    for other in ({"epochs": 1}, {"epochs": 3, "batch": 2}):
        assert "by_products = false" in write_plan(wide(**other))
    plan, records = wide(epochs=3), some_records(60, features=24, clients=12)
    before = replace(plan, method=replace(plan.method, local=replace(plan.method.local, by_products=False)))  # type: ignore[type-var, attr-defined]
    models = [train(each, records, KEY).model for each in (plan, before)]
    assert np.abs(models[0] - models[1]).max() <= 1e-6  # but for the grid on which updates are cut


def test_groups_are_small_enough_for_the_cache_and_leave_nobody_out() -> None:
    held = Held.of(uneven())
    groups = list(held.alike(np.arange(40), 2**17))
    assert sorted(np.concatenate(groups).tolist()) == list(range(40))
    assert max(group.size for group in groups) == 2
    assert all(np.unique(held.starts[group + 1] - held.starts[group]).size == 1 for group in groups)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 127, 128, 129, 1000, 7850])
def test_a_clipped_update_has_the_bits_that_it_has_alone(size: int) -> None:
    """Also those of the formula for one vector by itself, whose sum of squares is taken pairwise."""
    generator = np.random.default_rng(size)
    moved, weights = generator.normal(size=(9, size)) * 0.3, generator.uniform(0.1, 1.0, size=9)
    moved[4] = np.inf
    method = FedAvg(rounds=1, cohort=9, update_norm=0.2, noise_multiplier=1.0)
    rows, finite = sent_rows(method, moved, 0.2, weights, 2.0**-30)
    assert finite.tolist() == [place != 4 for place in range(9)]
    for place in range(9):
        alone = sent_steps(method, moved[place].copy(), 0.2, float(weights[place]), 2.0**-30)
        if alone is None:
            assert not rows[place].any()
            continue
        norm = float(np.sqrt(np.sum(moved[place] * moved[place])))
        factor = float(weights[place]) * 0.2 / max(norm, 0.2) * (1 - 2.0**-40)
        assert rows[place].tobytes() == alone.tobytes()
        assert rows[place].tobytes() == np.trunc(moved[place] * (factor / 2.0**-30)).tobytes()
