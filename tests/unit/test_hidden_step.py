"""A round does what the plan says: average, step, grid, noise, projection; and its noise is what is accounted for."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.stages.train.acting import Interim
from fedveil.stages.train.hidden.deal import Batch, deal
from fedveil.stages.train.hidden.steps import Rule, draw, last_round, model_of, project, start, step
from fedveil.stages.train.rounds import packed, unpacked
from unit.plans import some_plan, some_records


def by_hand(plan: Plan, records: Records, key: Entropy) -> np.ndarray:
    """The same run record by record, in plain floats, sharing no code with the trainer but the noise and the order."""
    dealt, rule = deal(plan, records, key), Rule.of(plan)
    model = np.zeros(plan.dimension)
    for turn in range(plan.run.total):
        batch = dealt.batch(turn)
        total = np.zeros(plan.dimension)
        weights = np.ones(batch.targets.size) if batch.weights is None else batch.weights
        for row, target, weight in zip(batch.features, batch.targets, weights, strict=True):
            gradient = (1 / (1 + np.exp(-row @ model)) - target) * row
            total += weight * gradient * min(1.0, plan.run.lipschitz / max(np.linalg.norm(gradient), 1e-300))
        model = model - rule.steps[turn] * (total / rule.batches[turn] + plan.model.l2 * model)
        model = model + draw(rule, turn, plan.dimension, key) * 2.0**plan.grid
        norm = np.linalg.norm(model)
        model = model if norm <= plan.radius else model * plan.radius / norm
    return model


@pytest.mark.parametrize(
    ("unit", "settings"),
    [
        ("record", {}),
        ("record", {"passes": 3, "step_size": tuple(0.6 / (1 + k) for k in range(18))}),
        ("record", {"model": ModelPlan(kind="logistic", classes=2, radius=0.2, l2=0.1, clip=0.05)}),
        ("record", {"rounds": 1, "batch": 60, "passes": 7}),
        ("record", {"rounds": 3, "batch": (10, 20, 30), "noise_std": (0.5, 1.0, 2.0)}),
        ("client", {"rounds": 1, "batch": 12, "passes": 2}),
    ],
)
def test_the_run_is_the_one_that_the_plan_describes(unit: str, settings: dict[str, object]) -> None:
    records = some_records(clients=60 if unit == "record" else 12)
    plan = some_plan(records, unit=unit, deal="clients" if unit == "client" else "records", **settings)
    key = Entropy.from_seed(11)
    seen: list[Interim] = []
    found = train(plan, records, key, watch=seen.append).model
    assert [state.round for state in seen] == list(range(1, plan.run.total + 1))
    assert found == pytest.approx(by_hand(plan, records, key), abs=1e-9)


def test_the_state_lies_on_the_grid_and_the_model_in_the_ball() -> None:
    records = some_records()
    plan = some_plan(records, noise_std=50.0)
    seen: list[Interim] = []
    model = train(plan, records, Entropy.from_seed(0), watch=seen.append).model
    rows = [unpacked(state.position)[0] for state in seen]
    assert all(row.size == plan.dimension and np.array_equal(row, np.rint(row)) for row in rows)
    assert np.linalg.norm(model) <= plan.radius * (1 + 1e-15)


def test_noise_is_what_the_accountant_is_told() -> None:
    """2000 rounds of 50 coordinates against the stated deviation: 10% less is far outside; false alarm 2e-7."""
    plan = some_plan(some_records(), step_size=0.3, noise_std=1.7)
    rule, key = Rule.of(plan), Entropy.from_seed(5)
    stated = plan.hidden.noise()[0]
    assert stated == pytest.approx(0.3 * 1.7 / np.sqrt(10))
    drawn = np.concatenate([draw(replace(rule), turn % 6, 50, Entropy.from_seed(turn)) for turn in range(2000)])
    ratio = float(np.sum((drawn * 2.0**plan.grid / stated) ** 2))
    low, high = chi2.ppf(1e-7, drawn.size), chi2.isf(1e-7, drawn.size)
    assert low < ratio < high
    assert not low < ratio * 0.9**2 < high
    assert not np.array_equal(draw(rule, 0, 50, key), draw(rule, 1, 50, key))


def test_the_same_key_gives_the_same_bytes_and_another_key_does_not() -> None:
    records = some_records()
    plan = some_plan(records)
    first, again, other = (train(plan, records, Entropy.from_seed(seed)).model for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()


def test_a_run_continued_anywhere_ends_in_the_same_bytes() -> None:
    records = some_records()
    plan = some_plan(records, passes=2)
    seen: list[Interim] = []
    whole = train(plan, records, Entropy.from_seed(1), watch=seen.append).model
    for state in [*seen, Interim(0, packed(np.zeros(plan.dimension)))]:
        assert train(plan, records, Entropy.from_seed(1), begun=state).model.tobytes() == whole.tobytes()


def test_an_update_that_is_no_number_is_a_dropout() -> None:
    plan = some_plan(some_records())
    rule, rows = Rule.of(plan), np.array([[0.5, 0.0, 0.0], [np.nan, 0.0, 0.0], [np.inf, 1.0, 0.0]])
    silence = np.zeros(3)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    both = step(rule, start(plan), Batch(rows, np.ones(3), norms, None), silence)
    alone = step(rule, start(plan), Batch(rows[:1], np.ones(1), norms[:1], None), silence)
    assert both.dropped == 2
    assert np.array_equal(both.position, alone.position)  # the divisor stays, whoever answers


def test_zero_rows_do_no_harm() -> None:
    plan = some_plan(some_records())
    state = step(Rule.of(plan), start(plan), Batch(np.zeros((4, 3)), np.ones(4), np.zeros(4), None), np.zeros(3))
    assert state.dropped == 0
    assert np.array_equal(state.position, np.zeros(3))


def test_random_stopping_is_uniform_and_can_end_early() -> None:
    """3000 draws over 6 rounds, chi-square at 1e-7 (the false-alarm probability)."""
    plan = some_plan(some_records(), stopping="random")
    stops = [last_round(plan, Entropy.from_seed(seed)) for seed in range(3000)]
    counts = np.bincount(stops, minlength=7)[1:]
    assert counts.size == 6
    assert float(((counts - 500) ** 2 / 500).sum()) < chi2.isf(1e-7, 5)


def test_projection_moves_only_what_is_outside() -> None:
    assert np.array_equal(project(np.array([3.0, 4.0]), 5.0), [3.0, 4.0])
    assert project(np.array([6.0, 8.0]), 5.0) == pytest.approx([3.0, 4.0])


def test_a_coordinate_beyond_the_box_is_cut_to_it() -> None:
    plan = some_plan(some_records())
    rule = Rule.of(plan)
    state = step(rule, start(plan), Batch(np.zeros((1, 3)), np.ones(1), np.zeros(1), None), np.full(3, 1e300))
    assert np.array_equal(state.position, np.full(3, 2.0**52))
    assert np.all(np.isfinite(model_of(rule, state)))
