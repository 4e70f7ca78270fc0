"""Losses: refusals, extremes, records that are no numbers, names, metrics."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.core.values import Vector
from fedveil.models.loss import Constants, Loss, with_l2
from fedveil.models.margin import Huber, Logistic, SmoothedHinge
from fedveil.models.metrics import accuracy, mean_absolute_error, r2, scores
from fedveil.models.rows import row_norms
from fedveil.models.softmax import Softmax
from fedveil.models.spec import KINDS, LINEAR, ModelPlan, loss_named

LOSSES: list[Loss] = [Logistic(), SmoothedHinge(0.5), Huber(2.0), Softmax(3)]
every = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def batch(loss: Loss, rows: int = 8, features: int = 4) -> tuple[Vector, Vector, Vector]:
    rng = np.random.default_rng(5)
    w, X = rng.normal(size=loss.size(features)), rng.normal(size=(rows, features))
    return w, X, rng.integers(0, 2, rows).astype(float)


class TestConstants:
    @pytest.mark.parametrize(
        ("loss", "lipschitz", "smoothness"),
        [
            (Logistic(), 3.0, 9 / 4),
            (Softmax(10), 3 * math.sqrt(2), 9 / 2),
            (SmoothedHinge(0.5), 3.0, 18.0),
            (Huber(0.7), 2.1, 9.0),
        ],
        ids=repr,
    )
    def test_as_derived(self, loss: Loss, lipschitz: float, smoothness: float) -> None:
        natural = loss.constants(3.0, None)
        assert (natural.lipschitz, natural.smoothness) == pytest.approx((lipschitz, smoothness), rel=1e-15)
        assert natural.convex
        assert natural.strong_convexity == 0
        assert loss.constants(3.0, 0.5).lipschitz == 0.5
        assert loss.constants(3.0, 100.0) == natural

    @every
    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    def test_senseless_bounds_are_refused(self, loss: Loss, bad: float) -> None:
        with pytest.raises(BadValue, match="bound must be finite and positive"):
            loss.constants(bad, None)
        with pytest.raises(BadValue, match="clip must lie in"):
            loss.constants(1.0, bad)
        w, X, y = batch(loss)
        with pytest.raises(BadValue, match="clip must lie in"):
            loss.gradient(w, X, y, clip=bad)

    def test_l2_adds_to_both_ends_of_the_curvature(self) -> None:
        whole = with_l2(Constants(lipschitz=1.0, smoothness=2.0, strong_convexity=0.25), 0.5)
        assert whole == Constants(lipschitz=1.0, smoothness=2.5, strong_convexity=0.75)

    def test_l2_does_not_make_convex_what_is_not(self) -> None:
        whole = with_l2(Constants(lipschitz=1.0, smoothness=2.0, convex=False), 0.5)
        assert whole == Constants(lipschitz=1.0, smoothness=2.5, convex=False)

    @pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
    def test_senseless_l2_is_refused(self, bad: float) -> None:
        with pytest.raises(BadValue, match="l2 must be finite and non-negative"):
            with_l2(Constants(lipschitz=1.0, smoothness=2.0), bad)

    @pytest.mark.parametrize(
        "bad",
        [
            {"lipschitz": 0.0},
            {"lipschitz": math.nan},
            {"smoothness": math.inf},
            {"smoothness": -1.0},
            {"strong_convexity": 3.0},
            {"strong_convexity": 1.0, "convex": False},
        ],
    )
    def test_senseless_constants_are_refused(self, bad: dict[str, float]) -> None:
        with pytest.raises(BadValue, match=r"Constants\.\w+ must"):
            Constants(**({"lipschitz": 1.0, "smoothness": 2.0} | bad))  # type: ignore[arg-type]


class TestNotNumbers:
    """A record that is no number contributes nothing, is counted, and spoils nobody else's part."""

    @every
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_in_a_row(self, loss: Loss, bad: float, weighted: bool) -> None:
        w, X, y = batch(loss)
        weights = np.linspace(0.5, 2.0, 8) if weighted else None
        keep = np.arange(8) != 3
        without, none = loss.gradient(w, X[keep], y[keep], clip=0.5, weights=None if weights is None else weights[keep])
        X[3, 1] = bad
        found, dropped = loss.gradient(w, X, y, clip=0.5, weights=weights)
        assert (none, dropped) == (0, 1)
        np.testing.assert_allclose(found, without, rtol=1e-13, atol=1e-15)

    @every
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_in_a_target(self, loss: Loss, bad: float) -> None:
        w, X, y = batch(loss)
        keep = np.arange(8) != 3
        without, _ = loss.gradient(w, X[keep], y[keep], clip=0.5)
        y[3] = bad
        found, dropped = loss.gradient(w, X, y, clip=0.5)
        assert dropped == 1
        np.testing.assert_allclose(found, without, rtol=1e-13, atol=1e-15)

    @pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge(), Softmax(2)], ids=repr)
    @pytest.mark.parametrize("bad", [-1.0, 0.5, 2.0, 1e300])
    def test_a_target_that_is_no_class(self, loss: Loss, bad: float) -> None:
        w, X, y = batch(loss)
        y[:] = bad
        found, dropped = loss.gradient(w, X, y, clip=0.5)
        assert dropped == 8
        assert not found.any()
        assert math.isnan(loss.value(w, X, y))

    @every
    def test_parameters(self, loss: Loss) -> None:
        w, X, y = batch(loss)
        w[:] = math.nan
        found, dropped = loss.gradient(w, X, y, clip=0.5)
        assert dropped == 8
        assert not found.any()


