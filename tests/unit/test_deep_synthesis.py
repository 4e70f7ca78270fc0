"""Torch generators from a study: trained and charged as a torch model, certified, rows for free, clear refusals."""

import csv
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify, differences
from fedveil.core.errors import BadValue, FedveilError
from fedveil.core.importing import allowing
from fedveil.engine.system import Progress, System
from fedveil.jobs.local import run_study
from fedveil.jobs.synthesis import SynthesisResult, sample, synthesise
from fedveil.ledger.books import Ledger
from fedveil.ledger.costs import cost_of
from fedveil.ledger.entry import read_export
from fedveil.ledger.place import beside
from fedveil.planning.plan import read_any_plan
from fedveil.planning.promises import ADVERSARIES
from fedveil.release.generating import DeepGenerator
from fedveil.theory.divergence import gaussian_delta
from fedveil.version import __version__

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

ROWS = 400
GENERATOR = {"kind": "torch", "units": 8, "latent": 2, "whole": ["age"], "shares": [0.75, 0.25]}


def write(path: Path, seed: int = 1) -> None:
    """The ill are old and in ward C."""
    draw = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["age", "ward", "clinic", "ill"])
        for index in range(ROWS):
            ill = draw.random() < 0.5
            age = np.clip(draw.normal(70 if ill else 30, 8), 0, 99)
            lines.writerow([f"{age:.0f}", "C" if ill else "A", f"clinic {index % 20}", "yn"[not ill]])


def tables(folder: Path, **more: Any) -> dict[str, Any]:
    data = {
        "source": str(folder / "visits.csv"),
        "target": "ill",
        "classes": ["n", "y"],
        "ignore": ["clinic"],
        "scale": {"age": [0.0, 100.0]},
        "categories": {"ward": ["A", "B", "C"]},
        "held_out": {"source": str(folder / "public.csv"), "public": True},
    }
    given = {
        "data": data,
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "neighbours": "zero-out"},
        "generator": GENERATOR,
        "algorithm": {"kind": "dpsgd", "optimizer": "adam"},
        "schedule": {"step_size": 0.1, "batch": 100, "passes": 10},
    }
    return {**given, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("deep")
    write(found / "visits.csv")
    write(found / "public.csv", seed=2)
    return found


def fixed() -> System:
    return System(random=random.Random(7).randbytes)


@pytest.fixture(scope="module")
def made(folder: Path) -> SynthesisResult:
    return synthesise(tables(folder), folder / "made", rows=400, seed=3, system=fixed())


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_have_the_columns_units_and_shares_of_the_study(made: SynthesisResult) -> None:
    drawn = read_rows(made.folder / "synthetic.csv")
    assert list(drawn[0]) == ["age", "ward", "ill"]
    assert [row["ill"] for row in drawn].count("n") == 300
    assert all(row["age"].isdigit() and int(row["age"]) <= 100 for row in drawn)
    assert {row["ward"] for row in drawn} <= {"A", "B", "C"}
    ages = {ill: np.mean([float(row["age"]) for row in drawn if row["ill"] == ill]) for ill in "yn"}
    assert ages["y"] > ages["n"] + 10  # the seed is fixed: 40 in the records
    page = (made.folder / "synthetic.html").read_text(encoding="utf-8")
    assert "What each observer learns at most" in page
    assert "A model trained on the rows" in page


def test_it_is_charged_once_as_planned_and_the_certificate_recomputes(made: SynthesisResult) -> None:
    entries = read_export(made.folder / "ledger.jsonl")
    assert [entry.kind for entry in entries] == ["charge", "release"]
    plan = read_any_plan(entries[0].payload["mechanism"])
    assert plan == made.certificate.plan
    again = certify(made.folder, __version__)
    assert differences(again, (made.folder / "certificate.json").read_bytes()) == []
    assert {one.adversary for one in again.guarantees} == set(ADVERSARIES)
    for one in again.guarantees:
        assert cost_of(plan, one.adversary).epsilon == one.answer.epsilon
    assert 7.9 < again.guarantees[0].answer.epsilon <= 8.0
    assert "rows drawn from it" in again.released[0]["what"]


def test_more_rows_are_free_and_an_altered_generator_is_refused(made: SynthesisResult, tmp_path: Path) -> None:
    books = (made.folder / "ledger.jsonl").read_bytes()
    first = sample(made.folder, rows=50, out=tmp_path / "a.csv", seed=5).read_bytes()
    assert sample(made.folder, rows=50, out=tmp_path / "b.csv", seed=5).read_bytes() == first
    assert sample(made.folder, rows=50, out=tmp_path / "c.csv").read_bytes() != first
    assert (made.folder / "ledger.jsonl").read_bytes() == books
    for name in ("plan.toml", "ledger.jsonl", "generator.json", "model.npz", "bundle.zip"):
        (tmp_path / name).write_bytes((made.folder / name).read_bytes())
    assert sample(tmp_path, rows=5, out=tmp_path / "rows.csv").exists()
    with np.load(made.folder / "model.npz") as model:
        np.savez(tmp_path / "model.npz", **{**model, "parameters": model["parameters"] + 1})
    with pytest.raises(BadValue, match=r"model\.npz must be the model that was released"):
        sample(tmp_path, rows=5)


def test_training_on_its_rows_charges_nothing_to_the_data(made: SynthesisResult, tmp_path: Path) -> None:
    data = made.folder.parent / "visits.csv"

    def books() -> list[str]:
        with Ledger.look(beside(data)) as ledger:
            return [entry.hash for entry in ledger.entries()]

    before = books()
    own = {key: tables(made.folder.parent)["data"][key] for key in ("target", "classes", "scale", "categories")}
    held = {"source": str(made.folder.parent / "public.csv"), "public": True, "ignore": ["clinic"]}
    given = {
        "data": {**own, "source": f"generator:{made.folder}", "feature_bound": 2.0, "held_out": held},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 10.0, "delta": 1e-5},
        "clients": {"kind": "equal", "count": 1},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 30},
    }
    result = run_study(given, tmp_path / "run")
    assert result.metrics["test"]["accuracy"] > 0.7
    assert result.certificate.plan.origin.public
    assert books() == before


