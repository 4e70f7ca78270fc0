"""A party's own model: fitted towards the shared one, kept only if it pays, and a bundle like any other."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedveil.certificate.certify import certify
from fedveil.cli import main
from fedveil.core.errors import BadValue
from fedveil.data.records import DataShape
from fedveil.jobs.attack.audit import Effort, audit_run
from fedveil.jobs.local import run_study
from fedveil.jobs.personal import Own, best_threshold, fitted, personal, personalise
from fedveil.jobs.private_personal import personalise_privately
from fedveil.models.personal_request import SHARED_ALONE, PersonalRequest
from fedveil.models.spec import loss_named
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.planning.study import study_of
from fedveil.release.bundle import Bundle
from fedveil.release.export import export_model
from fedveil.release.model import load_model
from fedveil.release.personal import Personal, decide
from fedveil.version import __version__

LOSS = loss_named("logistic", classes=2)
SHAPE = DataShape(records=600, features=6, classes=2, clients=6, largest_client=100, smallest_client=100, bound=2**0.5)


def party(count: int, weights: Any, seed: int = 0, noise: float = 1.0) -> tuple[Any, Any]:
    """Records of a party whose labels follow these weights."""
    draw = np.random.default_rng(seed)
    rows = np.column_stack([draw.uniform(-1, 1, (count, 3)) / 2, np.ones(count)])
    return rows, (rows @ np.asarray(weights) + noise * draw.logistic(size=count) > 0).astype(np.float64)


class TestFit:
    def test_drawn_to_zero_it_is_ridge_regression(self) -> None:
        rows, labels = party(400, [4.0, -3.0, 0.0, 1.0])
        mine = fitted(LOSS, rows, labels, np.zeros(4), 0.01, np.zeros(4))
        theirs = LogisticRegression(C=1 / (0.01 * 400), fit_intercept=False, tol=1e-10).fit(rows, labels).coef_[0]
        assert mine == pytest.approx(theirs, abs=2e-3)

    def test_drawn_strongly_it_stays_at_the_shared_model(self) -> None:
        rows, labels = party(100, [4.0, -3.0, 0.0, 1.0])
        shared = np.array([1.0, 1.0, 1.0, 1.0])
        assert fitted(LOSS, rows, labels, shared, 1e6, shared) == pytest.approx(shared, abs=1e-5)

    def test_at_the_minimum_the_pull_balances_the_gradient(self) -> None:
        rows, labels = party(200, [2.0, 0.0, 1.0, 0.0])
        shared, strength = np.array([0.0, 1.0, 0.0, 0.0]), 0.05
        w = fitted(LOSS, rows, labels, shared, strength, shared)
        gradient = LOSS.gradient(w, rows, labels, clip=1e9)[0] / 200
        assert gradient == pytest.approx(-strength * (w - shared), abs=1e-3)

    def test_the_threshold_is_the_best_and_nearest_to_zero(self) -> None:
        margin, truth = np.array([-3.0, -2.0, -1.0, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
        found = best_threshold(margin, truth)
        assert found == -2.5
        assert decide(margin[:, None], found).tolist() == truth.tolist()
        assert best_threshold(np.array([-1.0, 1.0]), np.array([0.0, 1.0])) == 0.0


class TestChoice:
    def chosen(
        self, count: int, weights: Any, shared: Any, seed: int = 0, **asked: Any
    ) -> tuple[Personal, float, float]:
        rows, labels = party(count, weights, seed)
        own = Own(loss=LOSS, shared=np.asarray(shared, dtype=float), features=rows, targets=labels, bound=2.0)
        found = personal(own, PersonalRequest(**asked), "A")
        more, truth = party(20_000, weights, seed + 1000)
        rights = [
            float(np.mean(decide(LOSS.scores(w, more), threshold) == truth))
            for w, threshold in ((own.shared, 0.0), (found.parameters, found.threshold))
        ]
        return found, rights[0], rights[1]

    def test_a_party_unlike_the_others_gains(self) -> None:
        found, shared, own = self.chosen(300, [8.0, 0.0, 0.0, 0.0], [-4.0, 0.0, 0.0, 0.0])
        assert found.own
        assert own > shared + 0.2
        assert found.gain is not None
        assert found.gain > found.margin

    def test_with_few_records_it_is_never_worse_by_more_than_the_stated_margin(self) -> None:
        """The shared model is the truth, so that every change is a loss; parties of 10 to 80 records, seeds fixed."""
        for seed in range(8):
            weights = [3.0, -2.0, 1.0, 0.5]
            found, shared, own = self.chosen([10, 20, 40, 80][seed % 4], weights, weights, seed)
            assert own >= shared - found.margin

    def test_where_the_shared_model_is_right_it_is_mostly_kept(self) -> None:
        weights = [3.0, -2.0, 1.0, 0.5]
        kept = [not self.chosen(60, weights, weights, seed)[0].own for seed in range(4)]
        assert sum(kept) >= 3

    def test_too_few_to_choose_by(self) -> None:
        found, _, _ = self.chosen(9, [8.0, 0.0, 0.0, 0.0], [-4.0, 0.0, 0.0, 0.0])
        assert not found.own
        assert found.gain is None
        assert "nothing more than the shared model's certificate" in found.shown

    def test_only_the_ways_that_are_asked_for(self) -> None:
        for way in ("proximal", "mixture"):
            found, _, _ = self.chosen(300, [8.0, 0.0, 0.0, 0.0], [-4.0, 0.0, 0.0, 0.0], ways=(way,))
            assert (found.kind, found.threshold) == (way, 0.0)
        found, shared, own = self.chosen(300, [4.0, 0.0, 0.0, 3.0], [4.0, 0.0, 0.0, -3.0], ways=("threshold",))
        assert found.kind == "shared"
        assert found.threshold < 0
        assert own > shared

    def test_of_a_number_the_error_counts(self) -> None:
        draw, loss = np.random.default_rng(0), loss_named("huber", classes=0)
        rows = np.column_stack([draw.uniform(-1, 1, 200), np.ones(200)])
        own = Own(loss=loss, shared=np.array([-0.5, 0.0]), features=rows, targets=0.5 * rows[:, 0], bound=2.0)
        found = personal(own, PersonalRequest(), "A")
        assert found.own
        assert found.parameters[0] == pytest.approx(0.5, abs=0.1)


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three wards, one of which is the other way round; its data beside it."""
    home = tmp_path_factory.mktemp("wards")
    draw = np.random.default_rng(0)
    size, ward = draw.uniform(-1, 1, 900), np.array(["A", "B", "C"])[np.arange(900) % 3]
    way = np.where(ward == "C", -1.0, 1.0)
    ill = np.where(way * size + draw.normal(0.0, 0.3, 900) > 0, "yes", "no")
    rows = [f"{a:.4f},{b},{c}" for a, b, c in zip(size, ward, ill, strict=True)]
    (home / "all.csv").write_text("\n".join(["size,ward,ill", *rows]) + "\n")
    tables = {
        "data": {
            "source": str(home / "all.csv"),
            "target": "ill",
            "classes": ["no", "yes"],
            "client_column": "ward",
            "feature_bound": 1.0,
            "scale": {"size": [-1, 1]},
            "held_out": {"fraction": 0.3, "public": True},
        },
        "clients": {"kind": "column"},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 4.0, "delta": 1e-4, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 20},
        "personal": {},
    }
    run_study(tables, home / "out")
    return home


