"""Poisson regression: proved constants, the likelihood of counts, and runs on counts in their own unit."""

import json
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

from fedveil.data.records import DataShape
from fedveil.jobs.local import plan_study, run_study
from fedveil.models.margin import Poisson, count_shares
from fedveil.models.metrics import deviance
from fedveil.models.rows import rounding_bound
from fedveil.models.spec import ModelPlan
from fedveil.planning.study import study_of
from fedveil.release.model import load_model
from unit.exports import check_exports

LOSSES = [Poisson(), Poisson(0.01), Poisson(1.0)]


def drawn(seed: int, rows: int = 40) -> tuple[Any, Any, Any]:
    """Parameters of any size, rows of norm at most 2, targets beyond their range too."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    X *= (2.0 * rng.random(rows) / np.linalg.norm(X, axis=1))[:, None]
    return rng.normal(size=3) * 10 ** rng.uniform(-1, 1), X, rng.uniform(-1.5, 1.5, rows)


class TestLaws:
    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    @pytest.mark.parametrize("seed", range(20))
    def test_constants_are_never_exceeded_and_steps_bring_models_no_further_apart(
        self, loss: Poisson, seed: int
    ) -> None:
        w, X, y = drawn(seed)
        rng = np.random.default_rng(seed + 1000)
        for clip in (1.0, 1.3, 2.0):
            promised = loss.constants(2.0, clip)
            for row in range(10):
                one, target = X[row : row + 1], y[row : row + 1]
                apart = rng.normal(size=3) * 10 ** rng.uniform(-3, 1.5)
                here, there = (loss.gradient(v, one, target, clip=clip)[0] for v in (w, w + apart))
                assert np.linalg.norm(here) <= promised.lipschitz * (1 + 1e-12)
                change = there - here
                assert promised.smoothness is not None
                assert np.linalg.norm(change) <= promised.smoothness * np.linalg.norm(apart) * (1 + 1e-9) + 1e-15
                # cocoercive: the gradient of a convex and smooth function
                assert change @ apart >= change @ change / promised.smoothness - 1e-12

    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    def test_the_gradient_is_that_of_the_value(self, loss: Poisson) -> None:
        w, X, y = drawn(3)
        w = w / np.linalg.norm(w)
        found = loss.gradient(w, X, y, clip=1e9)[0] / len(y)
        for place in range(3):
            step = np.zeros(3)
            step[place] = 1e-6
            slope = (loss.value(w + step, X, y) - loss.value(w - step, X, y)) / 2e-6
            assert found[place] == pytest.approx(slope, abs=1e-7)

    def test_it_is_within_the_rounding_bound_of_exact_arithmetic(self) -> None:
        loss, (w, X, y) = Poisson(0.1), drawn(5, 1)
        mpmath.mp.dps = 60
        z = mpmath.fsum(mpmath.mpf(a) * mpmath.mpf(b) for a, b in zip(X[0], w, strict=True))
        slope = min(mpmath.mpf(0.1) * mpmath.exp(z), mpmath.mpf(1)) - mpmath.mpf(float(count_shares(y)[0]))
        exact = [float(slope * mpmath.mpf(value)) for value in X[0]]
        constants = loss.constants(2.0, 2.0)
        room = rounding_bound(
            rows=1,
            features=3,
            lipschitz=constants.lipschitz,
            smoothness=constants.smoothness,
            radius=float(np.linalg.norm(w)),
        )
        assert np.linalg.norm(loss.gradient(w, X, y, clip=2.0)[0] - exact) <= room + 1e-16

    def test_clips_whose_rounding_is_not_proved_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"model\.clip must be at least 1, half of the bound, for counts"):
            Poisson().constants(2.0, 0.9)

    def test_a_blank_record_adds_nothing(self) -> None:
        w, X, y = drawn(1)
        whole = Poisson().gradient(w, X, y, clip=2.0)[0]
        more, left = Poisson().gradient(w, np.vstack([X, np.zeros(3)]), np.append(y, np.nan), clip=2.0)
        assert left == 1
        assert more == pytest.approx(whole, abs=1e-12)


def test_its_minimiser_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (3000, 2))
    counts = np.minimum(rng.poisson(np.exp(0.5 + X @ [0.8, -0.5])), 40)
    rows, targets, loss = np.column_stack([X, np.ones(3000)]), 2 * counts / 40 - 1, Poisson(0.1)

    def value(w: Any) -> Any:
        return loss.value(w, rows, targets), loss.gradient(w, rows, targets, clip=1e9)[0] / 3000

    found = minimize(value, np.zeros(3), jac=True, method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-9}).x
    theirs = PoissonRegressor(alpha=0.0, tol=1e-9, max_iter=500).fit(X, counts)
    assert found[:2] == pytest.approx(theirs.coef_, abs=1e-4)
    assert found[2] + math.log(40 * 0.1) == pytest.approx(theirs.intercept_, abs=1e-4)
    expected = 20 * (loss.predict(found, rows) + 1)
    assert expected == pytest.approx(theirs.predict(X), rel=1e-3)
    assert deviance(counts, expected) == pytest.approx(mean_poisson_deviance(counts, expected), rel=1e-12)


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on counts of visits."""
    home, rng = tmp_path_factory.mktemp("visits"), np.random.default_rng(0)
    age = rng.uniform(20, 90, 3000)
    count = rng.poisson(np.exp(0.2 + 1.6 * (age - 55) / 35))
    (home / "visits.csv").write_text(
        "age,visits\n" + "".join(f"{a:.2f},{c}\n" for a, c in zip(age, count, strict=True))
    )
    run_study(tables(home), home / "out")
    return home