class PowerCutError(Exception):
    """The machine stops."""


def test_what_was_stopped_is_finished_with_one_charge_and_the_same_model(
    folder: Path, made: SynthesisResult, tmp_path: Path
) -> None:
    def stops(progress: Progress) -> None:
        if progress.round == 11:
            raise PowerCutError

    out, given = tmp_path / "out", tables(folder)
    with pytest.raises(PowerCutError):
        synthesise(given, out, rows=10, system=fixed(), watch=stops)
    assert not (out / "model.npz").exists()
    synthesise(given, out, rows=10, resume=True)
    assert [entry.kind for entry in read_export(out / "ledger.jsonl")] == ["charge", "release"]
    assert (out / "model.npz").read_bytes() == (made.folder / "model.npz").read_bytes()  # the same key, the same noise
    (out / "synthetic.csv").unlink()
    synthesise(given, out, rows=10, resume=True)
    assert len(read_rows(out / "synthetic.csv")) == 10


def test_whole_clients_are_protected_by_federated_averaging(folder: Path, tmp_path: Path) -> None:
    given = tables(folder)
    data = {key: value for key, value in given["data"].items() if key not in ("ignore", "held_out")}
    given |= {
        "data": {**data, "client_column": "clinic"},
        "clients": {"kind": "column"},
        "privacy": {"epsilon": 20.0, "delta": 1e-3, "unit": "client", "neighbours": "zero-out"},
        "algorithm": {"kind": "fedavg", "local": {"step": 0.01, "epochs": 1}, "update_norm": 0.5},
        "schedule": {"rounds": 2},
    }
    made = synthesise(given, tmp_path / "out", rows=20)
    assert made.certificate.plan.target.unit == "client"
    assert not (tmp_path / "out" / "quality.json").exists()  # no public records: nothing is compared


def test_moments_need_no_schedule_and_are_one_release_of_a_sum(folder: Path, tmp_path: Path) -> None:
    """By the closed form of Balle and Wang: no less than it is certified, and next to nothing more."""
    given = {key: value for key, value in tables(folder).items() if key not in ("algorithm", "schedule")}
    made = synthesise({**given, "generator": {"kind": "torch", "module": "moments"}}, tmp_path / "out", rows=20)
    (settings,) = made.certificate.plan.method.client_settings
    assert (settings.rounds, settings.rate) == (1, 1.0)
    epsilon = made.certificate.guarantees[0].answer.epsilon
    assert epsilon <= 8.0
    assert 0.99e-5 < gaussian_delta(epsilon=epsilon, r=1 / settings.noise) <= 1e-5
    assert len(read_rows(tmp_path / "out" / "synthetic.csv")) == 20


def test_hidden_training_makes_a_generator_too(folder: Path, tmp_path: Path) -> None:
    given = tables(folder, algorithm={"kind": "hidden"}, generator={**GENERATOR, "radius": 10.0})
    given["schedule"] = {"step_size": 0.5, "batch": 100, "passes": 2}
    made = synthesise(given, tmp_path / "out", rows=20)
    assert made.certificate.guarantees[0].answer.epsilon <= 8.0
    assert differences(certify(made.folder, __version__), (made.folder / "certificate.json").read_bytes()) == []