class TestExtremes:
    @every
    @pytest.mark.parametrize("size", [1e3, 1e16, 1e150, 1e300])
    def test_huge_scores(self, loss: Loss, size: float) -> None:
        w = np.zeros(loss.size(1))
        w[0] = size
        X, y = np.array([[1.0], [-1.0]]), np.array([1.0, 1.0])
        for sign in (1.0, -1.0):
            total = np.zeros(loss.size(1))
            for row in (0, 1):
                found, dropped = loss.gradient(sign * w, X[row : row + 1], y[row : row + 1], clip=0.5)
                assert dropped == 0
                assert np.linalg.norm(found) <= 0.5 * (1 + 1e-15)
                total += np.abs(found)
            expected = {"huber": 1.0, "softmax": math.sqrt(3) / 2}.get(loss.kind, 0.5)  # (1,-1,0) and (0,-1,1), cut
            assert np.linalg.norm(total) == pytest.approx(expected)
            assert loss.value(sign * w, X, y) >= 0
            assert np.isfinite(loss.predict(sign * w, X)).all()

    def test_small_gradients_keep_their_digits(self) -> None:
        """1 - p by subtraction would give zero here."""
        X, y = np.ones((1, 1)), np.ones(1)
        found, _ = Logistic().gradient(np.array([100.0]), X, y, clip=1.0)
        assert found[0] == pytest.approx(-math.exp(-100.0), rel=1e-14)
        pair, _ = Softmax(2).gradient(np.array([0.0, 100.0]), X, y, clip=1.0)
        assert pair == pytest.approx([math.exp(-100.0), -math.exp(-100.0)], rel=1e-14)

    @every
    def test_rows_of_zeros(self, loss: Loss) -> None:
        w, X, y = batch(loss)
        found, dropped = loss.gradient(w, 0 * X, y, clip=0.5)
        assert dropped == 0
        assert not found.any()

    @every
    def test_no_rows(self, loss: Loss) -> None:
        w, X, y = batch(loss)
        found, dropped = loss.gradient(w, X[:0], y[:0], clip=0.5, weights=y[:0])
        assert dropped == 0
        assert found.shape == w.shape
        assert not found.any()

    @every
    def test_nothing_given_is_changed(self, loss: Loss) -> None:
        w, X, y = batch(loss)
        given = [w, X, y, np.ones(8), row_norms(X)]
        before = [array.copy() for array in given]
        loss.gradient(w, X, y, clip=0.5, weights=given[3], norms=given[4])
        loss.value(w, X, y)
        for array, old in zip(given, before, strict=True):
            np.testing.assert_array_equal(array, old)


class TestRefusals:
    @every
    def test_arrays_that_do_not_belong_together(self, loss: Loss) -> None:
        w, X, y = batch(loss)
        with pytest.raises(BadValue, match="w must be a flat vector"):
            loss.gradient(w[1:], X, y, clip=1.0)
        with pytest.raises(BadValue, match="y must have one entry per row, 8"):
            loss.gradient(w, X, y[1:], clip=1.0)
        with pytest.raises(BadValue, match="weights must have one entry per row"):
            loss.gradient(w, X, y, clip=1.0, weights=np.ones(1))
        with pytest.raises(BadValue, match="norms must have one entry per row"):
            loss.gradient(w, X, y, clip=1.0, norms=np.ones(1))
        with pytest.raises(BadValue, match="weights must be finite"):
            loss.gradient(w, X, y, clip=1.0, weights=np.full(8, math.nan))

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e-10, "1", True])
    def test_senseless_shapes_of_losses(self, bad: float) -> None:
        with pytest.raises(BadValue, match=r"SmoothedHinge\.smoothing must"):
            SmoothedHinge(bad)
        with pytest.raises(BadValue, match=r"Huber\.threshold must"):
            Huber(bad)

    @pytest.mark.parametrize("bad", [0, 1, -3, 2.5, math.nan, 10**9])
    def test_senseless_classes(self, bad: int) -> None:
        with pytest.raises(BadValue, match=r"Softmax\.classes must"):
            Softmax(bad)


