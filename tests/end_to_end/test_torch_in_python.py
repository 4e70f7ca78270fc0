"""Torch models as programs use them: a module and a data set given in Python, Adam, freezing, adapters, resuming."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

from fedveil import BadValue, FrozenFeatures, give, plan_study, run_study  # noqa: E402
from fedveil.engine.system import Interrupted, Progress  # noqa: E402
from fedveil.jobs.local import Result  # noqa: E402

_HEAD = 2 * 8 + 2


def _make() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def _frozen() -> Any:
    module = _make()
    module[0].requires_grad_(False)
    return module


class _Adapter(torch.nn.Module):  # type: ignore[name-defined,misc]
    """A frozen linear layer with a trained update of low rank beside it."""

    def __init__(self, layer: Any, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = torch.nn.Linear(layer.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, layer.out_features, bias=False)
        torch.nn.init.zeros_(self.up.weight)  # so that training begins with the frozen layer itself

    def forward(self, rows: Any) -> Any:
        return self.layer(rows) + self.up(self.down(rows))


def _adapted() -> Any:
    module = _make()
    return torch.nn.Sequential(_Adapter(module[0], 2), module[1], _Adapter(module[2], 2))


class _Signs(torch.utils.data.Dataset):  # type: ignore[name-defined,misc]
    """The sign of a product, as a data set."""

    def __init__(self, count: int, seed: int) -> None:
        self.rows = torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, size=(count, 1, 3)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        row = self.rows[place]
        return row, int(row[0, 0] * row[0, 1] > 0)


class _Endless(torch.utils.data.IterableDataset):  # type: ignore[name-defined,misc]
    """A data set that nobody can count."""

    def __iter__(self) -> Any:
        return iter(())


def _tables(**changes: Any) -> dict[str, Any]:
    algorithm = {
        "kind": "dpsgd",
        "sampling": "shuffled",
        "optimizer": {"kind": "adam", "average": 0.9, "decay": "cosine", "weight_decay": 0.01, "warm_up": 2},
    }
    return {
        "study": {"seed": 3},
        "data": {"feature_bound": 2.0, "intercept": 0.0, "classes": 2},
        "clients": {"kind": "equal", "count": 1},
        "model": {"kind": "torch", "clip": 1.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-4},
        "algorithm": algorithm,
        "schedule": {"step_size": 0.02, "batch": 100, "passes": 4},
        **changes,
    }


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    out = tmp_path_factory.mktemp("given") / "results"
    return run_study(_tables(), out, data=(_Signs(600, 0), _Signs(100, 1)), module=_make)


def test_a_module_and_data_sets_are_given_in_python(result: Result) -> None:
    plan = result.certificate.plan
    assert plan.model.module == give(_make)
    assert plan.data.records == 600
    assert plan.held_out.records == 100
    assert not plan.held_out.public
    assert plan.data.features == 3
    assert len(result.model.predict(np.zeros((2, 3)))) == 2


def test_adam_that_was_killed_and_resumed_gives_the_same_bits(result: Result, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 9:
            raise Interrupted("stopped by the test")

    given: dict[str, Any] = {"data": (_Signs(600, 0), _Signs(100, 1)), "module": _make}
    with pytest.raises(Interrupted):
        run_study(_tables(), tmp_path / "again", watch=stop, **given)
    run_study(_tables(), tmp_path / "again", resume=True, **given)
    again, whole = ((folder / "model.npz").read_bytes() for folder in (tmp_path / "again", result.folder))
    assert again == whole


def test_another_optimiser_is_no_resumption(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        raise Interrupted("stopped by the test")

    with pytest.raises(Interrupted):
        run_study(_tables(), tmp_path / "run", watch=stop, data=_Signs(300, 0), module=_make)
    other = _tables()
    steps = {**other["algorithm"]["optimizer"], "weight_decay": 0.02}
    other["algorithm"] = {**other["algorithm"], "optimizer": steps}
    with pytest.raises(BadValue, match=r"method\.optimiser\.weight_decay was 0\.01 and is 0\.02 now"):
        run_study(other, tmp_path / "run", resume=True, data=_Signs(300, 0), module=_make)


@pytest.mark.parametrize(("make", "trained"), [(_frozen, _HEAD), (_adapted, 2 * (3 + 8) + 2 * (8 + 2))])
def test_frozen_parameters_are_not_trained_not_noised_and_not_counted(make: Any, trained: int, tmp_path: Path) -> None:
    result = run_study(_tables(), tmp_path / "run", data=_Signs(300, 0), module=make)
    plan = result.certificate.plan
    assert plan.model.parameters == plan.dimension == trained
    module = plan.model.loss.module_at(result.model.bundle.parameters, 3)  # type: ignore[attr-defined]
    before = dict(_start(make).named_parameters())
    moved = {name for name, value in module.named_parameters() if not torch.equal(value, before[name].double())}
    assert moved == {name for name, value in before.items() if value.requires_grad}


def _start(make: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def test_a_head_on_a_frozen_module_is_convex() -> None:
    """The same frozen layer as a feature map: a logistic model with the hidden bounds in place of a torch model."""
    backbone = FrozenFeatures(_start(_make)[:2], shape=(3,))
    tables = _tables(model={"kind": "logistic"}, algorithm={"kind": "hidden", "order": "secret"})
    tables["schedule"] = {"rounds": 3, "passes": 2}
    plan = plan_study(tables, _Signs(300, 0), feature_map=backbone).plan
    assert plan.constants.convex
    assert plan.dimension == 8
    assert plan.origin.feature_map == give(FrozenFeatures(_start(_make)[:2], shape=(3,)))
    with torch.no_grad():
        other = _start(_make)[:2]
        other[0].bias += 1e-3
    assert plan.origin.feature_map != give(FrozenFeatures(other, shape=(3,)))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (torch.utils.data.TensorDataset(torch.zeros(3, 2)), "must be a pair of an array and a label"),
        (torch.utils.data.TensorDataset(torch.zeros(0, 2), torch.zeros(0)), "must have at least one record"),
        (torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.zeros(3, 2)), "must have one label"),
        (_Endless(), "must have a length"),
    ],
)
def test_bad_data_sets_are_refused(data: Any, told: str) -> None:
    with pytest.raises(BadValue) as refused:
        plan_study(_tables(), data, module=_make)
    assert told in str(refused.value)


def test_a_function_beside_its_name_is_refused() -> None:
    named = _tables(model={"kind": "torch", "clip": 1.0, "module": "a:b"})
    with pytest.raises(BadValue, match=r"model\.module must be left out when the function itself is given"):
        plan_study(named, _Signs(300, 0), module=_make)
