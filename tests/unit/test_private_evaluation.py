"""A private evaluation: one charge with training, counts of bounded contributions, intervals that hold the truth."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, recall_score, roc_auc_score

from fedveil.accounting.compare import account_for
from fedveil.core.errors import BadValue
from fedveil.data.load import Loaded
from fedveil.data.records import DataShape, Records
from fedveil.engine.study import evaluated
from fedveil.models.adjusted import margins
from fedveil.models.spec import loss_named
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import ADVERSARIES, promise, promise_at
from fedveil.planning.study import study_of
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.mechanism import Compose, Gaussian
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.evaluate.quality import (
    Counts,
    TwoClasses,
    borders_of,
    class_counts,
    even,
    many_classes,
    places_counts,
    score_counts,
)
from fedveil.stages.evaluate.statement import NO_EVALUATION, Evaluation, contribution
from fedveil.stages.prepare.budget import settle_preparation
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.sums import STEPS, Measurement, NoisySums, variance_left
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.theory.concentrated import gaussian_epsilon

SHAPE = DataShape(records=600, features=6, classes=2, clients=60, largest_client=10, smallest_client=10, bound=2**0.5)
HELD = replace(SHAPE, records=200, clients=20)
REACH = 10.0


def planned(kind: str = "dpsgd", held: DataShape | None = None, trust: Trust = CENTRAL, **evaluation: Any) -> Plan:
    tables = {
        "model": {"kind": "logistic", "radius": 4.0},
        "privacy": {"epsilon": 1.5, "delta": 1e-5, "neighbours": "zero-out"},
        "algorithm": {"kind": kind, **({"order": "public"} if kind == "hidden" else {})},
        "schedule": {"rounds": 5, "passes": 2} if kind == "hidden" else {},
        "evaluation": {"private": True, **evaluation},
    }
    study = replace(study_of(tables, base=Path(), data_given=True), trust=trust)
    return study.planned(SHAPE, 0 if held is None else held.records, held is None, held=held).plan


def counted(plan: Plan) -> Evaluation:
    assert plan.evaluation
    return plan.evaluation


class TestCost:
    @pytest.mark.parametrize("kind", ["hidden", "dpsgd"])
    def test_on_training_records_it_is_composed_exactly_with_training(self, kind: str) -> None:
        plan = planned(kind, share=0.2)
        parts = tuple(
            Gaussian(noise_multiplier=one.noise, neighbours="zero-out") for one in counted(plan).sums.measurements
        )
        if isinstance(plan.method, DpSgd):
            settings = plan.method.client_settings[0]
            training: Any = settings.charged(plan.method.sampling, plan.method.clipping, "zero-out")
        else:
            training = plan.run
        whole = account_for(Compose(parts=(training, *parts)), delta=1e-5).epsilon
        assert promise(plan, "final-model").epsilon == pytest.approx(whole, rel=2e-4)
        assert 1.5 * 0.998 < promise(plan, "final-model").epsilon <= 1.5

    def test_preparation_training_and_evaluation_are_one_composition(self) -> None:
        tables = {
            "model": {"kind": "logistic"},
            "privacy": {"epsilon": 1.5, "delta": 1e-5, "neighbours": "zero-out"},
            "algorithm": {"kind": "dpsgd", "rate": 0.1, "rounds": 20},
            "evaluation": {"share": 0.2},
        }
        study = study_of(tables, base=Path(), data_given=True)
        outline = Outline(numbers=("a", "b", "c", "d", "e"), texts=())
        preparation, _ = settle_preparation(PrepareRequest(kind="private"), outline, SHAPE, study.target, CENTRAL)
        plan = study.planned(SHAPE, preparation=preparation).plan
        assert isinstance(plan.method, DpSgd)
        measured = (*preparation.measurements, *counted(plan).sums.measurements)
        parts = tuple(Gaussian(noise_multiplier=one.noise, neighbours="zero-out") for one in measured)
        training = plan.method.client_settings[0].charged(plan.method.sampling, plan.method.clipping, "zero-out")
        whole = account_for(Compose(parts=(training, *parts)), delta=1e-5).epsilon
        assert promise(plan, "final-model").epsilon == pytest.approx(whole, rel=2e-4)
        assert read_plan(write_plan(plan)) == plan

    def test_every_observer_is_charged(self) -> None:
        plan = planned()
        for adversary in ADVERSARIES:
            bare = promise(replace(plan, evaluation=NO_EVALUATION), adversary).epsilon
            assert promise(plan, adversary).epsilon > bare

    @pytest.mark.parametrize("adversary", ADVERSARIES)
    def test_held_out_records_are_charged_for_the_counts_alone(self, adversary: Adversary) -> None:
        plan = planned(held=HELD)
        assert not counted(plan).trains
        left = variance_left(adversary, HELD, plan.target, CENTRAL)
        mu = math.sqrt(sum(1 / (one.noise**2 * left) for one in counted(plan).sums.measurements))
        alone = gaussian_epsilon(mu, 1e-5)
        training = promise(replace(plan, evaluation=NO_EVALUATION), adversary).epsilon
        assert promise(plan, adversary).epsilon == pytest.approx(max(alone, training), rel=1e-3)

    def test_held_out_counts_meet_the_target_and_take_nothing_from_training(self) -> None:
        plan = planned(held=HELD)
        alone = counted(plan).answer("final-model", plan.data, plan.target, CENTRAL, 1e-5).epsilon
        assert 1.5 * 0.995 < alone <= 1.5
        bare = study_of(
            {
                "model": {"kind": "logistic", "radius": 4.0},
                "privacy": {"epsilon": 1.5, "delta": 1e-5, "neighbours": "zero-out"},
                "algorithm": {"kind": "dpsgd"},
            },
            base=Path(),
            data_given=True,
        ).planned(SHAPE, HELD.records, False)
        assert replace(plan, evaluation=NO_EVALUATION) == bare.plan

    def test_delta_at_an_epsilon_is_the_larger_of_the_two(self) -> None:
        plan = planned("hidden", held=HELD)
        whole = promise_at(plan, "final-model", 1.5).delta
        alone = promise_at(replace(plan, evaluation=NO_EVALUATION), "final-model", 1.5).delta
        assert alone <= whole <= 1e-5
        assert promise(plan, "final-model", whole * 1.001).epsilon <= 1.5

    def test_books_compose_it_exactly_where_the_counts_cost_most(self) -> None:
        """The bound of the counts is none of the hidden run's: asked for by its name alone, all of these are taken."""
        plan = planned("hidden", held=HELD)
        asked = promise_at(plan, "final-model", 1.0, ["gaussian"]).delta
        assert asked == promise_at(plan, "final-model", 1.0).delta < 1

    def test_a_plan_reads_back_and_has_another_name(self) -> None:
        for plan in (planned(), planned(held=HELD)):
            assert read_plan(write_plan(plan)) == plan
            assert "[evaluation]" not in write_plan(replace(plan, evaluation=NO_EVALUATION))
            assert replace(plan, evaluation=NO_EVALUATION).hash != plan.hash