class TestNames:
    @pytest.mark.parametrize("kind", LINEAR)
    def test_every_name_gives_its_loss(self, kind: str) -> None:
        assert loss_named(kind, classes={"huber": 0, "poisson": 0, "softmax": 5}.get(kind, 2)).kind == kind

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_plan_knows_before_the_data_what_its_loss_will_be(self, kind: str) -> None:
        named = {"module": "a:b", "clip": 1.0, "parameters": 7} if kind == "torch" else {}
        plan = ModelPlan(kind=kind, classes={"huber": 0, "poisson": 0}.get(kind, 2), **named)  # type: ignore[arg-type]
        loss = plan.loss
        assert (plan.linear, plan.survival, plan.generates) == (loss.linear, loss.predicts == "survival", False)
        assert loss.code == ({"model.module": "a:b"} if kind == "torch" else {})
        if loss.linear:
            assert plan.size_known
            assert loss.size(3) == 3 * loss.outputs
            assert not loss.start(3).any()
            loss.check_sampling(3)

    def test_a_generator_predicts_rows(self) -> None:
        plan = ModelPlan.generator("a:b", clip=1.0, radius=None, precision=None)
        assert (plan.generates, plan.linear, plan.size_known) == (True, False, False)
        assert replace(plan, classes=2).loss.predicts == "row"

    @every
    def test_no_row_within_the_bound_has_a_larger_margin(self, loss: Loss) -> None:
        w, X, _ = batch(loss, rows=200)
        X *= 2.0 / row_norms(X)[:, None]
        scores = loss.scores(w, X)
        margin = scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]
        assert np.abs(margin).max() <= loss.largest_margin(w, 4, 2.0)

    def test_settings_arrive(self) -> None:
        assert loss_named("smoothed-hinge", setting=0.25) == SmoothedHinge(0.25)
        assert loss_named("huber", setting=3) == Huber(3.0)
        assert loss_named("smoothed-hinge", classes=2) == SmoothedHinge()
        assert loss_named("huber", classes=0) == Huber()

    @pytest.mark.parametrize(
        ("kind", "settings", "message"),
        [
            (
                "hinge",
                {},
                "loss must be one of logistic, .*survival, got 'hinge'",
            ),
            ("softmax", {}, "classes must be given"),
            ("logistic", {"classes": 3}, "classes must be 2 .* Use softmax"),
            ("smoothed-hinge", {"classes": 0}, "classes must be 2 .* Use huber"),
            ("huber", {"classes": 2}, "classes must be 0"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, kind: str, settings: dict[str, int], message: str) -> None:
        with pytest.raises(BadValue, match=message):
            loss_named(kind, **settings)  # type: ignore[arg-type]


class TestMetrics:
    X = np.array([[1.0], [2.0], [-1.0], [-2.0]])

    def test_classes(self) -> None:
        y = np.array([1.0, 0.0, 0.0, 0.0])
        assert accuracy(Logistic(), np.array([1.0]), self.X, y) == 0.75
        assert accuracy(Softmax(2), np.array([0.0, 1.0]), self.X, y) == 0.75
        assert scores(Logistic(), np.zeros(1), self.X, y) == {"loss": pytest.approx(math.log(2)), "accuracy": 0.75}

    def test_regression(self) -> None:
        y = np.array([2.0, 1.0, -1.0, -2.0])
        found = scores(Huber(10.0), np.array([1.0]), self.X, y)
        assert found == {"loss": 0.25, "r2": pytest.approx(0.8), "mean_absolute_error": 0.5}
        assert math.isnan(r2(Huber(), np.array([1.0]), self.X, np.ones(4)))

    def test_what_does_not_apply_is_refused(self) -> None:
        with pytest.raises(BadValue, match="loss must be one for classes"):
            accuracy(Huber(), np.zeros(1), self.X, np.zeros(4))
        with pytest.raises(BadValue, match="loss must be one for regression"):
            mean_absolute_error(Logistic(), np.zeros(1), self.X, np.zeros(4))
        with pytest.raises(BadValue, match="X must have at least one row"):
            accuracy(Logistic(), np.zeros(1), self.X[:0], np.zeros(0))
