"""The ready generator: gradients by two ways, the same bits in any company, and codes moved by normal numbers."""

import resource

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.core.values import Vector
from fedveil.models.torch.criteria import OWN, vae_name
from fedveil.models.torch.loss import TorchLoss

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

FEATURES, CLASSES, GRAIN = 6, 3, 2.0**-40
LOSS = TorchLoss(module=vae_name(FEATURES, CLASSES, 2, 5), classes=CLASSES, criterion=OWN)


def records(count: int) -> tuple[Vector, Vector]:
    draw = np.random.default_rng(4)
    return draw.uniform(-1, 1, size=(count, FEATURES)), draw.integers(CLASSES, size=count).astype(np.float64)


def at() -> Vector:
    return np.random.default_rng(5).normal(size=LOSS.size(FEATURES)) / 3


def test_one_pass_gives_the_gradients_of_records_computed_one_by_one() -> None:
    from fedveil.models.torch.engine import engine
    from fedveil.models.torch.gradients import Linears, Records

    made = engine(LOSS.module, OWN, CLASSES, "float64", FEATURES)
    assert isinstance(made.work, Linears)
    rows, targets = (torch.from_numpy(part) for part in records(20))
    values, ones = made._values(at()), torch.ones(20, dtype=torch.float64)
    apart, _ = Records(made.module, None, made.names).clipped_sum(values, rows, targets, 0.01, ones)
    found, usable = made.work.clipped_sum(values, rows, targets, 0.01, ones)
    assert bool(usable.all())
    for one, other in zip(found, apart, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-9, atol=1e-12)


def test_gradients_are_those_of_the_loss_by_differences() -> None:
    rows, targets = records(1)
    step, w, draw = 1e-6, at(), np.random.default_rng(6)
    held = _salted(w)  # the moves depend on these parameters, and are no part of the slope
    way = np.where(held, 0.0, draw.normal(size=w.size))
    total, _ = LOSS.gradient(w, rows, targets, clip=1e9)
    slope = (LOSS.value(w + step * way, rows, targets) - LOSS.value(w - step * way, rows, targets)) / (2 * step)
    assert total @ way == pytest.approx(slope, rel=1e-5)


def _salted(w: Vector) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    module, held, start = LOSS.module_at(w, FEATURES), np.zeros(w.size, dtype=np.bool_), 0
    for name, value in module.named_parameters():
        held[start : start + value.numel()] = name == "code.bias"
        start += value.numel()
    return held


def test_a_record_adds_the_same_bits_in_any_company() -> None:
    """Neighbours differ by one record; what all others add is the same to the bit, whoever it is."""
    rows, targets = records(70)
    w = at()

    def total(chosen: "slice | list[int]") -> Vector:
        return LOSS.gradient(w, rows[chosen], targets[chosen], clip=0.02, grain=GRAIN)[0]

    others, alone = total(slice(1, 70)), total(slice(0, 1))
    assert np.array_equal(total(slice(0, 70)) - others, alone)
    each = [total([place]) for place in range(70)]
    assert np.array_equal(np.sum(each, axis=0), others + alone)
    assert all(np.linalg.norm(one) <= 0.02 for one in each)
    order = np.random.default_rng(1).permutation(70).tolist()
    assert np.array_equal(total(order), others + alone)


def test_moves_are_normal_numbers_of_the_record_that_change_with_the_parameters() -> None:
    """By a fixed seed: 4000 numbers whose mean and variance are within five deviations of 0 and 1."""
    rows, targets = (torch.from_numpy(part) for part in records(2000))
    module = LOSS.module_at(at(), FEATURES)
    moves = module._moves(rows, targets)
    assert abs(float(moves.mean())) < 5 / 4000**0.5
    assert abs(float(moves.var()) - 1) < 5 * (2 / 4000) ** 0.5
    assert torch.equal(moves[7:9], module._moves(rows[7:9], targets[7:9]))
    later = LOSS.module_at(at() + 1e-6, FEATURES)._moves(rows, targets)
    assert float((later == moves).double().mean()) < 0.01
    assert abs(float((later * moves).mean())) < 5 / 4000**0.5


def test_the_class_of_least_loss_is_predicted() -> None:
    rows, _ = records(4)
    w = at()
    each = np.stack([[LOSS.value(w, row[None], np.array([float(k)])) for k in range(CLASSES)] for row in rows])
    np.testing.assert_allclose(LOSS.scores(w, rows), -each)
    assert LOSS.predict(w, rows).tolist() == each.argmin(axis=1).tolist()


def test_an_own_loss_needs_classes() -> None:
    with pytest.raises(ValueError, match=r"model\.criterion must suit data of 0 classes"):
        TorchLoss(module="file:make", criterion=OWN)


@pytest.mark.parametrize(
    "name",
    ["vae_40000_2_8_40000", "moments_9999_9999", "pair_40000_2_8_40000"],
)
def test_a_name_cannot_ask_for_a_module_that_fills_the_memory(name: str) -> None:
    """A bundle from others may name our modules, with sizes of its own."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadValue, match=r"model\.module must (have at most 1e\+08 parameters|name a function)"):
        TorchLoss(module=f"fedveil.models.torch.generators:{name}", classes=2, criterion=OWN).size(40000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kilobytes