class TestContributions:
    @pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
    @pytest.mark.parametrize("classes", [2, 4])
    def test_no_record_moves_a_sum_by_more_than_is_charged(self, neighbours: Any, classes: int) -> None:
        draw = np.random.default_rng(0)
        target = Target(epsilon=1.0, delta=1e-5, neighbours=neighbours)
        scores = draw.normal(size=(50, 1 if classes == 2 else classes)) * 5
        labels = draw.integers(0, classes, 50).astype(np.float64)
        if classes == 2:
            add_up = score_counts(margins(scores), labels, even(8, REACH))
        else:
            add_up = class_counts(loss_named("softmax", classes=4), scores, labels, classes, 10)
        bound = contribution(1 if classes == 2 else 2, target) * STEPS
        for one in range(50):
            mine = add_up(np.array([one]))
            others = [np.zeros_like(mine)] if neighbours == "zero-out" else [add_up(np.array([k])) for k in range(50)]
            charged = bound * (1 if neighbours == "zero-out" else 2)
            for other in others:
                moved = int(((mine - other) ** 2).sum())  # exact
                assert moved <= charged**2 * (1 + 1e-15)

    def test_borders_have_as_many_records_each_and_zero_among_them(self) -> None:
        draw = np.random.default_rng(1)
        margin = draw.normal(2.0, 0.5, 10_000)
        rough = even(64, REACH)
        counts = places_counts(margin, rough)(np.arange(10_000)) / STEPS
        borders = borders_of(counts, 1.0, rough, 8, REACH)
        assert borders.size == 7
        assert 0.0 in borders
        sizes = np.bincount(np.searchsorted(borders, margin), minlength=8)
        assert sizes[1:].max() < 2500
        empty = borders_of(np.zeros(64), 1.0, rough, 7, REACH)
        assert empty.size == 6
        assert 0.0 in empty


