"""A forward of one's own that is a plain chain of layers is treated as one; anything else goes record by record."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

from fedveil.core.errors import BadValue  # noqa: E402  after the skip
from fedveil.models.torch.gradients import Records, Stack  # noqa: E402
from fedveil.models.torch.loss import TorchLoss  # noqa: E402
from fedveil.models.torch.modules import layers_of  # noqa: E402

torch.set_num_threads(1)
nn, functional = torch.nn, torch.nn.functional


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.first, self.last = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(27, 8), nn.Linear(8, 2)


class Chain(Base):
    def forward(self, rows: Any) -> Any:
        here = rows.view(-1, 1, 6, 6) * 2.0
        here = functional.max_pool2d(functional.relu(self.seen(here)), 2)
        return self.last(torch.tanh(self.first(here.view(here.size(0), -1)) + 0.5))


class Skipping(Base):
    """Two ways that join."""

    def forward(self, rows: Any) -> Any:
        here = torch.relu(self.first(rows[:, :27]))
        return self.last(here + torch.tanh(here))


class Backwards(Base):
    """Layers in another order than that of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(8, 2), nn.Linear(36, 8)
        del self.seen
        self._modules["first"] = self._modules.pop("first")  # behind the last

    def forward(self, rows: Any) -> Any:
        return self.last(torch.relu(self.first(rows)))


class Sliding(Base):
    """The reshaping moves numbers from one record to the next: no flattening of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(18, 2)
        del self.seen, self.first

    def forward(self, rows: Any) -> Any:
        return self.last(rows.view(-1, 18))[: rows.shape[0]]


class Centred(Base):
    def forward(self, rows: Any) -> Any:
        return self.last(torch.relu(self.first((rows - rows.mean(0))[:, :27])))


def hooked() -> Any:
    module = Chain()
    module.first.register_forward_hook(lambda layer, given, found: found - found.mean(0))
    return module


chain, skipping, backwards, sliding, centred = Chain, Skipping, Backwards, Sliding, Centred


def loss_of(name: str) -> TorchLoss:
    return TorchLoss(module=f"{__name__}:{name}", classes=2)


def test_a_chain_in_other_words_is_a_stack_with_the_gradients_of_the_general_way() -> None:
    engine = loss_of("chain")._engine(36)
    assert isinstance(engine.work, Stack)
    source = np.random.default_rng(0)
    rows, targets = torch.from_numpy(source.normal(size=(20, 36))), torch.from_numpy(source.integers(0, 2, 20) * 1.0)
    values, ones = engine._values(0.1 * source.normal(size=engine.start.size)), torch.ones(20, dtype=torch.float64)
    general = Records(engine.module, engine.criterion, engine.names)
    expected, _ = general.clipped_sum(values, rows, targets, 0.3, ones)
    found, _ = engine.work.clipped_sum(values, rows, targets, 0.3, ones)
    assert all(torch.allclose(one, other, rtol=1e-9, atol=1e-12) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["skipping", "backwards"])
def test_what_is_no_chain_goes_record_by_record(name: str) -> None:
    assert layers_of(globals()[name]()) is None
    assert isinstance(loss_of(name)._engine(36).work, Records)


@pytest.mark.parametrize("name", ["centred", "hooked"])
def test_what_mixes_records_is_no_chain_and_is_refused(name: str) -> None:
    assert layers_of(globals()[name]()) is None
    with pytest.raises(BadValue, match=r"model\.module must"):
        loss_of(name).size(36)


def test_a_reshaping_that_moves_numbers_between_records_is_refused() -> None:
    with pytest.raises(BadValue, match=r"model\.module must treat each record by itself"):
        loss_of("sliding").size(36)
