"""What a record adds to a batch of a torch model is the same to the bit, whoever else is in the batch."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

from fedveil.core.errors import BadValue  # noqa: E402  after the skip
from fedveil.models.rows import grain_of  # noqa: E402
from fedveil.models.torch.blocks import SLOTS, blocks_of, slots_of  # noqa: E402
from fedveil.models.torch.loss import TorchLoss  # noqa: E402

torch.set_num_threads(1)
nn = torch.nn
Vector = NDArray[np.float64]
FEATURES, COUNT = 36, 90


def linear() -> Any:
    return nn.Linear(FEATURES, 3)


def layers() -> Any:
    return nn.Sequential(nn.Linear(FEATURES, 20), nn.ReLU(), nn.Linear(20, 7, bias=False), nn.Tanh(), nn.Linear(7, 3))


def images() -> Any:
    first = [nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 1)]
    return nn.Sequential(*first, nn.Conv2d(4, 5, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3))


class Chain(nn.Module):
    """A stack in other words: its forward is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.out = nn.Conv2d(1, 3, 3), nn.Linear(12, 3)

    def forward(self, rows: Any) -> Any:
        here = rows.view(-1, 1, 6, 6) * 2.5 - 0.1
        here = nn.functional.max_pool2d(torch.relu(self.seen(here)), 2)
        return self.out(here.reshape(here.shape[0], -1))


class Residual(nn.Module):
    """No stack: it goes record by record."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(FEATURES, FEATURES), nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 3)

    def forward(self, rows: Any) -> Any:
        return self.last(rows + torch.relu(self.norm(self.first(rows))))


class Steep(nn.Module):
    """The gradient of a row of zeros, such as a blank, is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1.0, 2.0, FEATURES).repeat(3, 1))

    def forward(self, rows: Any) -> Any:
        return (rows @ self.weight.T).abs().sqrt() + (rows.square().sum(1, keepdim=True) * self.weight[:, 0]).sqrt()


chain, residual, steep = Chain, Residual, Steep
NETWORKS = ["linear", "layers", "images", "chain", "residual", "steep"]


def problem(name: str, precision: str, seed: int) -> tuple[TorchLoss, Vector, Vector, Vector]:
    loss = TorchLoss(module=f"{__name__}:{name}", classes=3, precision=precision)
    source = np.random.default_rng(seed)
    rows = source.normal(size=(COUNT, FEATURES))
    w = 0.1 * source.normal(size=loss.size(FEATURES))
    return loss, w, rows, source.integers(0, 3, COUNT).astype(np.float64)


def whole(loss: TorchLoss, w: Vector, rows: Vector, targets: Vector, clip: float, **more: Any) -> Any:
    grain = grain_of(clip, COUNT)
    found, lost = loss.gradient(w, rows, targets, clip=clip, grain=grain, **more)
    steps = found / grain
    assert lost == 0
    assert np.array_equal(steps, np.rint(steps))
    return steps.astype(np.int64)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_record_adds_the_same_bits_in_every_company(name: str, precision: str) -> None:
    clip = 0.7
    loss, w, rows, targets = problem(name, precision, seed=1)
    rows[5] = rows[6]  # equal records share a slot, and need two blocks
    each = np.stack([whole(loss, w, rows[i : i + 1], targets[i : i + 1], clip) for i in range(COUNT)])
    assert np.all(np.linalg.norm(each * grain_of(clip, COUNT), axis=1) <= clip)
    source = np.random.default_rng(2)
    for size in (0, 2, SLOTS, SLOTS + 1, COUNT - 1, COUNT):
        chosen = source.permutation(COUNT)[:size]
        assert np.array_equal(whole(loss, w, rows[chosen], targets[chosen], clip), each[chosen].sum(axis=0))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["layers", "images"])