class TestRuns:
    def test_every_client_has_its_own_and_all_of_it_stays_private(self, wards: Path) -> None:
        told = json.loads((wards / "out" / "private" / "personal.json").read_text())["clients"]
        assert set(told) == {"A", "B", "C"}
        assert told["C"]["own_accuracy"] > told["C"]["shared_accuracy"] + 0.3
        own = [row["own_accuracy"] for row in told.values()]
        shared = [row["shared_accuracy"] for row in told.values()]
        assert np.mean(own) > np.mean(shared)
        mine = load_model(wards / "out" / "private" / "personal" / told["C"]["folder"])
        assert mine.predict({"size": [0.9, -0.9]}).tolist() == ["no", "yes"]
        assert "NOT PRIVATE if it is shown" in repr(mine)
        for path in (wards / "out").glob("*.*"):
            assert b"own_accuracy" not in path.read_bytes()
        home = wards / "out" / "private" / "personal"
        assert home.stat().st_mode & 0o077 == 0

    def test_the_certificate_says_what_own_models_tell_others(self, wards: Path) -> None:
        certificate = json.loads((wards / "out" / "certificate.json").read_text())
        assert certificate["personal"]["epsilon_if_shown"] is None
        assert "free" in certificate["personal"]["if_they_stay"]

    def test_at_a_party_from_its_file_or_a_sites(self, wards: Path, tmp_path: Path) -> None:
        found = personalise(wards / "out", "C", wards / "all.csv", tmp_path / "c", client_column="ward")
        assert found.chosen.records == 300
        assert found.model.predict({"size": [0.9, -0.9]}).tolist() == ["no", "yes"]
        assert (tmp_path / "c").stat().st_mode & 0o077 == 0
        lines = (wards / "all.csv").read_text().splitlines()
        own = [lines[0], *(line for line in lines if ",C," in line)]
        (tmp_path / "own.csv").write_text("\n".join(own) + "\n")
        (tmp_path / "site.toml").write_text(
            '[data]\nsource = "own.csv"\ntarget = "ill"\nclasses = ["no", "yes"]\nignore = ["ward"]\n'
            "feature_bound = 1.0\nscale.size = [-1, 1]\n"
        )
        site = personalise(wards / "out", "C", tmp_path / "site.toml", tmp_path / "s")
        assert site.chosen.parameters == pytest.approx(found.chosen.parameters)

    def test_a_bundle_reads_back_and_is_bound_to_the_certificate(self, wards: Path, tmp_path: Path) -> None:
        found = personalise(wards / "out", "C", wards / "all.csv", tmp_path / "c", client_column="ward")
        again = Bundle.read(tmp_path / "c")
        assert again.personal
        assert again.parameters.tolist() == found.chosen.parameters.tolist()
        assert again.files == Bundle.read(wards / "out").files
        if again.personal.threshold:
            with pytest.raises(ValueError, match="decide where scores are equal"):
                export_model(again, "json")
        plain = replace(again.personal, threshold=0.0)
        assert b"weights" in export_model(again.with_personal(plain), "json")
        moved = again.with_personal(replace(again.personal, threshold=0.5))
        with pytest.raises(ValueError, match=r"exported to json must decide where scores are equal, got 0\.5"):
            export_model(moved, "json")
        with pytest.raises(ValueError, match="must be the shared one"):
            personalise(tmp_path / "c", "C", wards / "all.csv", tmp_path / "d", client_column="ward")

    def test_the_command_says_what_was_chosen_and_what_it_tells(
        self, wards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        common = ["fedveil", "personalise", str(wards / "out"), "--client", "C", "--client-column", "ward"]
        for more, code in ((["--way", "proximal", "--json"], 0), (["--way", "best"], 2)):
            own = ["--data", str(wards / "all.csv"), "--out", str(tmp_path / f"c{code}"), *more]
            monkeypatch.setattr(sys, "argv", [*common, *own])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == code
            out, err = capsys.readouterr()
            if code:
                assert "personal.ways must list some of proximal, mixture, threshold" in err
            else:
                told = json.loads(out)
                assert (told["kind"], told["epsilon_if_shown"]) == ("proximal", None)
                assert "without noise" in told["if_shown"]

    def test_one_that_may_be_shown_gains_half_of_what_noise_free_gains_and_stands_an_audit(
        self, wards: Path, tmp_path: Path
    ) -> None:
        lines = (wards / "all.csv").read_text().splitlines()
        own = [line for line in lines if ",C," in line]
        (tmp_path / "c.csv").write_text("\n".join([lines[0], *own]) + "\n")
        shown = personalise_privately(
            wards / "out", "C", tmp_path / "c.csv", tmp_path / "shown", epsilon=1.0, client_column="ward"
        )
        plan = certify(tmp_path / "shown", __version__).plan
        shared = Bundle.read(wards / "out").parameters
        assert plan.hidden.start == tuple(shared.tolist())
        assert promise(plan, "final-model").epsilon <= 1.0
        assert not json.loads((tmp_path / "shown" / "certificate.json").read_text()).get("personal")
        assert len((tmp_path / "shown" / "ledger.jsonl").read_text().splitlines()) >= 1
        size, ill = (np.array([line.split(",")[at] for line in own]) for at in (0, 2))
        free = load_model(wards / "out" / "private" / "personal" / "3")
        models = {"shared": load_model(wards / "out"), "shown": load_model(shown.folder), "free": free}
        right = {name: np.mean(one.predict({"size": size.astype(float)}) == ill) for name, one in models.items()}
        assert right["shown"] - right["shared"] >= (right["free"] - right["shared"]) / 2 > 0.15
        found = audit_run(tmp_path / "shown", Effort(runs=100), Entropy.from_seed(1))
        assert {finding.verdict for finding in found.public.findings} == {"consistent"}


class TestRefusals:
    @pytest.mark.parametrize(
        ("table", "sentence"),
        [
            ({"ways": ["fine"]}, r"personal\.ways must list some of proximal, mixture, threshold, got \('fine',\)"),
            ({"ways": []}, r"personal\.ways must list some of"),
            ({"margin": math.nan}, r"personal\.margin must lie in \[0, 1\]"),
            ({"margin": 2}, r"personal\.margin must lie in \[0, 1\], got 2\.0"),
            ({"folds": 1}, r"personal\.folds must lie between 2 and 20, got 1"),
            ({"seed": -1}, r"personal\.seed must lie in"),
            ({"epsilon": 1}, r"Key 'epsilon' must be known to \[personal\]"),
        ],
    )
    def test_a_bad_table_is_one_sentence(self, table: dict[str, Any], sentence: str) -> None:
        tables = {"model": {"kind": "logistic"}, "privacy": {"epsilon": 1, "delta": 1e-5}, "personal": table}
        with pytest.raises(ValueError, match=sentence):
            study_of(tables, base=Path(), data_given=True)

    def test_data_that_are_not_the_partys(self, wards: Path, tmp_path: Path) -> None:
        for data, column, sentence in (
            ("nothing.csv", None, r"--data must be a file or folder of records"),
            (wards / "all.csv", "wrd", r"--client-column must name a column of the data, got 'wrd'. Did you mean ward"),
            (wards / "all.csv", "size", r"--data must hold records of 'C', got 'none'"),
        ):
            with pytest.raises(ValueError, match=sentence):
                personalise(wards / "out", "C", data, tmp_path / "c", client_column=column)
        (tmp_path / "unlabelled.csv").write_text("size\n0.5\n")
        with pytest.raises(ValueError, match=r"--data must have the column 'ill', which is to be predicted"):
            personalise(wards / "out", "C", tmp_path / "unlabelled.csv", tmp_path / "c")
        assert not (tmp_path / "c").exists()

    def test_a_file_that_was_altered(self) -> None:
        good = Personal(client="A", kind="shared", records=20, parameters=np.array([1.0, 2.0])).as_json()
        for key, value in (("format", 2), ("kind", "best"), ("parameters", [1.0, None]), ("threshold", "x")):
            with pytest.raises((ValueError, BadValue)):
                Personal.read(json.dumps({**good, key: value}).encode())

    def test_a_plan_says_it_and_older_plans_keep_their_text(self) -> None:
        tables = {"model": {"kind": "logistic"}, "privacy": {"epsilon": 1.0, "delta": 1e-5}}
        tables["algorithm"] = {"kind": "dpsgd"}
        bare: Plan = study_of(tables, base=Path(), data_given=True).planned(SHAPE).plan
        plan = study_of({**tables, "personal": {"margin": 0.05}}, base=Path(), data_given=True).planned(SHAPE).plan
        assert read_plan(write_plan(plan)) == plan
        assert replace(plan, personal=SHARED_ALONE) == bare
        assert "[personal]" not in write_plan(bare)
        with pytest.raises(ValueError, match=r"audit\.canaries must be left out with \[personal\]"):
            replace(plan, canaries=20, data=replace(SHAPE, features=30))
