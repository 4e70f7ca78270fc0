"""Torch modules as losses: what is refused and how, what a plan keeps of them, and what a schedule needs."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.core.importing import allowing, give
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.torch.library import right_threads
from fedveil.models.torch.loss import TorchLoss
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import grid_of, promise
from fedveil.planning.study import study_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")
torch.set_num_threads(1)  # small layers: threads would only wait for each other
nn = torch.nn


def with_model(*layers: Any) -> Callable[[], Any]:
    return lambda: nn.Sequential(*layers)


class Centred(nn.Module):
    """Takes the batch's mean off: no record stands for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x - x.mean(dim=0))


class Random(Centred):
    def forward(self, x: Any) -> Any:
        return self.layer(x) * torch.rand(1)


class Counting(Centred):
    """A buffer that changes in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.seen += x.abs().sum().detach()
        return self.layer(x)


class Branching(Centred):
    def forward(self, x: Any) -> Any:
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


class BranchingAlike(Centred):
    """Python looks at the numbers: no other record matters, but vmap cannot follow."""

    def forward(self, x: Any) -> Any:
        return self.layer(x) if x.sum() > 1e6 else self.layer(2 * x)


def frozen() -> Any:
    module = nn.Linear(3, 2)
    for value in module.parameters():
        value.requires_grad_(False)
    return module


def infinite() -> Any:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.bias[0] = float("inf")
    return module


small = with_model(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
one_output = with_model(nn.Linear(3, 1))
batch_norm = with_model(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
instance_norm = with_model(nn.Unflatten(1, (1, 3)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Linear(3, 2))
dropout = with_model(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
lazy = with_model(nn.LazyLinear(2))
nothing = with_model(nn.Tanh())
complex_numbers = with_model(nn.Linear(3, 2, dtype=torch.complex64))
other_rows = with_model(nn.Linear(5, 2))
centred, random, counting, branching, branching_alike = Centred, Random, Counting, Branching, BranchingAlike


def failing() -> Any:
    return 1 / 0


def no_module() -> str:
    return "a text"


def sized(features: int, classes: int, hidden: int = 5) -> Any:
    return nn.Sequential(nn.Linear(features, hidden), nn.Linear(hidden, classes))


def mean_loss(outputs: Any, targets: Any) -> Any:
    return (outputs[:, 0] - targets).square().mean()


def mixing_loss(outputs: Any, targets: Any) -> Any:
    return (outputs[:, 0] - outputs[:, 0].mean() - targets).square()


def loss_of(name: str, classes: int = 2, **more: Any) -> TorchLoss:
    return TorchLoss(module=f"{__name__}:{name}", classes=classes, **more)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("batch_norm", "do without batch normalisation, got 'BatchNorm1d .* use GroupNorm or LayerNorm"),
        ("instance_norm", "keep no running statistics"),
        ("dropout", "do without dropout"),
        ("lazy", "give every parameter its shape"),
        ("nothing", "have parameters to learn"),
        ("frozen", "have parameters to learn"),
        ("complex_numbers", "have parameters that are real floating-point"),
        ("infinite", "start from finite parameters"),
        ("other_rows", r"take rows of shape \(4, 3\)"),
        ("one_output", "give 2 numbers for each of 4 rows"),
        ("centred", "treat each record by itself"),
        ("random", "be a function of its input"),
        ("counting", r"have no buffers that change in training, got \['seen'\]"),
        ("branching", "treat each record by itself"),
        ("branching_alike", "work record by record"),
        ("no_module", "be a function that returns a torch.nn.Module"),
        (
            "failing",
            "be made without arguments, or from features and classes alone, and that failed: Zero",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_module_that_makes_no_sense_is_refused_in_a_sentence(name: str, message: str) -> None:
    with pytest.raises(BadValue, match=f"model.module must {message}"):
        loss_of(name).size(3)


@pytest.mark.parametrize(("name", "message"), [("mean_loss", "one number for each"), ("mixing_loss", "by itself")])
def test_a_criterion_of_the_user_must_keep_records_apart(name: str, message: str) -> None:
    with pytest.raises(BadValue, match=f"model.criterion must .*{message}"):
        loss_of("one_output", 0, criterion=f"{__name__}:{name}").size(3)


@pytest.mark.parametrize(
    "bad",
    [
        {"module": "no colon"},
        {"criterion": "hinge"},
        {"criterion": "mse", "classes": 2},
        {"criterion": "cross-entropy", "classes": 0},
        {"precision": "float16"},
        {"parameters": 0},
        {"classes": 1},
    ],
)
def test_senseless_settings_are_refused_before_anything_is_loaded(bad: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=r"model\.\w+ must"):
        TorchLoss(**({"module": "a:b", "classes": 2} | bad))


def test_a_function_may_ask_for_the_width_of_a_row_and_the_number_of_classes() -> None:
    assert loss_of("sized", 3).size(7) == (7 + 1) * 5 + (5 + 1) * 3


def test_a_module_that_cannot_be_found() -> None:
    with pytest.raises(BadValue, match=r"Write models.net:make, as in an import\."):
        TorchLoss(module="models/net.py:make", classes=2).size(3)
    with allowing("not_here:make"), pytest.raises(BadValue, match="No module named 'not_here'"):
        TorchLoss(module="not_here:make", classes=2).size(3)
    with allowing(f"{__name__}:nobody"), pytest.raises(BadValue, match="must name a function in"):
        loss_of("nobody").size(3)


def test_the_start_is_the_same_every_time_and_torch_keeps_its_own_seed() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    fresh = loss_of("centred_free").start(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    np.testing.assert_array_equal(fresh[:6], layer.weight.detach().double().numpy().ravel())


def centred_free() -> Any:
    return nn.Linear(3, 2)


def test_another_module_than_the_planned_one_is_refused() -> None:
    with pytest.raises(BadValue, match="have the plan's 27 parameters, got 26"):
        loss_of("small", parameters=27).gradient(np.zeros(27), np.zeros((1, 3)), np.zeros(1), clip=1.0)


def test_a_copy_of_the_module_with_what_was_learned() -> None:
    loss, rows = loss_of("small"), np.random.default_rng(0).normal(size=(5, 3))
    w = np.random.default_rng(1).normal(size=26)
    module = loss.module_at(w, 3)
    found = module(torch.from_numpy(rows)).argmax(dim=1).double().numpy()
    np.testing.assert_array_equal(found, loss.predict(w, rows))
    np.testing.assert_allclose(loss.module_at(np.zeros(26), 3)[0].weight.detach().numpy().ravel(), loss.start(3)[:12])


def some_records(count: int = 200) -> Records:
    source = np.random.default_rng(0)
    rows = source.normal(size=(count, 3)) / 3
    return Records(
        features=rows,
        targets=(rows[:, 0] * rows[:, 1] > 0).astype(np.float64),
        owner=np.arange(count),
        clients=count,
        names=(),
        bound=5.0,
        classes=2,
    )


def planned(records: Records, model: dict[str, Any] | None = None, **schedule: Any) -> Plan:
    tables = {
        "model": {"kind": "torch", "module": f"{__name__}:small", "clip": 1.0, "radius": 2.0} | (model or {}),
        "privacy": {"epsilon": 2.0, "delta": 1e-4},
        "schedule": {"step_size": 0.5, "batch": 20, "passes": 2} | schedule,
        "algorithm": {"kind": "hidden", "order": "secret"},
    }
    return study_of(tables, base=Path(), data_given=True).planned(records.shape).plan


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_hidden_run_uses_neither_convexity_nor_smoothness_and_the_grid_costs_nothing(precision: str) -> None:
    records = some_records()
    plan = planned(records, {"precision": precision})
    assert (plan.run.smoothness, plan.run.convex, plan.dimension) == (None, False, 26)
    found = promise(plan, "final-model")
    assert 1.99 < found.epsilon <= 2.0
    assert {bound.name for bound in found.bounds if bound.status == "certified"} == {"unhidden", "block"}
    assert grid_of(plan, "final-model").distance < 1e-6
    trained = train(plan, records, Entropy.from_seed(0))
    model = trained.model
    assert 0 < np.linalg.norm(model) <= 2.0 * (1 + 1e-12)
    assert trained.dropped == 0


def test_projection_hides_the_rounds_of_long_runs_with_small_balls() -> None:
    """Where noise is large beside the ball, later rounds hide a record, without convexity or smoothness."""
    plan = planned(some_records(), {"radius": 0.01}, step_size=0.5, passes=1, batch=1)
    unhidden = next(b.epsilon for b in promise(plan, "final-model").bounds if b.name == "unhidden")
    assert unhidden is not None
    assert promise(plan, "final-model").epsilon < 0.9 * unhidden


def test_the_plan_keeps_the_module_and_reads_back_without_loading_it(tmp_path: Path) -> None:
    plan = planned(some_records())
    text = write_plan(plan)
    assert read_plan(text) == plan
    other = replace(plan, model=replace(plan.model, module="somewhere_else:small"))
    assert other.hash != plan.hash
    (tmp_path / "plan.toml").write_text(write_plan(other), encoding="utf-8")
    code = (
        "import sys; from pathlib import Path;"
        "from fedveil.planning.plan import read_plan; from fedveil.planning.promises import promise;"
        "plan = read_plan(Path('plan.toml').read_text()); assert promise(plan, 'final-model').epsilon <= 2;"
        "assert 'torch' not in sys.modules and 'somewhere_else' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("model", "schedule", "message"),
    [
        ({"clip": None}, {}, r"model\.clip must be given for a torch model"),
        ({"module": None}, {}, r"model\.module must be given for a torch model"),
        ({"smoothing": 1.0}, {}, r"model\.smoothing must be left out"),
        ({"parameters": 27}, {}, r"model\.parameters must be the module's, 26"),
        ({"kind": "logistic"}, {}, r"model\.module must be left out with a kind other than torch"),
        ({}, {"step_size": None}, r"schedule\.step_size must be given for a torch model"),
        ({}, {"batch": None}, r"schedule\.batch must be given"),
        ({}, {"kind": "growing-batches", "batch": None, "rounds": 2}, r"schedule\.kind must be auto or constant"),
        ({}, {"batch": None, "passes": None, "rounds": "converged"}, r"schedule\.rounds must be a number"),
        ({}, {"batch": 150, "rounds": 2}, r"schedule\.batch must leave every one of 200 units"),
        ({}, {"noise_std": 1e-3}, r"schedule\.noise_std must meet epsilon 2"),
        ({"l2": 10.0}, {}, r"schedule\.step_size must be at most 2/l2"),
    ],
)
def test_what_a_study_of_a_torch_model_must_say(model: dict[str, Any], schedule: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        planned(some_records(), model, **schedule)


def test_given_noise_and_lists_are_kept() -> None:
    plan = planned(some_records(), {}, step_size=tuple(np.linspace(1, 0.5, 10)), noise_std=5.0, rounds=10)
    assert plan.run.noise_std == 5.0
    assert isinstance(plan.run.step_size, tuple)


def test_a_small_module_computes_in_one_thread_and_a_large_one_in_all() -> None:
    torch.set_num_threads(2)
    try:
        with right_threads(1000):
            assert torch.get_num_threads() == 1
        with right_threads(10**6):
            assert torch.get_num_threads() == 2
        seen = []

        class Watching(nn.Linear):
            def forward(self, rows: Any) -> Any:
                seen.append(torch.get_num_threads())
                return super().forward(rows)

        loss = TorchLoss(module=give(lambda: Watching(3, 2)), classes=2)
        engine = loss._engine(3)
        seen.clear()
        loss.gradient(np.zeros(engine.start.size), np.ones((5, 3)), np.zeros(5), clip=1.0)
        loss.scores(np.zeros(engine.start.size), np.ones((5, 3)))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
