"""Persons with several records: which are used, what is promised to all of them together, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedveil.core.errors import FedveilError
from fedveil.data.persons import ranks
from fedveil.data.records import Records
from fedveil.jobs.local import open_any_study, plan_study, run_study
from fedveil.ledger.budget import Cost
from fedveil.planning.plan import Plan, read_plan
from fedveil.planning.promises import promise
from fedveil.planning.study import Study, parse_study
from fedveil.privacy.guarantee import Unit
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.sums import Measurement, NoisySums
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.theory.concentrated import gaussian_epsilon

STUDY = """
[data]
source = "visits.csv"
target = "ill"
classes = 2
ignore = ["site"]
{data}
[model]
kind = "logistic"
[privacy]
unit = "{unit}"
epsilon = 2.0
delta = 1e-5
neighbours = "{neighbours}"
[algorithm]
{algorithm}
{more}
"""
NAMED = 'person_column = "who"\nlargest_person = 3'
STATED = "feature_bound = 2\ndefault_scale = [-3, 3]"
FULL = 'kind = "dpsgd"\nsampling = "poisson"\nrate = 1.0\nrounds = 4'


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("persons")
    rows = [
        f"p{rng.integers(0, 150)},{rng.choice(['a', 'b'])},{rng.normal():.3f},{rng.normal():.3f},{rng.integers(0, 2)}"
        for _ in range(500)
    ]
    (folder / "visits.csv").write_text("\n".join(["who,site,age,dose,ill", *rows]) + "\n")
    return folder


def study_of(base: Path, **changes: str) -> Study:
    values = {
        "data": f"{STATED}\n{NAMED}", "unit": "person", "neighbours": "replace-one", "algorithm": FULL, "more": "",
    }  # fmt: skip
    return parse_study(STUDY.format(**{**values, **changes}), base=base)


def plan_of(base: Path, **changes: str) -> Plan:
    return plan_study(study_of(base, **changes)).plan


def live(records: Records) -> np.ndarray:
    return ~records.blank


def test_a_person_keeps_the_first_rows_whatever_others_bring(base: Path) -> None:
    people = [line.split(",")[0] for line in (base / "visits.csv").read_text().splitlines()[1:]]
    loaded = open_any_study(study_of(base))[1]
    before = np.array([people[:row].count(name) for row, name in enumerate(people)])
    np.testing.assert_array_equal(live(loaded.train), before < 3)
    np.testing.assert_array_equal(before, ranks(np.unique(people, return_inverse=True)[1]))


def test_a_row_of_nobody_is_blank(base: Path, tmp_path: Path) -> None:
    text = (base / "visits.csv").read_text().splitlines()
    text[4] = "," + text[4].split(",", 1)[1]
    (tmp_path / "visits.csv").write_text("\n".join(text) + "\n")
    assert not live(open_any_study(study_of(tmp_path))[1].train)[3]


@pytest.mark.parametrize("clients", ["kind = 'equal'\ncount = 4", "kind = 'column'"])
def test_a_person_is_at_one_client_and_on_one_side(base: Path, clients: str) -> None:
    data = f"{STATED}\n{NAMED}" + ('\nclient_column = "site"' if "column" in clients else "")
    held = "\n[data.held_out]\nfraction = 0.3\n"
    text = STUDY.format(data=data + held, unit="person", neighbours="zero-out", algorithm=FULL, more="")
    text = text.replace('ignore = ["site"]', "" if "column" in clients else 'ignore = ["site"]')
    loaded = open_any_study(parse_study(f"{text}\n[clients]\n{clients}\n", base=base))[1]
    rows = [line.split(",")[:2] for line in (base / "visits.csv").read_text().splitlines()[1:]]
    person = ["/".join(row) if "column" in clients else row[0] for row in rows]
    trained = [person[row] for row in loaded.rows.tolist()]
    assert set(trained).isdisjoint({person[row] for row in set(range(len(person))) - set(loaded.rows.tolist())})
    owners: dict[str, set[int]] = {}
    for name, owner in zip(trained, loaded.train.owner.tolist(), strict=True):
        owners.setdefault(name, set()).add(owner)
    assert all(len(held_by) == 1 for held_by in owners.values())


@pytest.mark.parametrize(("neighbours", "moved"), [("replace-one", 2.0), ("zero-out", 1.0)])
def test_all_stages_of_a_run_count_every_record_of_a_person(base: Path, neighbours: str, moved: float) -> None:
    """Rounds of all records and noisy sums are Gaussian: their mu is worked out by hand here."""
    plan = plan_of(base, data=NAMED, neighbours=neighbours)
    method = plan.method
    assert isinstance(method, DpSgd)
    assert plan.preparation
    counts = 2.0 if neighbours == "replace-one" else 1.0  # which move by the root of 2 where other sums move by 2
    less = [1.0 if one.name == "means" else counts for one in plan.preparation.measurements]
    squares = sum(1 / (one.noise**2 * own) for own, one in zip(less, plan.preparation.measurements, strict=True))
    squares += 4 / method.client_settings[0].noise ** 2
    expected = gaussian_epsilon(3 * moved * math.sqrt(squares), 1e-5)
    assert promise(plan, "every-model").epsilon == pytest.approx(expected, rel=2e-3)
    assert promise(plan, "every-model").epsilon <= 2.0
    assert read_plan(plan.text()) == plan


def test_one_record_a_person_is_a_record(base: Path) -> None:
    named = f"{STATED}\n{NAMED.replace('3', '1')}"
    alone, record = plan_of(base, data=named), plan_of(base, data=named, unit="record")
    assert promise(alone, "final-model").epsilon == pytest.approx(promise(record, "final-model").epsilon, rel=2e-3)


def test_words_that_one_person_makes_up_stay_below_the_threshold(base: Path, tmp_path: Path) -> None:
    text = (base / "visits.csv").read_text().replace("dose", "drug").splitlines()
    text[1:] = [f"{line.rsplit(',', 2)[0]},{'xyz'[n % 3]},{line[-1]}" for n, line in enumerate(text[1:])]
    (tmp_path / "visits.csv").write_text("\n".join(text) + "\n")
    plan = plan_of(tmp_path, data=NAMED)
    words = plan.preparation["categories"]
    assert words.threshold is not None
    assert words.threshold > 3 + 4 * words.noise * words.bound
    weaker = replace(plan.preparation, measurements=(replace(words, threshold=2.5),))
    with pytest.raises(FedveilError, match="above what one unit makes up, 3"):
        replace(plan, preparation=weaker)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": STATED}, "privacy.unit must be person with data.largest_person"),
        ({"data": f"{STATED}\nperson_column = 'who'"}, "data.person_column must be given with data.largest_person"),
        ({"unit": "record"}, "data.largest_person must go with persons"),
        ({"algorithm": "kind = 'fedavg'"}, "privacy.unit must be client for fedavg"),
        ({"algorithm": "kind = 'hidden'\ndeal = 'clients'"}, "algorithm.deal must be records when persons"),
        ({"more": "[audit]\ncanaries = 20"}, "audit.canaries must be left out"),
    ],
)
def test_what_is_not_proved_for_persons_is_refused(base: Path, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(FedveilError) as refused:
        plan_of(base, **changes)
    assert sentence in str(refused.value)


def test_sums_whose_stage_reads_no_persons_are_refused(base: Path) -> None:
    plan = plan_of(base)
    sums = NoisySums(measurements=(Measurement(name="mine", size=1, bound=1.0, noise=9.0),), share=0.5)
    with pytest.raises(FedveilError, match=r"privacy\.unit must be record or client here"):
        MeasuredPlan(name="x", stage="own", file="mine.json", data=plan.data, target=plan.target, sums=sums)
    seen = sums.mechanism_seen_by("final-model", plan.data, plan.target, plan.trust)
    assert seen is not None
    assert seen.noise_multiplier == pytest.approx(3.0)


def test_a_promise_to_persons_holds_for_records_and_no_other_does_for_persons() -> None:
    def covers(unit: Unit, other: Unit) -> bool:
        cost = Cost(adversary="server", unit=unit, neighbours="replace-one", epsilon=1.0, delta=1e-6)
        return cost.covers(other, "replace-one")

    assert covers("person", "record")
    assert not any(covers(*pair) for pair in (("record", "person"), ("client", "person"), ("person", "client")))


def test_a_run_for_persons_is_certified_and_charged(base: Path, tmp_path: Path) -> None:
    text = STUDY.format(
        data=f"{STATED}\n{NAMED}\n[data.held_out]\nfraction = 0.3\n", unit="person", neighbours="replace-one",
        algorithm=FULL, more=f'[books]\nledger = "{tmp_path / "books.sqlite"}"',
    )  # fmt: skip
    (base / "study.toml").write_text(text)
    result = run_study(base / "study.toml", tmp_path / "run")
    row = next(one for one in result.certificate.guarantees if one.adversary == "final-model")
    assert result.certificate.plan.target.unit == "person"
    assert row.answer.epsilon <= 2.0
    assert any(one.name == "records of one person" for one in row.assumptions)
    assert result.certificate.plan.evaluation
    page = (tmp_path / "run" / "report.html").read_text()
    assert "any one person" in page
    swapped = text.replace('["site"]', '["who"]').replace('person_column = "who"', 'person_column = "site"')
    (base / "study.toml").write_text(swapped)
    with pytest.raises(FedveilError, match=r"data\.person_column must be 'who', as in the earlier runs"):
        run_study(base / "study.toml", tmp_path / "other")
    assert not (tmp_path / "other" / "model.npz").exists()
