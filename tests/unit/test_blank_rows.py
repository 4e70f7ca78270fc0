"""Dropped rows are blank records: they count in every size and contribute exactly zero."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contract.method_examples import EXAMPLES, trained
from fedveil.certificate.assumptions import assumptions
from fedveil.core.errors import BadValue
from fedveil.data.canaries import Canaries
from fedveil.data.records import Records
from fedveil.jobs.local import open_study, plan_study, run_study
from fedveil.models.loss import Loss
from fedveil.models.margin import Huber, Logistic, SmoothedHinge
from fedveil.models.softmax import Softmax
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import parse_study

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(9, 3)) / 4
Y = np.array([0.0, 1, 1, 0, 1, 0, 0, 1, 0])
OUT = np.array([2, 5, 6])


def blanked(records: Records, places: list[int]) -> Records:
    """The records with these made blank."""
    features, targets = records.features.copy(), records.targets.copy()
    features[places], targets[places] = 0.0, np.nan
    return replace(records, features=features, targets=targets)


def torch_loss() -> Loss:
    pytest.importorskip("torch")
    from fedveil.models.torch.loss import TorchLoss

    return TorchLoss(module=f"{__name__}:network", classes=2)


def network() -> object:
    """A network whose gradient at a row of zeros is not zero: its biases learn from the label alone."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