def test_company_of_any_size_and_value_changes_nothing(name: str, seed: int) -> None:
    """One record, beside others that are huge, tiny, alike or no numbers at all."""
    loss, w, rows, targets = problem(name, "float32", seed)
    alone = whole(loss, w, rows[:1], targets[:1], 1.0)
    source = np.random.default_rng(seed)
    others = rows[1:] * 10.0 ** source.integers(-30, 30, (COUNT - 1, 1))
    both = np.concatenate([others[:40], rows[:1], others[40:]])
    labels = np.concatenate([targets[1:41], targets[:1], targets[41:]])
    grain = grain_of(1.0, COUNT)
    with_it, lost = loss.gradient(w, both, labels, clip=1.0, grain=grain)
    without, lost_too = loss.gradient(w, others, targets[1:], clip=1.0, grain=grain)
    assert np.array_equal((with_it - without) / grain, alone)
    assert lost == lost_too


@pytest.mark.parametrize("name", NETWORKS)
def test_the_blocks_change_next_to_nothing(name: str) -> None:
    loss, w, rows, targets = problem(name, "float64", seed=3)
    weights = np.linspace(0.1, 1.0, COUNT)
    exact, _ = loss.gradient(w, rows, targets, clip=0.4, weights=weights, grain=grain_of(0.4, COUNT))
    plain, _ = loss.gradient(w, rows, targets, clip=0.4, weights=weights)
    assert exact == pytest.approx(plain, abs=COUNT * 2.0**-19)


def test_what_is_left_out_adds_nothing_and_blanks_neither() -> None:
    """Blanks and rows that are no numbers stand where they stand with a gradient that is no number either."""
    loss, w, rows, targets = problem("steep", "float64", seed=4)
    good = whole(loss, w, rows[:30], targets[:30], 1.0)
    rows[40, 3], rows[41, 0], targets[42] = np.nan, np.inf, 7.0
    rows[43] = 0.0
    chosen = np.array([*range(30), 40, 41, 42, 43])
    found, lost = loss.gradient(w, rows[chosen], targets[chosen], clip=1.0, grain=grain_of(1.0, COUNT))
    assert lost == 4
    assert np.array_equal(found / grain_of(1.0, COUNT), good)
    nobody, lost = loss.gradient(w, rows[:0], targets[:0], clip=1.0, grain=grain_of(1.0, COUNT))
    assert (lost, np.count_nonzero(nobody)) == (0, 0)


def test_a_slot_is_a_function_of_the_record_alone_and_slots_are_used_alike() -> None:
    """The chance that 5000 fair draws leave a slot outside 16 standard deviations is far below 1e-6."""
    source = np.random.default_rng(5)
    for rows in (source.normal(size=(5000, 7)), source.integers(0, 256, (5000, 7)).astype(np.float64)):
        slots = slots_of(rows, np.zeros(5000), SLOTS)
        order = source.permutation(5000)
        assert np.array_equal(slots_of(rows[order], np.zeros(5000), SLOTS), slots[order])
        assert np.array_equal(slots_of(rows[7:8], np.zeros(1), SLOTS), slots[7:8])
        counts = np.bincount(slots, minlength=SLOTS)
        assert np.all(np.abs(counts - 5000 / SLOTS) < 16 * np.sqrt(5000 / SLOTS))


def test_every_record_is_in_one_block_in_its_own_slot() -> None:
    place = np.random.default_rng(6).integers(0, 5, 64)
    blocks = blocks_of(place, 5)
    assert blocks.shape[0] == np.bincount(place).max()
    used = blocks[blocks >= 0]
    assert np.array_equal(np.sort(used), np.arange(64))
    assert all(np.all(place[column[column >= 0]] == slot) for slot, column in enumerate(blocks.T))


def test_weights_above_one_are_refused_since_sums_would_not_be_exact() -> None:
    loss, w, rows, targets = problem("linear", "float64", seed=7)
    with pytest.raises(BadValue, match="weights must be at most 1"):
        loss.gradient(w, rows, targets, clip=1.0, weights=np.full(COUNT, 2.0), grain=grain_of(1.0, COUNT))
