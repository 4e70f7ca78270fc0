"""Held-out records: apart from training or charged for both, in their own ledger too, and private by default."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil import run_study
from fedveil.core.errors import BadValue, FedveilError
from fedveil.data.records import Records
from fedveil.engine.system import System
from fedveil.jobs.compare import compare
from fedveil.jobs.evaluation import evaluate_model
from fedveil.jobs.local import plan_study
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap, CapExceeded, Cost
from fedveil.ledger.costs import cost_of
from fedveil.planning.plan import Plan, read_plan
from fedveil.planning.promises import promise

ROWS, TRAINED = 300, 200


def lines() -> list[str]:
    draw = np.random.default_rng(0)
    size, ward = draw.normal(0.0, 1.0, ROWS), np.arange(ROWS) % 5
    ill = np.where(size + draw.normal(0.0, 0.7, ROWS) > 0, "yes", "no")
    return [f"{a:.6f},w{b},{c}" for a, b, c in zip(size, ward, ill, strict=True)]


def write(path: Path, rows: list[str], head: str = "size,ward,ill") -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Any]:
    """A study of 200 rows, with 100 others held out in a file of their own."""
    rows = lines()
    write(tmp_path / "train.csv", rows[:TRAINED])
    write(tmp_path / "held.csv", rows[TRAINED:])
    return {
        "data": {
            "source": str(tmp_path / "train.csv"),
            "target": "ill",
            "columns": ["size"],
            "classes": ["no", "yes"],
            "feature_bound": 1.0,
            "scale": {"size": [-4, 4]},
            "held_out": {"source": str(tmp_path / "held.csv")},
        },
        "model": {"kind": "logistic", "radius": 20.0},
        "privacy": {"epsilon": 2.0, "delta": 1e-5, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 5},
    }


def held_out(tables: dict[str, Any], **held: Any) -> dict[str, Any]:
    return {**tables, "data": {**tables["data"], "held_out": held}}


def entries(source: Path) -> list[str]:
    place = source.parent / ".fedveil" / f"{source.name}.sqlite"
    if not place.exists():
        return []
    with Ledger.look(place) as ledger:
        return [entry.kind for entry in ledger.entries()]


def assumed(plan: Plan) -> dict[str, str]:
    from fedveil.certificate.assumptions import assumptions

    return {one.name: one.enforced_by for one in assumptions(plan, "final-model")}


class TestSharedRows:
    def test_two_files_without_a_common_row_are_each_charged_for_one_part(self, tables: dict[str, Any]) -> None:
        plan = plan_study(tables).plan
        assert plan.evaluation
        assert not plan.evaluation.composed
        how = assumed(plan)["held-out records are apart"]
        assert "no row of the held-out source stands in the training source" in how
        assert "declared: rows that differ are of different records" in how

    @pytest.mark.parametrize("kind", ["itself", "copy", "reordered", "one more column", "other spelling"])
    def test_the_training_file_in_any_form_is_refused_before_any_charge(
        self, tables: dict[str, Any], tmp_path: Path, kind: str
    ) -> None:
        rows, path = lines()[:TRAINED], tmp_path / "other.csv"
        if kind == "itself":
            path = tmp_path / "train.csv"
        elif kind == "copy":
            write(path, rows)
        elif kind == "reordered":
            write(path, [",".join(reversed(row.split(","))) for row in reversed(rows)], "ill,ward,size")
        elif kind == "one more column":  # as a frame writes its index
            write(path, [f"{place},{row}" for place, row in enumerate(rows)], ",size,ward,ill")
        else:
            write(path, [f"{float(row.split(',')[0]):.9e},{row.split(',', 1)[1]}" for row in rows])
        wanted = held_out(tables, source=str(path))
        for table in ({}, {"evaluation": {"private": True}}):
            with pytest.raises(
                BadValue, match=r"\[data\.held_out\] must hold no row that trains too .* '200 such rows'"
            ):
                run_study({**wanted, **table}, tmp_path / "out")
        assert entries(tmp_path / "train.csv") == entries(path) == []
        assert not (tmp_path / "out" / "plan.toml").exists()

    def test_the_refusal_says_how_many_rows(self, tables: dict[str, Any], tmp_path: Path) -> None:
        write(tmp_path / "held.csv", lines()[TRAINED - 7 :])
        with pytest.raises(BadValue, match=r"'7 such rows'.*Hold a fraction of one source out"):
            plan_study(tables)

    def test_a_private_preparation_compares_cells(self, tables: dict[str, Any], tmp_path: Path) -> None:
        open_rule = {key: value for key, value in tables["data"].items() if key not in ("feature_bound", "scale")}
        assert plan_study({**tables, "data": open_rule}).plan.held_out.apart == "compared"
        write(tmp_path / "held.csv", [f"0,{row}" for row in lines()[TRAINED - 3 :]], "number,size,ward,ill")
        with pytest.raises(BadValue, match="'3 such rows'"):
            plan_study({**tables, "data": open_rule})

    def test_a_private_score_is_refused_too(self, tables: dict[str, Any], tmp_path: Path) -> None:
        space = {"score": "private", "trials": 2, "space": {"model.l2": [0.0, 0.01]}}
        tuned = {**tables, "tune": space}
        plan = plan_study(tuned).plan
        assert "no row of the held-out source stands" in assumed(plan)["score of a trial"]
        write(tmp_path / "held.csv", lines()[TRAINED - 7 :])
        with pytest.raises(BadValue, match=r"'7 such rows'.*or score on public records"):
            plan_study(tuned)

    def test_given_records_are_compared(self, tables: dict[str, Any]) -> None:
        rows = np.random.default_rng(3).uniform(-0.5, 0.5, (90, 2))

        def records(part: slice) -> Records:
            features = np.ascontiguousarray(rows[part])
            owner = np.arange(len(features), dtype=np.int64)
            targets = (features[:, 0] > 0).astype(float)
            return Records(features=features, targets=targets, owner=owner, clients=len(features), bound=1.0, classes=2)

        study = {key: tables[key] for key in ("model", "privacy", "algorithm")}
        apart = plan_study(study, (records(slice(0, 60)), records(slice(60, 90)))).plan
        assert apart.held_out.apart == "compared"
        with pytest.raises(BadValue, match="'4 such rows'"):
            plan_study(study, (records(slice(0, 60)), records(slice(56, 90))))

    def test_a_share_composes_both_costs_for_every_record(self, tables: dict[str, Any], tmp_path: Path) -> None:
        wanted = held_out(tables, source=str(tmp_path / "train.csv"))
        both = {**wanted, "evaluation": {"records": "held-out", "share": 0.2}}
        plan = plan_study(both).plan
        on_training = plan_study({**wanted, "evaluation": {"records": "training", "share": 0.2}}).plan
        assert plan.evaluation
        assert plan.evaluation.composed
        assert promise(plan, "final-model").epsilon == promise(on_training, "final-model").epsilon <= 2.0
        assert "charged for training and for the counts" in assumed(plan)["a record may train and be held out"]
        assert "held-out records are apart" not in assumed(plan)
        run_study(both, tmp_path / "out")
        assert entries(tmp_path / "train.csv") == ["charge", "release"]  # one source, one ledger, one charge

    def test_a_fraction_of_one_file_is_apart_whatever_its_rows_are(
        self, tables: dict[str, Any], tmp_path: Path
    ) -> None:
        write(tmp_path / "train.csv", lines()[:20] * 10)
        plan = plan_study(held_out(tables, fraction=0.25)).plan
        how = assumed(plan)["held-out records are apart"]
        assert how.startswith("rows of one source")
        assert "declared" not in how

    def test_what_no_plan_states_is_declared(self, tables: dict[str, Any]) -> None:
        from dataclasses import replace

        plan = plan_study(tables).plan
        plan = replace(plan, held_out=replace(plan.held_out, apart=None))
        assert assumed(plan)["held-out records are apart"].startswith("declared:")
        assert read_plan_of(plan).held_out.apart is None

    def test_an_evaluation_of_a_released_model_claims_nothing_about_training(
        self, tables: dict[str, Any], tmp_path: Path
    ) -> None:
        run_study(tables, tmp_path / "out")
        found = evaluate_model(tmp_path / "out", tmp_path / "train.csv", epsilon=1.0, out=tmp_path / "measured")
        assert found.certificate is not None
        text = (tmp_path / "measured" / "certificate.json").read_text()
        assert "training does not" not in text
        assert "apart" not in text
        with Ledger.look(tmp_path / ".fedveil" / "train.csv.sqlite") as ledger:
            charged = [Cost.read(e.payload["costs"][0]) for e in ledger.entries() if e.kind == "charge"]
        assert len(charged) == 2  # the run and the evaluation, in one ledger


def read_plan_of(plan: Plan) -> Plan:
    from fedveil.planning.plan import write_plan

    return read_plan(write_plan(plan))


def a_cost(epsilon: float) -> list[Cost]:
    return [Cost(adversary="final-model", unit="record", neighbours="replace-one", epsilon=epsilon, delta=1e-5)]


def a_cap(epsilon: float) -> Cap:
    return Cap(adversary="final-model", unit="record", neighbours="replace-one", epsilon=epsilon, delta=1e-3)


class TestOwnLedger:
    def test_a_held_out_file_is_charged_in_its_own_ledger_too(self, tables: dict[str, Any], tmp_path: Path) -> None:
        run_study(tables, tmp_path / "out")
        for name in ("train.csv", "held.csv"):
            assert entries(tmp_path / name) == ["charge", "release"]
            with Ledger.look(tmp_path / ".fedveil" / f"{name}.sqlite") as ledger:
                assert 1.9 < ledger.spent("final-model", neighbours="zero-out").epsilon <= 2.0

    def test_its_cap_counts_and_a_refusal_charges_neither(self, tables: dict[str, Any], tmp_path: Path) -> None:
        run_study(tables, tmp_path / "first")
        with Ledger.look(tmp_path / ".fedveil" / "held.csv.sqlite") as ledger:
            cap = Cap(adversary="final-model", unit="record", neighbours="zero-out", epsilon=3.0, delta=1e-3)
            ledger.set_cap(cap, "a test")
        with pytest.raises(CapExceeded):
            run_study(tables, tmp_path / "second")
        assert entries(tmp_path / "train.csv") == ["charge", "release"]
        assert entries(tmp_path / "held.csv") == ["charge", "release", "cap"]
        assert not (tmp_path / "second" / "private" / "key").exists()

    def test_the_cap_of_the_training_file_leaves_the_other_uncharged(
        self, tables: dict[str, Any], tmp_path: Path
    ) -> None:
        capped = {**tables, "books": {"cap": {"final-model": [1.0, 1e-4]}}}
        with pytest.raises(CapExceeded):
            run_study(capped, tmp_path / "out")
        assert entries(tmp_path / "train.csv") == entries(tmp_path / "held.csv") == []

    @pytest.mark.parametrize("first", ["train", "held"])
    def test_a_crash_between_the_two_is_completed_by_the_same_charge(self, tmp_path: Path, first: str) -> None:
        kept = {name: Ledger.open(tmp_path / name, lambda key: "rows") for name in ("train", "held")}
        with kept["train"] as train, kept["held"] as held:
            for book in kept.values():
                book.set_cap(a_cap(1.5), "a test")
            one: dict[str, Any] = {"run": "run", "plan": "plan", "costs": a_cost(1.0), "rounds": 1}
            kept[first].charge(**one)
            for _ in range(2):
                train.charge(**one, beside=[held])
                assert [[e.kind for e in book.entries()] for book in (train, held)] == [["cap", "charge"]] * 2

    def test_one_that_refuses_leaves_all_as_they_were(self, tmp_path: Path) -> None:
        with (
            Ledger.open(tmp_path / "train", lambda key: "rows") as train,
            Ledger.open(tmp_path / "held", lambda key: "rows") as held,
        ):
            held.set_cap(a_cap(1.0), "a test")
            with pytest.raises(CapExceeded):
                train.charge("run", "plan", a_cost(2.0), rounds=1, caps=[a_cap(5.0)], beside=[held])
            assert [e.kind for e in train.entries()] == []
            assert [e.kind for e in held.entries()] == ["cap"]

    def test_the_study_names_its_place(self, tables: dict[str, Any], tmp_path: Path) -> None:
        named = tmp_path / "held.sqlite"
        run_study({**tables, "books": {"held_out": str(named)}}, tmp_path / "out")
        with Ledger.look(named) as ledger:
            assert [entry.kind for entry in ledger.entries()] == ["charge", "release"]
        assert entries(tmp_path / "held.csv") == ["charge", "release"]  # a link to it

    def test_public_records_are_charged_nowhere(self, tables: dict[str, Any], tmp_path: Path) -> None:
        run_study(held_out(tables, source=str(tmp_path / "held.csv"), public=True), tmp_path / "out")
        assert entries(tmp_path / "held.csv") == []


class TestKey:
    def stopped(self, tables: dict[str, Any], folder: Path) -> None:
        """Leave a run that was stopped after its charge, before anything was released."""

        def stop(_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(FedveilError):
            run_study(tables, folder, watch=stop)
        assert (folder / "private" / "key").exists()
        assert not (folder / "model.npz").exists()

    @pytest.mark.parametrize("prepared", [True, False])
    def test_a_copied_run_is_not_finished_on_other_held_out_rows(
        self, tables: dict[str, Any], tmp_path: Path, prepared: bool
    ) -> None:
        if not prepared:
            rest = {key: value for key, value in tables["data"].items() if key not in ("feature_bound", "scale")}
            tables = {**tables, "data": rest}
        self.stopped(tables, tmp_path / "out")
        shutil.copytree(tmp_path / "out", tmp_path / "copy")
        shutil.copy(tmp_path / "held.csv", tmp_path / "kept.csv")
        other = [row.replace("yes", "no") for row in lines()[TRAINED:]]
        shutil.rmtree(tmp_path / ".fedveil")  # as on another machine: no ledger knows the rows
        write(tmp_path / "held.csv", other)
        with pytest.raises(BadValue, match=r"\[data\.held_out\] must hold the rows that the run began with"):
            run_study(tables, tmp_path / "copy", resume=True)
        assert entries(tmp_path / "train.csv") == entries(tmp_path / "held.csv") == []
        shutil.copy(tmp_path / "kept.csv", tmp_path / "held.csv")
        run_study(tables, tmp_path / "out", resume=True)
        assert entries(tmp_path / "train.csv") == entries(tmp_path / "held.csv") == ["charge", "release"]

    def test_rows_held_out_of_the_same_file_are_bound_too(self, tables: dict[str, Any], tmp_path: Path) -> None:
        tables = held_out(tables, fraction=0.25)
        self.stopped(tables, tmp_path / "out")
        chosen = np.random.default_rng(0)  # as the study draws them
        from fedveil.data.split import held_out_rows

        held = held_out_rows(TRAINED, 0.25, chosen)
        rows = [row.replace("yes", "no") if out else row for row, out in zip(lines()[:TRAINED], held, strict=True)]
        shutil.rmtree(tmp_path / ".fedveil")
        write(tmp_path / "train.csv", rows)
        with pytest.raises(BadValue, match=r"\[data\.held_out\] must hold the rows that the run began with"):
            run_study(tables, tmp_path / "out", resume=True)


class TestDefault:
    def test_records_that_nobody_declared_public_are_counted_with_noise(
        self, tables: dict[str, Any], tmp_path: Path
    ) -> None:
        result = run_study(held_out(tables, fraction=0.25), tmp_path / "out")
        assert result.metrics["test"] is None
        assert result.metrics["evaluation"]["on"] == "held-out"
        plan = read_plan((tmp_path / "out" / "plan.toml").read_text())
        assert math.isfinite(cost_of(plan, "final-model").epsilon)
        assert all(row["covered"] for row in result.certificate.released)
        exact = json.loads((tmp_path / "out" / "private" / "metrics.json").read_text())
        assert exact["test"]["records"] == 50

    def test_saying_so_by_a_table_changes_nothing(self, tables: dict[str, Any]) -> None:
        wanted = held_out(tables, fraction=0.25)
        assert plan_study(wanted).plan == plan_study({**wanted, "evaluation": {"private": True}}).plan

    @pytest.mark.parametrize("table", [{"evaluation": {"private": False}}, {"report": {"baselines": True}}])
    def test_exact_metrics_by_an_explicit_word_are_charged_as_infinite(
        self, tables: dict[str, Any], tmp_path: Path, table: dict[str, Any]
    ) -> None:
        result = run_study({**tables, **table}, tmp_path / "out")
        assert result.metrics["test"]["accuracy"] is not None
        plan = read_plan((tmp_path / "out" / "plan.toml").read_text())
        assert not plan.evaluation
        assert read_plan_of(plan) == plan
        for name in ("train.csv", "held.csv"):
            with Ledger.look(tmp_path / ".fedveil" / f"{name}.sqlite") as ledger:
                assert math.isinf(ledger.spent("final-model", neighbours="zero-out").epsilon)
        assert not any(row["covered"] for row in result.certificate.released)
        assert any("no guarantee" in warning for warning in plan.warnings)

    @pytest.mark.parametrize("public", [{"public": True}, {}])
    def test_public_records_stay_exact_and_free(
        self, tables: dict[str, Any], tmp_path: Path, public: dict[str, Any]
    ) -> None:
        wanted = held_out(tables, fraction=0.25, **public)
        if not public:
            wanted["data"]["public"] = True
        result = run_study(wanted, tmp_path / "out")
        assert result.metrics["test"]["public"] is True
        assert "evaluation" not in result.metrics
        assert all(row["covered"] for row in result.certificate.released)

    def test_where_nothing_can_be_counted_nothing_is_published(self, tables: dict[str, Any], tmp_path: Path) -> None:
        notes: list[str] = []
        wanted = held_out(tables, fraction=0.25)
        wanted["model"] = {**wanted["model"], "decision_threshold": 0.3}
        result = run_study(wanted, tmp_path / "out", system=System(note=notes.append))
        assert result.metrics["test"] is None
        assert "evaluation" not in result.metrics
        assert [row["file"] for row in result.certificate.released] == ["model.npz"]
        assert any("Nothing about the 50 held-out records will be published" in note for note in notes)
        with pytest.raises(BadValue, match="decision_threshold"):
            run_study({**wanted, "evaluation": {"private": True}}, tmp_path / "other")

    def test_what_would_take_from_training_is_counted_only_if_it_is_asked_for(self, tables: dict[str, Any]) -> None:
        rows = np.random.default_rng(3).uniform(-0.5, 0.5, (90, 2))
        targets = (rows[:, 0] > 0).astype(float)
        train, test = (
            Records(
                features=np.ascontiguousarray(rows[part]),
                targets=targets[part],
                owner=np.arange(30, dtype=np.int64).repeat(part.stop // 30 - part.start // 30),
                clients=30,
                bound=1.0,
                classes=2,
            )
            for part in (slice(0, 60), slice(60, 90))
        )
        study = {key: tables[key] for key in ("model", "algorithm")}
        study["privacy"] = {**tables["privacy"], "unit": "client"}
        study["algorithm"] = {"kind": "fedavg"}
        plain = plan_study(study, (train, test)).plan
        assert not plain.evaluation
        assert not plain.held_out.exact
        asked = plan_study({**study, "evaluation": {"private": True}}, (train, test)).plan
        assert asked.evaluation
        assert asked.evaluation.composed

    def test_few_records_are_told_before_the_charge(self, tables: dict[str, Any], tmp_path: Path) -> None:
        notes: list[str] = []
        run_study(held_out(tables, fraction=0.1), tmp_path / "out", system=System(note=notes.append))
        assert any(note.startswith("20 records are few to count privately") for note in notes)

    def test_an_evaluation_on_training_records_publishes_nothing_exact_of_others(
        self, tables: dict[str, Any], tmp_path: Path
    ) -> None:
        result = run_study({**tables, "evaluation": {"records": "training"}}, tmp_path / "out")
        assert result.metrics["test"] is None
        assert result.metrics["evaluation"]["on"] == "training"
        assert entries(tmp_path / "held.csv") == []  # nothing of it was released

    def test_a_comparison_counts_and_is_exact_by_the_word_alone(self, tables: dict[str, Any], tmp_path: Path) -> None:
        wanted = {**tables, "books": {"ledger": str(tmp_path / "counted.sqlite")}}
        counted = compare(wanted, algorithms=["dpsgd"], runs=1)
        assert counted.counted
        assert all(math.isfinite(cost.epsilon) for cost in counted.costs if cost.adversary == "final-model")
        assert entries(tmp_path / "held.csv") == ["charge", "release"]

    def test_a_comparison_that_is_exact_is_charged_as_such(self, tables: dict[str, Any], tmp_path: Path) -> None:
        wanted = {**tables, "books": {"ledger": str(tmp_path / "books.sqlite")}}
        found = compare({**wanted, "evaluation": {"private": False}}, algorithms=["dpsgd"], runs=1)
        assert not found.private
        assert all(math.isinf(cost.epsilon) for cost in found.costs)
        assert entries(tmp_path / "held.csv") == ["charge", "release"]
