"""The generator of moments: what a record adds, what one round learns, and the law of the rows that are drawn."""

import math

import numpy as np
import pytest

from fedveil.core.values import Vector
from fedveil.models.torch.criteria import OWN, moments_name
from fedveil.models.torch.loss import TorchLoss

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

FEATURES, CLASSES = 5, 2
LOSS = TorchLoss(module=moments_name(FEATURES, CLASSES), classes=CLASSES, criterion=OWN)


def records(count: int) -> tuple[Vector, Vector]:
    """Short rows: classes of different means, whose entries vary together."""
    draw = np.random.default_rng(4)
    kinds = draw.integers(CLASSES, size=count)
    middle = np.array([[0.1, 0.2, 0.3, 0.2, 0.2], [0.3, 0.2, 0.1, 0.2, 0.25]])[kinds]
    chance = np.clip(middle + 0.05 * draw.normal(size=(count, 1)) * [1, 1, 0, -1, 0], 0, 1)
    return 2 * chance - 1, kinds.astype(np.float64)


def moments(rows: Vector, targets: Vector) -> Vector:
    """By the definition, in numpy: half of the square for the means, half for the matrix."""
    chance = (rows + 1) / 2
    reach = math.sqrt(FEATURES) / 3
    long = np.maximum(np.linalg.norm(chance, axis=1, keepdims=True), reach)
    given = np.hstack([chance / long * math.sqrt(1 - 0.09), np.full((len(rows), 1), 0.3)])
    hot = np.eye(CLASSES)[targets.astype(int)]
    return math.sqrt(0.5) * np.concatenate([(given.T @ hot).ravel(), (given.T @ given).ravel()])


def test_a_record_adds_its_moments_wherever_the_parameters_are_and_no_more_than_the_clip() -> None:
    rows, targets = records(40)
    rows[0] = 1.0  # the longest row there can be
    w = np.random.default_rng(1).normal(size=LOSS.size(FEATURES))
    total, left = LOSS.gradient(w, rows, targets, clip=1.0, grain=2.0**-40)
    assert left == 0
    np.testing.assert_allclose(-total, moments(rows, targets), rtol=1e-5, atol=1e-6)
    each = [
        LOSS.gradient(w, rows[i : i + 1], targets[i : i + 1], clip=1.0, grain=2.0**-40)[0] for i in range(len(rows))
    ]
    assert np.array_equal(np.sum(each, axis=0), total)  # the same bits in any company
    assert max(np.linalg.norm(one) for one in each) <= 1.0
    assert np.linalg.norm(each[0]) > 0.999


def test_rows_that_are_drawn_have_the_means_and_the_covariance_that_were_learned() -> None:
    """20,000 rows of a fixed seed: means and covariances within five deviations, about 0.002 and 0.0002."""
    rows, targets = records(2000)
    w = 0.01 * moments(rows, targets)  # any factor: sums are learned up to one
    kinds = np.arange(20_000) % CLASSES
    drawn = LOSS.sampler(w, FEATURES)(kinds, 3)
    assert np.abs(drawn).max() <= 1.0
    chance, real = (drawn + 1) / 2, (rows + 1) / 2
    for kind in range(CLASSES):
        own, given = chance[kinds == kind], real[targets == kind]
        np.testing.assert_allclose(own.mean(axis=0), given.mean(axis=0), atol=0.004)
    within = np.mean([np.cov(real[targets == kind].T) for kind in range(CLASSES)], axis=0)
    found = np.mean([np.cov(chance[kinds == kind].T) for kind in range(CLASSES)], axis=0)
    np.testing.assert_allclose(found, within, atol=0.0006)


def test_noise_alone_draws_rows_in_their_range() -> None:
    w = np.random.default_rng(2).normal(size=LOSS.size(FEATURES))
    drawn = LOSS.sampler(w, FEATURES)(np.zeros(50, dtype=np.int64), 1)
    assert np.isfinite(drawn).all()
    assert np.abs(drawn).max() <= 1.0