class Means(torch.nn.Module):  # type: ignore[misc]
    """Each class has a mean row, and nothing else is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = torch.nn.Parameter(torch.zeros(2, 4))

    def forward(self, rows: Any, targets: Any) -> Any:
        kinds = (targets[:, None] == torch.arange(2)).to(rows.dtype)
        return (rows - kinds @ self.middle).square().sum(1)

    def sample(self, targets: Any, generator: Any) -> Any:
        noise = torch.randn((len(targets), 4), generator=generator) / 10
        return self.middle[targets.long()] + noise


def test_a_module_of_ones_own_is_run_only_where_it_is_allowed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "generator_of_tests.py").write_text(f"from {__name__} import Means as make\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    given = tables(folder, generator={"kind": "torch", "module": "generator_of_tests:make"})
    with pytest.raises(BadValue, match=r"allow it with --module generator_of_tests:make"):
        synthesise(given, tmp_path / "out", rows=50)
    assert "generator_of_tests" not in sys.modules
    with allowing("generator_of_tests:make"):
        made = synthesise(given, tmp_path / "out", rows=50)
    assert isinstance(made.generator, DeepGenerator)
    with pytest.raises(BadValue, match=r"allow it with --module generator_of_tests:make"):
        sample(made.folder, rows=5)
    with allowing("generator_of_tests:make"):
        assert sample(made.folder, rows=5).exists()


class Silent(Means):
    """It draws nothing."""

    sample = None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"generator": {**GENERATOR, "image": [3, 3]}}, r"generator\.image must have 4 points"),
        ({"generator": {**GENERATOR, "shares": [0.5, 0.4]}}, r"generator\.shares must be shares that add up to 1"),
        ({"generator": {**GENERATOR, "shares": [0.5, 0.25, 0.25]}}, r"generator\.shares must list a share of each of"),
        ({"generator": {**GENERATOR, "whole": ["ward"]}}, r"generator\.whole must name columns of numbers"),
        (
            {"generator": {**GENERATOR, "module": "gan"}},
            r"generator\.module must be vae or moments or pair, or name a function",
        ),
        (
            {"generator": {**GENERATOR, "module": "no_such:make"}},
            r"generator\.latent must be left out with a module other than",
        ),
        ({"generator": {"kind": "torch", "module": "no_such:make"}}, r"allow it with --module no_such:make"),
        ({"generator": {**GENERATOR, "clip": float("nan")}}, r"generator\.clip must"),
        ({"study": {"seed": 1}}, r"study\.seed must be left out for a generator"),
        ({"tune": {}}, r"Key 'tune' must be known to a study of a torch generator"),
    ],
)
def test_bad_input_is_one_sentence(folder: Path, tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises((FedveilError, ValueError), match=sentence) as caught:
        synthesise(tables(folder, **change), tmp_path / "out", rows=10)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "plan.toml").exists()


PAIR = {"kind": "torch", "module": "pair", "units": 8, "latent": 2}


def test_an_adversarial_pair_is_charged_for_every_model(folder: Path, tmp_path: Path) -> None:
    made = synthesise(tables(folder, generator=PAIR), tmp_path / "out", rows=20)
    epsilons = {one.adversary: one.answer.epsilon for one in made.certificate.guarantees}
    assert epsilons["final-model"] == epsilons["every-model"] <= 8.0
    assert differences(certify(made.folder, __version__), (made.folder / "certificate.json").read_bytes()) == []
    assert len(read_rows(made.folder / "synthetic.csv")) == 20


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"algorithm": {"kind": "hidden"}}, r"algorithm\.kind must be dpsgd for an adversarial pair, got 'hidden'"),
        ({"algorithm": {"kind": "dpsgd"}}, r"algorithm\.optimizer must be adam for an adversarial pair"),
        ({"clients": {"kind": "equal", "count": 2}}, r"\[clients\] must be one for an adversarial pair, got 2"),
        ({"trust": {"server": "trusted"}}, r"\[trust\] must|trust\."),
    ],
)
def test_a_pair_is_refused_where_its_answer_has_no_place(
    folder: Path, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        synthesise(tables(folder, generator=PAIR, **change), tmp_path / "out", rows=10)
    assert not (tmp_path / "out" / "plan.toml").exists()


def test_a_column_without_a_range_and_a_module_that_draws_nothing_are_refused(folder: Path, tmp_path: Path) -> None:
    given = tables(folder)
    given["data"] = {key: value for key, value in given["data"].items() if key != "scale"}
    with pytest.raises(ValueError, match=r"data\.scale must state the range of every column of numbers, got \['age'\]"):
        synthesise(given, tmp_path / "out", rows=10)
    with pytest.raises(ValueError, match=r"generator\.module must have a method sample"):
        synthesise(tables(folder, generator={"kind": "torch"}), tmp_path / "out", rows=10, module=Silent)
    assert not (tmp_path / "out" / "plan.toml").exists()
