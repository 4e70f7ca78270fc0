"""What a record adds to a batch is the same to the bit, whoever else is in the batch and in whatever order."""

import numpy as np
import pytest

from fedveil.core.values import Vector
from fedveil.models.loss import Loss
from fedveil.models.margin import Huber, Logistic, SmoothedHinge
from fedveil.models.rows import grain_of
from fedveil.models.softmax import Softmax

LOSSES: list[Loss] = [Logistic(), SmoothedHinge(smoothing=0.5), Huber(threshold=0.7), Softmax(4)]


def problem(loss: Loss, seed: int, count: int, features: int) -> tuple[Vector, Vector, Vector]:
    source = np.random.default_rng(seed)
    rows = source.normal(size=(count, features)) / np.sqrt(features)
    targets = source.integers(0, loss.classes, count).astype(np.float64) if loss.classes else source.normal(size=count)
    return 3 * source.normal(size=loss.size(features)), rows, targets


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: str(loss.kind))
@pytest.mark.parametrize("features", [1, 3, 37, 130])
@pytest.mark.parametrize("clip", [0.3, 5.0])
def test_a_record_adds_the_same_bits_in_every_company(loss: Loss, features: int, clip: float) -> None:
    count = 150
    w, rows, targets = problem(loss, features, count, features)
    source, grain = np.random.default_rng(1), grain_of(clip, count)

    def whole(chosen: Vector) -> Vector:
        found, _ = loss.gradient(w, rows[chosen], targets[chosen], clip=clip, grain=grain)
        steps = found / grain
        assert np.array_equal(steps, np.rint(steps))
        return steps.astype(np.int64)

    each = np.stack([whole(np.array([i])) for i in range(count)])
    for size in (0, 1, 2, 7, 64, 65, 149):
        chosen = source.permutation(count)[:size]
        assert np.array_equal(whole(chosen), each[chosen].sum(axis=0))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: str(loss.kind))
def test_the_grain_changes_next_to_nothing(loss: Loss) -> None:
    w, rows, targets = problem(loss, 5, 400, 20)
    weights = np.linspace(0.1, 1.0, 400)
    exact, _ = loss.gradient(w, rows, targets, clip=0.4, weights=weights, grain=grain_of(0.4, 400))
    plain, _ = loss.gradient(w, rows, targets, clip=0.4, weights=weights)
    assert exact == pytest.approx(plain, abs=400 * 2.0**-46)


def test_records_that_are_no_numbers_are_left_out_as_ever() -> None:
    w, rows, targets = problem(Logistic(), 3, 10, 4)
    rows[3, 1], targets[7] = np.nan, 5.0
    found, lost = Logistic().gradient(w, rows, targets, clip=1.0, grain=grain_of(1.0, 10))
    good = [i for i in range(10) if i not in (3, 7)]
    alone, _ = Logistic().gradient(w, rows[good], targets[good], clip=1.0, grain=grain_of(1.0, 10))
    assert lost == 2
    assert np.array_equal(found, alone)


@pytest.mark.parametrize("rows", [1, 64, 10**6, 2**40])
def test_sums_fit_into_64_bits(rows: int) -> None:
    for clip in (1e-3, 1.0, 1.5):
        grain = grain_of(clip, rows)
        assert np.log2(grain) == np.rint(np.log2(grain))
        assert clip * (1 + 1e-6) / grain * rows < 2**62
        assert clip * (1 + 1e-6) / grain * 64 < 2**53