@pytest.mark.parametrize(
    "make",
    [Logistic, SmoothedHinge, Huber, lambda: Softmax(2), torch_loss],
    ids=["logistic", "hinge", "huber", "softmax", "torch"],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_loss_leaves_blank_records_out_of_its_sums(make: Callable[[], Loss], weighted: bool) -> None:
    loss = make()
    w = GENERATOR.normal(size=loss.size(3)) / 9
    rows, targets, weights = X.copy(), Y.copy(), np.linspace(0.5, 1, 9) if weighted else None
    rows[OUT], targets[OUT] = 0.0, np.nan
    kept = np.setdiff1d(np.arange(9), OUT)
    found, _ = loss.gradient(w, rows, targets, clip=0.4, weights=weights)
    wanted, _ = loss.gradient(w, X[kept], Y[kept], clip=0.4, weights=None if weights is None else weights[kept])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_method_trains_as_if_a_blank_record_had_contributed_zero(name: str) -> None:
    example = EXAMPLES[name]
    if example.tables["model"]["kind"] == "torch":
        pytest.skip("a row of zeros is no zero there; the loss itself is looked at above")
    if name == "dpsgd, adaptive":
        pytest.skip("a row of zeros votes that it lies within the clip, and a blank record has no vote")
    plan, records = example.plan(), example.data()
    blank = blanked(records, [1, 7, 30])
    zeros = replace(blank, targets=np.where(np.isnan(blank.targets), 0.0, blank.targets))
    assert blank.shape == records.shape == plan.data
    one, other = (trained(plan, given, Entropy.from_seed(2)) for given in (blank, zeros))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


def test_only_a_row_of_zeros_may_lack_its_target() -> None:
    owner = np.zeros(2, dtype=np.int64)
    with pytest.raises(
        BadValue, match=r"Records\.targets must be finite, got 'NaN'\. A blank record has a row of zeros"
    ):
        Records(features=np.ones((2, 1)), targets=np.array([0, np.nan]), owner=owner, clients=1, bound=1.0, classes=2)
    with pytest.raises(BadValue, match=r"Records\.targets must be finite, got 'infinity'"):
        Records(features=np.zeros((2, 1)), targets=np.array([0, np.inf]), owner=owner, clients=1, bound=1.0, classes=0)


def test_a_client_of_blank_records_stays_and_is_not_measured() -> None:
    records = Records(
        features=np.array([[0.5], [0.0], [0.2]]),
        targets=np.array([1, np.nan, 0]),
        owner=np.array([0, 1, 2]),
        clients=3,
        bound=1.0,
        classes=2,
        names=("a", "b", "c"),
    )
    assert (records.shape.clients, records.shape.records, records.blank.tolist()) == (3, 3, [False, True, False])
    assert (records.present().names, records.present().owner.tolist()) == (("a", "c"), [0, 1])
    slots = Canaries(count=20, neighbours="zero-out", unit="record")
    assert slots.blank(records).blank.sum() == 1
    assert records.fingerprint(bytes(16)) == blanked(records, [1]).fingerprint(bytes(16))


STUDY = """
[data]
source = "a.csv"
target = "y"
classes = 2
feature_bound = 1.0
{data}
[clients]
{clients}
[model]
kind = "logistic"
[privacy]
epsilon = 5.0
delta = {delta}
{privacy}
[algorithm]
kind = "hidden"
order = "public"
[schedule]
kind = "constant"
passes = 1
rounds = 2
{more}
"""


def study(folder: Path, data: str = "", clients: str = "kind = 'record'", **more: str) -> Path:
    """120 rows of 12 sites, of which every tenth lacks a value."""
    coins = np.random.default_rng(0)
    rows = [f"{'' if i % 10 == 3 else coins.normal():.5},{i % 12},{i % 2}" for i in range(120)]
    (folder / "a.csv").write_text("\n".join(["a,site,y", *rows]) + "\n")
    stated = {"data": data, "clients": clients, "delta": "1e-4", "privacy": "", "more": "", **more}
    path = folder / "study.toml"
    path.write_text(STUDY.format(**stated))
    return path


DROP = "default_fill = 'drop-row'\n"
COLUMN = DROP + "client_column = 'site'\n"


def test_the_certificate_says_what_a_dropped_row_and_a_client_column_mean(tmp_path: Path) -> None:
    plan = plan_study(study(tmp_path, COLUMN, "kind = 'column'")).plan
    assert (plan.data.records, plan.origin.blank_rows, plan.origin.places) == (120, True, "client column")
    rows = {row.name: row for row in assumptions(plan, "final-model")}
    assert rows["a dropped row (missing value)"].value == "contributes zero"
    assert rows["who holds which record is public"].enforced_by.startswith("declared: the client column is public")
    plain = plan_study(study(tmp_path, ["ignore = ['a']", "features = 1"][0])).plan
    assert (plain.origin.blank_rows, plain.origin.places) == (False, None)
    assert not {"a dropped row (missing value)", "who holds which record is public"} & {
        row.name for row in assumptions(plain, "final-model")
    }


@pytest.mark.parametrize("baselines", [False, True])
def test_blank_rows_are_neither_measured_nor_in_the_way_of_baselines(tmp_path: Path, baselines: bool) -> None:
    held = f"public = true\n{COLUMN}[data.held_out]\nfraction = 0.4\n"
    more = "[report]\nbaselines = true" if baselines else ""
    metrics = run_study(study(tmp_path, held, "kind = 'column'", more=more), tmp_path / "out").metrics
    assert metrics["test"]["records"] == 48
    assert 0 <= metrics["test"]["accuracy"] <= 1
    assert metrics["test"]["loss"] > 0
    assert set(metrics["test"]["per_client"]) <= {str(site) for site in range(12)}  # the records are public
    assert len(metrics["baselines"]) == 2 * baselines


def test_whole_clients_are_held_out_where_clients_are_protected(tmp_path: Path) -> None:
    held = COLUMN + "[data.held_out]\nfraction = 0.3\nseed = 1\n"
    path = study(tmp_path, held, "kind = 'column'", privacy="unit = 'client'\nneighbours = 'zero-out'")
    _, loaded = open_study(path)
    assert loaded.test is not None
    assert not set(loaded.train.names) & set(loaded.test.names)
    assert set(loaded.train.names) | set(loaded.test.names) == {str(site) for site in range(12)}
    assert set(loaded.train.sizes.tolist()) | set(loaded.test.sizes.tolist()) == {10}
    text = path.read_text().replace("fraction = 0.3\nseed = 1", "fraction = 0.01")
    sentence = r"hold out some of the 12 clients and leave some.* got '0 of them'\. With data\.held_out\.seed = \d+ it"
    with pytest.raises(BadValue, match=sentence):
        open_study(parse_study(text, base=tmp_path))


def test_private_records_of_protected_clients_are_not_measured_on(tmp_path: Path) -> None:
    held = COLUMN + "[data.held_out]\nsource = 'a.csv'\n"
    path = study(tmp_path, held, "kind = 'column'", privacy="unit = 'client'\nneighbours = 'zero-out'")
    with pytest.raises(BadValue, match=r"\[data\.held_out\] must be about other clients, or public"):
        open_study(path)
    text = path.read_text().replace("source = 'a.csv'", "source = 'a.csv'\npublic = true")
    assert open_study(parse_study(text, base=tmp_path))[1].test_public


@pytest.mark.parametrize("public", [False, True])
def test_scores_of_single_clients_leave_only_where_their_records_are_public(tmp_path: Path, public: bool) -> None:
    held = COLUMN + f"[data.held_out]\nfraction = 0.4\npublic = {str(public).lower()}\n"
    held += "[evaluation]\nprivate = false\n"  # exact, whoever they are of
    result = run_study(study(tmp_path, held, "kind = 'column'"), tmp_path / "out")
    kept = result.folder / "private" / "per_client.json"
    assert ("per_client" in result.metrics["test"]) == public
    assert ("per_client" in (result.folder / "metrics.json").read_text()) == public
    assert kept.exists() != public
    assert public or kept.stat().st_mode & 0o77 == 0
