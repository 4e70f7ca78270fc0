"""Discrete-time survival: a person is one record, clipped as a whole; the likelihood of what was seen of it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from fedveil.jobs.local import plan_study, run_study
from fedveil.models.margin import Logistic
from fedveil.models.survival import Survival, concordance, constant_loss, labels, risks, survivals
from fedveil.release.model import load_model
from fedveil.release.predicting import predict_file
from unit.exports import check_exports

T = 4
LOSS = Survival(2 * T)


def drawn(seed: int, rows: int = 30) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    X *= (2.0 * rng.random(rows) / np.linalg.norm(X, axis=1))[:, None]
    return rng.normal(size=3 * T) * 10 ** rng.uniform(-1, 1), X, rng.integers(0, 2 * T, rows).astype(float)


class TestLaws:
    @pytest.mark.parametrize("seed", range(20))
    def test_a_person_adds_at_most_the_clip_and_steps_bring_models_no_further_apart(self, seed: int) -> None:
        w, X, y = drawn(seed)
        rng = np.random.default_rng(seed + 1000)
        for clip in (0.1, 0.7, 2.0, 9.0):
            promised = LOSS.constants(2.0, clip)
            assert promised.smoothness is not None
            for row in range(10):
                one, target = X[row : row + 1], y[row : row + 1]
                apart = rng.normal(size=w.size) * 10 ** rng.uniform(-3, 1.5)
                here, there = (LOSS.gradient(v, one, target, clip=clip)[0] for v in (w, w + apart))
                assert np.linalg.norm(here) <= promised.lipschitz * (1 + 1e-12)
                change = there - here
                assert np.linalg.norm(change) <= promised.smoothness * np.linalg.norm(apart) * (1 + 1e-9)
                assert change @ apart >= change @ change / promised.smoothness - 1e-12

    def test_it_is_the_sum_of_logistic_losses_over_a_persons_intervals(self) -> None:
        w, X, y = drawn(3)
        table, total, height = w.reshape(3, T), np.zeros((3, T)), 0.0
        for row, code in zip(X, y.astype(int), strict=True):
            for interval in range(code // 2 + 1):
                happened = np.array([float(interval == code // 2 and code % 2 == 1)])
                own = row[None, :]
                total[:, interval] += Logistic().gradient(table[:, interval].copy(), own, happened, clip=1e9)[0]
                height += Logistic().value(table[:, interval].copy(), own, happened)
        assert LOSS.gradient(w, X, y, clip=1e9)[0] == pytest.approx(total.ravel(), abs=1e-12)
        assert LOSS.value(w, X, y) == pytest.approx(height / len(y), rel=1e-12)

    def test_a_blank_record_and_an_unknown_class_add_nothing(self) -> None:
        w, X, y = drawn(1)
        whole = LOSS.gradient(w, X, y, clip=2.0)[0]
        more = np.append(y, [np.nan, 99.0])
        found, left = LOSS.gradient(w, np.vstack([X, np.zeros((2, 3))]), more, clip=2.0)
        assert left == 2
        assert found == pytest.approx(whole, abs=1e-12)

    def test_its_minimiser_is_logistic_regression_on_person_periods(self) -> None:
        rng = np.random.default_rng(0)
        X = np.column_stack([rng.uniform(-1, 1, (2000, 2)), np.ones(2000)])
        y = rng.integers(0, 2 * T, 2000).astype(float)

        def value(w: Any) -> Any:
            return LOSS.value(w, X, y), LOSS.gradient(w, X, y, clip=1e9)[0] / 2000

        found = minimize(value, np.zeros(3 * T), jac=True, method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-8}).x
        for interval in range(T):
            entered = y // 2 >= interval
            died = (y // 2 == interval) & (y % 2 == 1)
            theirs = LogisticRegression(C=1e9, fit_intercept=False, tol=1e-9).fit(X[entered], died[entered])
            assert found.reshape(3, T)[:, interval] == pytest.approx(theirs.coef_[0], abs=2e-3)


class TestMeasures:
    def test_concordance_counts_all_pairs_whose_order_is_known(self) -> None:
        rng = np.random.default_rng(0)
        risk, targets = rng.integers(0, 5, 60).astype(float), rng.integers(0, 2 * T, 60)
        right = pairs = 0.0
        for i in range(60):
            for j in range(60):
                first = targets[i] % 2 == 1 and (
                    targets[j] // 2 > targets[i] // 2 or (targets[j] // 2 == targets[i] // 2 and targets[j] % 2 == 0)
                )
                if first:
                    pairs += 1
                    right += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
        assert concordance(risk, targets) == pytest.approx(right / pairs, rel=1e-12)
        assert concordance(risk, np.zeros(60, dtype=np.int64)) is None

    def test_the_life_table_is_the_best_constant(self) -> None:
        rng = np.random.default_rng(1)
        targets = rng.integers(0, 2 * T, 500)
        rows = np.ones((500, 1))
        hazards = [np.mean(targets[targets // 2 >= k] == 2 * k + 1) for k in range(T)]
        w = np.array([math.log(h / (1 - h)) for h in hazards])
        assert constant_loss(targets, T) == pytest.approx(LOSS.value(w, rows, targets.astype(float)), rel=1e-12)

    def test_chances_and_risks_belong_together(self) -> None:
        w, X, _ = drawn(2)
        scores = LOSS.scores(w, X)
        hazards = 1 / (1 + np.exp(-scores))
        assert survivals(scores) == pytest.approx(np.cumprod(1 - hazards, axis=1), rel=1e-9)
        assert risks(scores) == pytest.approx(1 - np.prod(1 - hazards, axis=1), abs=1e-12)

    def test_labels_from_times_and_events(self) -> None:
        assert labels([1.0, 1.0, 2.5, 5.0, 5.0], [True, False, True, True, False], [1, 2, 3]) == [
            "1",
            "1+",
            "3",
            "3+",
            "3+",
        ]
        with pytest.raises(ValueError, match="ends must be finite and rise"):
            labels([1.0], [True], [2, 1])
        with pytest.raises(ValueError, match="times must be finite and not negative"):
            labels([math.nan], [True], [1])


def tables(home: Path) -> dict[str, Any]:
    return {
        "study": {"seed": 1},
        "data": {
            "source": str(home / "patients.csv"),
            "target": "seen",
            "classes": ["1+", "1", "2+", "2", "3+", "3"],
            "client_column": "region",
            "feature_bound": 1.0,
            "default_scale": [-3, 3],
            "held_out": {"fraction": 0.3, "public": True},
        },
        "clients": {"kind": "column"},
        "model": {"kind": "survival"},
        "privacy": {"epsilon": 6.0, "delta": 1e-4, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 40},
    }


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like TCGA-BRCA: about 1088 patients with 39 columns in six regions of different sizes."""
    home, rng = tmp_path_factory.mktemp("regions"), np.random.default_rng(0)
    sizes = [311, 196, 206, 162, 162, 51]
    X = rng.normal(size=(sum(sizes), 39))
    died = rng.exponential(8.0 * np.exp(-1.2 * X[:, 0] + 0.8 * X[:, 1]))
    lost = rng.uniform(2, 15, sum(sizes))
    seen = labels(np.minimum(died, lost), died <= lost, [3, 6, 12])
    names = np.repeat([f"region {k}" for k in range(6)], sizes)
    head = ",".join(["region", *(f"x{k}" for k in range(39)), "seen"])
    rows = [
        ",".join([name, *(f"{v:.3f}" for v in row), label])
        for name, row, label in zip(names, X, seen, strict=True)
        if label != "0+"
    ]
    (home / "patients.csv").write_text("\n".join([head, *rows]) + "\n")
    run_study(tables(home), home / "out")
    return home