def exact(count: int = 4000) -> tuple[TwoClasses, Any, Any]:
    """Counts without noise to speak of, and what scikit-learn needs."""
    draw = np.random.default_rng(2)
    labels = (draw.random(count) < 0.3).astype(np.float64)
    margin = np.clip(draw.normal(size=count) * 1.5 + 2 * labels - 1, -REACH, REACH)
    borders = even(128, REACH)
    counts = score_counts(margin, labels, borders)(np.arange(count)) / STEPS
    found = Counts(values=counts, deviation=1e-6)
    return TwoClasses(counts=found, borders=borders, reach=REACH, probable=True, names=["no", "yes"]), margin, labels


class TestEstimates:
    def test_without_noise_they_are_scikit_learns(self) -> None:
        two, margin, labels = exact()
        told = two.metrics()
        said = 1 / (1 + np.exp(-margin))
        assert told["auc"] == pytest.approx(roc_auc_score(labels, margin), abs=2e-3)
        assert told["accuracy"] == pytest.approx(accuracy_score(labels, margin > 0), abs=1e-12)
        assert told["recall"]["yes"] == pytest.approx(recall_score(labels, margin > 0), abs=1e-12)
        assert told["log_loss"] == pytest.approx(log_loss(labels, said), rel=1e-2)
        assert told["brier"] == pytest.approx(brier_score_loss(labels, said), rel=1e-2)
        assert told["calibration"]["bias"] == pytest.approx(labels.mean() - said.mean(), abs=2e-3)
        assert told["baseline"]["class"] == "no"
        for name in ("auc", "accuracy", "log_loss", "brier"):
            low, high = told["intervals"][name]
            assert low < told[name] < high

    def test_an_interval_is_as_wide_as_delong_and_wilson_where_there_is_no_noise(self) -> None:
        from fedveil.models.intervals import area, around, wilson

        two, margin, labels = exact()
        told = two.metrics()
        value, influence = area(margin, labels == 1)
        expected = around(value, influence)
        assert expected is not None
        assert told["intervals"]["auc"][0] == pytest.approx(expected[0], abs=2e-2)  # ties are open
        assert told["intervals"]["auc"][1] == pytest.approx(expected[1], abs=2e-2)
        assert told["intervals"]["accuracy"] == pytest.approx(wilson(told["accuracy"], labels.size), abs=1e-3)

    def test_of_many_classes_without_noise(self) -> None:
        draw = np.random.default_rng(3)
        scores = draw.normal(size=(3000, 4))
        labels = np.where(draw.random(3000) < 0.6, scores.argmax(axis=1), draw.integers(0, 4, 3000)).astype(np.float64)
        counts = class_counts(loss_named("softmax", classes=4), scores, labels, 4, 10)(np.arange(3000)) / STEPS
        told = many_classes(Counts(values=counts, deviation=1e-6), 4, 10, list("abcd"), True)
        assert told["accuracy"] == pytest.approx(accuracy_score(labels, scores.argmax(axis=1)))
        recalls = recall_score(labels, scores.argmax(axis=1), average=None)
        assert [told["recall"][name] for name in "abcd"] == pytest.approx(recalls.tolist())

    def test_counts_that_are_all_noise_say_nothing(self) -> None:
        found = Counts(values=np.random.default_rng(4).normal(size=16) * 100, deviation=100.0)
        two = TwoClasses(counts=found, borders=even(8, REACH), reach=REACH, probable=True, names=["no", "yes"])
        told = two.metrics()
        assert told["intervals"]["auc"] == (0.0, 1.0)
        assert told["intervals"]["accuracy"] == (0.0, 1.0)

    def test_the_truth_lies_within_its_interval(self) -> None:
        """Of 95% intervals at least 85 of 100 hold the truth but for a chance below 1e-6; records are drawn too."""
        repeats, least = 100, 82
        assert binom.cdf(least - 1, repeats, 0.95) < 1e-6
        draw, truth = np.random.default_rng(5), float(norm.cdf(1.5 / math.sqrt(2)))
        plan = replace(planned(share=0.5), data=replace(SHAPE, records=500, features=1, bound=1.0, clients=4))
        held = {"auc": 0, "accuracy": 0}
        for repeat in range(repeats):
            labels = (draw.random(500) < 0.5).astype(np.float64)
            rows = np.clip((draw.normal(size=500) + 1.5 * (labels - 0.5)) / REACH, -1, 1)[:, None]
            owner = np.sort(np.arange(500) % 4).astype(np.int64)
            records = Records(features=rows, targets=labels, owner=owner, clients=4, bound=1.0, classes=2)
            loaded = Loaded(train=records, test=None, test_public=True, dropped_rows=0, feature_names=("score",))
            found = evaluated(plan, loaded, np.array([REACH]), Entropy.from_seed(repeat))["intervals"]
            held["auc"] += found["auc"][0] <= truth <= found["auc"][1]
            held["accuracy"] += found["accuracy"][0] <= norm.cdf(0.75) <= found["accuracy"][1]
        assert min(held.values()) >= least, held


