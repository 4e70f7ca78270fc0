"""A private evaluation of a model of a number, and of clients that train and are counted: costs, bounds, intervals."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from fedveil.accounting.compare import account_for
from fedveil.data.load import Loaded
from fedveil.data.records import DataShape, Records
from fedveil.data.row_rule import Labels
from fedveil.engine.evaluator import evaluator_of
from fedveil.engine.study import evaluated
from fedveil.jobs.local import plan_study
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import HeldOutRecords, Plan, read_plan, write_plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.planning.study import study_of
from fedveil.privacy.mechanism import Compose, Gaussian
from fedveil.privacy.target import Target
from fedveil.stages.evaluate.numbers import SIZE, Errors, contribution, error_sums
from fedveil.stages.evaluate.statement import NO_EVALUATION
from fedveil.stages.sums import STEPS, whole_client

SHAPE = DataShape(records=600, features=3, classes=0, clients=60, largest_client=10, smallest_client=10, bound=1.0)
PRIVACY = {"epsilon": 2.0, "delta": 1e-5, "neighbours": "zero-out"}


def planned(held: DataShape | None = None, joint: bool = False, shape: DataShape = SHAPE, **more: Any) -> Plan:
    tables: dict[str, Any] = {
        "model": {"kind": "huber" if shape.classes == 0 else "logistic"},
        "privacy": PRIVACY,
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 10},
        "evaluation": {"private": True},
        **more,
    }
    found = study_of(tables, base=Path(), data_given=True)
    return found.planned(shape, 0 if held is None else held.records, held is None, held=held, joint=joint).plan


class TestContributions:
    @pytest.mark.parametrize("largest", [1.0, 0.1])
    @pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
    def test_no_record_and_no_client_moves_the_sums_by_more_than_is_charged(
        self, neighbours: Any, largest: float
    ) -> None:
        """The corners of what a record may hold, numbers in between, and means of some of them, exactly."""
        draw = np.random.default_rng(0)
        edge = np.array([-9.0, -1.0, -0.5, 0.0, 0.5, 1.0, 9.0, math.nan])
        said, truth = (grid.ravel() for grid in np.meshgrid(edge, edge[:-1]))
        said, truth = np.r_[said, draw.uniform(-1, 1, 60)], np.r_[truth, draw.uniform(-1, 1, 60)]
        add_up = error_sums(said, truth, largest)
        units = [add_up(np.array([k])) for k in range(said.size)]
        units += [whole_client(add_up)(draw.integers(0, said.size, 3)) for _ in range(30)]
        none = np.zeros(SIZE, dtype=np.int64)
        bound = contribution(Target(epsilon=1.0, delta=1e-5, neighbours=neighbours)) * STEPS
        charged = bound * (1 if neighbours == "zero-out" else 2)
        pairs = [(one, none) for one in units]
        if neighbours == "replace-one":
            pairs += [(one, other) for one in units for other in units]
        assert max(int(((one - other) ** 2).sum()) for one, other in pairs) <= charged**2 * (1 + 1e-15)

    def test_a_plan_with_a_smaller_bound_is_refused(self) -> None:
        plan = planned()
        assert read_plan(write_plan(plan)) == plan
        text = write_plan(plan)
        (one,) = plan.evaluation.sums.measurements if plan.evaluation else ()
        with pytest.raises(ValueError, match=r"evaluation\.errors must have a bound of at least"):
            read_plan(text.replace(repr(one.bound), repr(one.bound * 0.999)))


class TestEstimates:
    def test_without_noise_they_are_scikit_learns_in_the_targets_own_unit(self) -> None:
        draw = np.random.default_rng(1)
        truth = draw.normal(0.1, 0.3, 5000).clip(-1, 1)
        said = (truth + draw.normal(0, 0.2, 5000)).clip(-1, 1)
        values = error_sums(said, truth)(np.arange(5000)) / STEPS
        labels = Labels(span=(100.0, 300.0))
        told = Errors(values=values, deviation=1e-9, span=(100.0, 300.0)).metrics()
        own, exact = labels.own_unit(said), labels.own_unit(truth)
        assert told["mae"] == pytest.approx(mean_absolute_error(exact, own), rel=1e-4)
        assert told["rmse"] == pytest.approx(root_mean_squared_error(exact, own), rel=1e-4)
        assert told["r2"] == pytest.approx(r2_score(exact, own), abs=1e-4)
        assert told["baseline"]["rmse"] == pytest.approx(exact.std(), rel=1e-4)
        for name in ("mae", "rmse", "r2"):
            assert told["intervals"][name][0] < told[name] < told["intervals"][name][1]

    def test_a_smaller_largest_error_has_less_noise_and_says_the_same(self) -> None:
        draw = np.random.default_rng(4)
        truth = draw.normal(0.1, 0.3, 3000).clip(-1, 1)
        said = (truth + draw.normal(0, 0.05, 3000)).clip(-1, 1)
        found = {}
        for largest in (1.0, 0.2):
            values = error_sums(said, truth, largest)(np.arange(3000)) / STEPS
            found[largest] = Errors(values=values, deviation=10.0, span=(0.0, 50.0), largest=largest).metrics()
        for name in ("mae", "rmse", "r2"):
            assert found[0.2][name] == pytest.approx(found[1.0][name], rel=1e-3)
            low, high = found[0.2]["intervals"][name]
            wide = found[1.0]["intervals"][name]
            assert high - low < 0.6 * (wide[1] - wide[0])
        assert found[0.2]["largest_error"] == 10.0
        assert found[0.2]["baseline"] == found[1.0]["baseline"]

    def test_sums_that_are_all_noise_say_nothing(self) -> None:
        told = Errors(values=np.array([3.0, -5.0, 4.0, 1.0, 9.0]), deviation=50.0, span=(0.0, 10.0)).metrics()
        assert told["intervals"] == {"mae": [0.0, 10.0], "rmse": [0.0, 10.0], "r2": None}

    def test_the_truth_lies_within_its_interval(self) -> None:
        """At least 82 of 100 intervals of 95% hold the truth but for a chance below 1e-6; records are drawn too."""
        repeats, least = 100, 82
        assert binom.cdf(least - 1, repeats, 0.95) < 1e-6
        draw, held = np.random.default_rng(5), {"mae": 0, "rmse": 0, "r2": 0}
        plan = planned(
            shape=replace(SHAPE, records=2000, features=1, largest_client=500, clients=4),
            evaluation={"private": True, "share": 0.5},
        )
        noise, error = 0.3, 0.15  # deviations of what is predicted, and of what it misses
        truth = {"mae": error * math.sqrt(2 / math.pi), "rmse": error, "r2": noise**2 / (noise**2 + error**2)}
        widths = []
        for repeat in range(repeats):
            rows = draw.normal(0, noise, (2000, 1)).clip(-1, 1)
            targets = (rows[:, 0] + draw.normal(0, error, 2000)).clip(-1, 1)
            owner = np.sort(np.arange(2000) % 4).astype(np.int64)
            records = Records(features=rows, targets=targets, owner=owner, clients=4, bound=1.0, classes=0)
            loaded = Loaded(train=records, test=None, test_public=True, dropped_rows=0, feature_names=("x",))
            ends = evaluated(plan, loaded, np.array([1.0]), Entropy.from_seed(repeat))["intervals"]
            for name, value in truth.items():
                held[name] += ends[name] is not None and ends[name][0] <= value <= ends[name][1]
            widths.append(ends["mae"][1] - ends["mae"][0])
        assert min(held.values()) >= least, held
        assert np.mean(widths) < 0.1


class TestCost:
    def test_it_is_composed_exactly_with_training(self) -> None:
        plan = planned()
        assert plan.evaluation
        (one,) = plan.evaluation.sums.measurements
        training = plan.method.client_settings[0].charged(plan.method.sampling, plan.method.clipping, "zero-out")
        part = Gaussian(noise_multiplier=one.noise, neighbours="zero-out")
        whole = account_for(Compose(parts=(training, part)), delta=1e-5).epsilon
        assert promise(plan, "final-model").epsilon == pytest.approx(whole, rel=2e-4)

    def test_a_client_that_trains_and_is_counted_is_charged_for_both(self) -> None:
        """Two promises of epsilon 2 for one client are not one of epsilon 2: they are composed for each observer."""
        clients = {"privacy": {**PRIVACY, "unit": "client"}, "algorithm": {"kind": "fedavg"}}
        clients |= {"schedule": {"rounds": 3}}
        shape = replace(SHAPE, classes=2)
        plan = planned(replace(shape, records=120, largest_client=2, smallest_client=2), True, shape, **clients)
        assert plan.evaluation
        assert plan.evaluation.joint
        assert plan.evaluation.composed
        assert read_plan(write_plan(plan)) == plan
        bare = replace(plan, evaluation=NO_EVALUATION, held_out=HeldOutRecords())
        for adversary in ADVERSARIES:
            alone = plan.evaluation.answer(adversary, plan.data, plan.target, plan.trust, 1e-5).epsilon
            both = promise(plan, adversary).epsilon
            assert both > max(promise(bare, adversary).epsilon, alone) * 1.001 or math.isinf(both)
        assert promise(plan, "final-model").epsilon <= 2.0

    def test_given_records_of_clients_that_are_on_both_sides_are_found_out(self) -> None:
        """Unless every client is named, and none on both sides, its two costs add up."""
        tables = {"privacy": {**PRIVACY, "unit": "client"}, "model": {"kind": "logistic"}, "evaluation": {}}
        tables |= {"algorithm": {"kind": "fedavg"}, "schedule": {"rounds": 2}}
        draw = np.random.default_rng(3)

        def records(names: tuple[str, ...]) -> Records:
            rows, owner = draw.uniform(-0.5, 0.5, (40, 2)), np.repeat(np.arange(20), 2)
            targets = (rows[:, 0] > 0).astype(np.float64)
            return Records(features=rows, targets=targets, owner=owner, clients=20, bound=1.0, classes=2, names=names)

        mine, others = tuple(f"a{k}" for k in range(20)), tuple(f"b{k}" for k in range(20))
        for left, right, joint in ((mine, mine, True), (mine, others, False), ((), (), True), (mine, (), True)):
            plan = plan_study(tables, (records(left), records(right))).plan
            assert plan.evaluation
            assert plan.evaluation.joint is joint

    def test_records_are_both_only_if_the_study_says_so(self) -> None:
        held = replace(SHAPE, records=120, largest_client=2, smallest_client=2)
        plan = planned(held, joint=True)
        assert plan.evaluation
        assert not plan.evaluation.joint
        both = planned(held, evaluation={"records": "held-out", "share": 0.2}, joint=True)
        assert both.evaluation
        assert both.evaluation.composed
        assert read_plan(write_plan(both)) == both


def test_the_largest_error_is_part_of_the_plan_and_of_numbers_alone() -> None:
    plan = planned(evaluation={"private": True, "largest_error": 0.2})
    assert plan.evaluation
    assert plan.evaluation.largest_error == 0.2
    assert read_plan(write_plan(plan)) == plan
    assert planned().evaluation.largest_error == 1
    for bad in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"evaluation\.largest_error must lie in \[0\.001, 1\]"):
            planned(evaluation={"largest_error": bad})
    with pytest.raises(ValueError, match=r"evaluation\.largest_error must be left out with a model of classes"):
        planned(shape=replace(SHAPE, classes=2), evaluation={"largest_error": 0.2})


def test_nothing_is_said_of_the_target_without_its_unit() -> None:
    plan = planned()
    told = evaluator_of(plan, np.zeros(3)).evaluation([np.array([600.0, 60.0, 9.0, 0.0, 60.0])], None)
    assert told["mae"] == pytest.approx(0.2)  # of a range from -1 to 1
    assert told["on"] == "training"