def tables(home: Path) -> dict[str, Any]:
    return {
        "study": {"seed": 1},
        "data": {
            "source": str(home / "visits.csv"),
            "target": "visits",
            "target_scale": [0, 20],
            "feature_bound": 1.0,
            "scale": {"age": [20, 90]},
            "held_out": {"fraction": 0.3, "public": True},
        },
        "clients": {"kind": "equal", "count": 5},
        "model": {"kind": "poisson"},
        "privacy": {"epsilon": 2.0, "delta": 1e-5, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 60},
    }


class TestRuns:
    def test_counts_are_predicted_and_measured_in_their_own_unit(self, visits: Path) -> None:
        test = json.loads((visits / "out" / "metrics.json").read_text())["test"]
        assert test["deviance"] < 0.8 * test["baseline"]["deviance"]
        assert test["mae"] < test["baseline"]["mae"]
        model = load_model(visits / "out")
        young, old = model.predict({"age": [25.0, 85.0]})
        assert 0 < young < 1.5 < old <= 20
        assert "Poisson deviance" in (visits / "out" / "report.html").read_text()

    def test_exports_give_the_same_counts(self, visits: Path) -> None:
        model = load_model(visits / "out")
        X = np.linspace(-50.0, 200.0, 60)[:, None]
        check_exports(model, X, model.predict(X), {})

    def test_hidden_and_federated_training_plan_for_it_too(self, visits: Path) -> None:
        for kind in ("hidden", "fedavg", "simfl"):
            given = tables(visits) | {"algorithm": {"kind": kind}}
            if kind == "fedavg":
                given["privacy"] = {**given["privacy"], "unit": "client", "epsilon": 20.0}
            plan = plan_study(given).plan
            assert (plan.constants.lipschitz, plan.constants.convex) == (pytest.approx(2**0.5, rel=1e-6), True)

    def test_one_sentence_for_each_mistake(self, visits: Path) -> None:
        for key, value, sentence in (
            ("data", {"target_scale": [1, 20]}, r"data\.target_scale must begin at 0 for a poisson model, got 1"),
            ("model", {"rate": 2.0}, r"Poisson\.rate must lie in \[1e-6, 1\], got 2\.0"),
            ("model", {"rate": math.nan}, r"model\.rate must lie in \[1e-9, 1e9\], got nan"),
            ("model", {"clip": 0.1}, r"model\.clip must be at least"),
            (
                "algorithm",
                {"clip": "adaptive"},
                r"algorithm\.clip must be a number for a poisson model, got 'adaptive'",
            ),
        ):
            given = tables(visits)
            given[key] = {**given[key], **value}
            with pytest.raises(ValueError, match=sentence):
                plan_study(given)
        with pytest.raises(ValueError, match=r"rate must be left out with a kind other than poisson, got 0\.5"):
            ModelPlan(kind="huber", rate=0.5)
        shape = DataShape(
            records=600, features=2, classes=2, clients=6, largest_client=100, smallest_client=100, bound=1.0
        )
        study = study_of(
            {"model": {"kind": "poisson"}, "privacy": {"epsilon": 1, "delta": 1e-5}}, base=Path(), data_given=True
        )
        with pytest.raises(ValueError, match=r"classes must be 0 for a poisson loss, got 2"):
            study.planned(shape)