class TestRefusals:
    @pytest.mark.parametrize(
        ("table", "sentence"),
        [
            ({"private": "yes"}, r"evaluation\.private must be true or false"),
            ({"records": "test"}, r"evaluation\.records must be one of training, held-out, got 'test'"),
            ({"share": 1.0}, r"evaluation\.share must lie strictly between 0 and 1, got 1\.0"),
            ({"share": math.nan}, r"evaluation\.share must lie strictly between 0 and 1"),
            ({"bins": 2}, r"evaluation\.bins must lie between 4 and 128"),
            ({"private": False, "bins": 8}, r"evaluation\.private must be true where the evaluation is described"),
            ({"epsilon": 1.0}, r"Key 'epsilon' must be known to \[evaluation\]"),
        ],
    )
    def test_a_bad_table_is_one_sentence(self, table: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            planned(**{"private": True, **table})

    def test_beside_a_tuned_study_or_a_threshold_that_the_study_states(self) -> None:
        tables: dict[str, Any] = {
            "model": {"kind": "logistic", "decision_threshold": 0.3},
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "algorithm": {"kind": "dpsgd"},
        }
        for more, sentence in (
            ({"evaluation": {}}, r"model\.decision_threshold must be left out with a private evaluation, got 0\.3"),
            ({"personal": {}}, r"model\.decision_threshold must be left out with \[personal\], got 0\.3"),
        ):
            with pytest.raises(ValueError, match=sentence):
                study_of({**tables, **more}, base=Path(), data_given=True).planned(SHAPE)
        tuned = {**tables, "model": {"kind": "logistic"}, "tune": {"space": {"model.l2": [0.0, 0.01]}}}
        for name in ("evaluation", "personal"):
            with pytest.raises(ValueError, match=rf"\[{name}\] must be left out with \[tune\]"):
                study_of({**tuned, name: {}}, base=Path(), data_given=True).planned(SHAPE, 100, True)

    def test_without_private_held_out_records(self) -> None:
        with pytest.raises(ValueError, match=r"evaluation\.records must find held-out records that are not public"):
            planned(records="held-out")

    def test_of_a_number_it_has_no_parts(self) -> None:
        tables = {"model": {"kind": "huber"}, "privacy": {"epsilon": 1.0, "delta": 1e-5}, "evaluation": {"bins": 8}}
        with pytest.raises(ValueError, match=r"evaluation\.bins must be left out with a model of a number, got 8"):
            study_of(tables, base=Path(), data_given=True).planned(replace(SHAPE, classes=0))

    def test_measurements_of_one_kind_do_not_pass_for_the_other(self) -> None:
        with pytest.raises(ValueError, match=r"prepare\.name must be one of ranges"):
            NoisySums.read(counted(planned()).sums.table())
        scores = Measurement(name="scores", size=16, bound=1.0, noise=2.0)
        ranges = Measurement(name="ranges", size=16, bound=1.0, noise=2.0)
        with pytest.raises(ValueError, match=r"prepare\.name must list"):
            NoisySums(measurements=(ranges, scores), share=0.1)

    def test_a_bound_below_what_a_record_adds(self) -> None:
        text = write_plan(planned())
        with pytest.raises(BadValue, match=r"evaluation\.places must have a bound of at least 1\.0"):
            read_plan(text.replace("bound = [1.0, 1.0]", "bound = [0.5, 1.0]"))