class TestRuns:
    def test_six_regions_train_a_model_that_ranks_patients(self, regions: Path) -> None:
        test = json.loads((regions / "out" / "metrics.json").read_text())["test"]
        assert test["concordance"] > 0.6
        assert test["baseline"]["kind"] == "life table"
        assert set(test["per_client"]) == {f"region {k}" for k in range(6)}
        assert "concordance index" in (regions / "out" / "report.html").read_text()

    def test_predictions_are_risks(self, regions: Path, tmp_path: Path) -> None:
        model = load_model(regions / "out")
        row = {f"x{k}": [0.0, 0.0] for k in range(39)} | {"x0": [2.0, -2.0]}
        high, low = model.predict(row)
        assert 0 <= low < high <= 1
        chances = model.predict_survival(row)
        assert chances.shape == (2, 3)
        assert np.all(np.diff(chances, axis=1) <= 0)
        assert 1 - chances[:, -1] == pytest.approx([high, low])
        found = predict_file(model, str(regions / "patients.csv"), tmp_path / "risks.csv")
        assert found.counts is None
        assert found.columns == ("prediction",)

    def test_exports_give_the_same_risks(self, regions: Path) -> None:
        model = load_model(regions / "out")
        X = np.random.default_rng(3).normal(size=(60, 39)) * 3
        check_exports(model, X, model.predict(X), {"survival": model.predict_survival(X)})

    def test_one_sentence_for_each_mistake(self, regions: Path) -> None:
        for key, value, sentence in (
            ("data", {"classes": ["1+", "1", "2+"]}, r"Survival\.classes must be two for each of 1 to 200 intervals"),
            ("algorithm", {"clip": "adaptive"}, r"algorithm\.clip must be a number for a survival model"),
            ("evaluation", {"records": "training"}, r"\[evaluation\] must be left out with a survival model"),
            ("personal", {}, r"\[personal\] must be left out with a survival model"),
        ):
            given = tables(regions)
            given[key] = {**given.get(key, {}), **value}
            if key == "data":
                lines = (regions / "patients.csv").read_text().splitlines()
                kept = [line for line in lines if line.rsplit(",", 1)[1] in ("seen", "1+", "1", "2+")]
                (regions / "few.csv").write_text("\n".join(kept) + "\n")
                given["data"]["source"] = str(regions / "few.csv")
            with pytest.raises(ValueError, match=sentence):
                plan_study(given)

    def test_hidden_runs_plan_for_it_too(self, regions: Path) -> None:
        plan = plan_study(tables(regions) | {"algorithm": {"kind": "hidden", "order": "public"}}).plan
        assert plan.dimension == 40 * 3
        assert plan.constants.convex
