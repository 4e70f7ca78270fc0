"""Many batches at once give each batch the bits that it has alone, whatever is computed beside it."""

import itertools

import numpy as np
import pytest

from fedveil.models.loss import StackedLoss
from fedveil.models.margin import Huber, Logistic, MarginLoss, Poisson, SmoothedHinge
from fedveil.models.softmax import Softmax

LOSSES = [Logistic(), SmoothedHinge(), Huber(), Poisson(rate=0.1), Softmax(classes=3), Softmax(classes=10)]
SHAPES = list(itertools.product((1, 2, 3, 5, 8, 17, 33, 60), (1, 2, 7, 16, 31, 65, 124)))


def _batches(generator: np.random.Generator, loss: MarginLoss | Softmax, count: int, rows: int, width: int):
    X = generator.normal(size=(count, rows, width)) * generator.choice([1e-3, 0.3, 2.0], size=(count, rows, 1))
    y = generator.integers(0, max(loss.classes, 2), size=(count, rows)).astype(np.float64)
    w = generator.normal(size=(count, loss.size(width)))
    return w, X, y, np.sqrt(np.vecdot(X, X))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.kind}-{loss.outputs}")
def test_a_batch_has_the_bits_that_it_has_alone(loss: MarginLoss | Softmax) -> None:
    assert isinstance(loss, StackedLoss)
    generator = np.random.default_rng(3)
    for rows, width in SHAPES:
        w, X, y, norms = _batches(generator, loss, 6, rows, width)
        found = loss.gradients(w, X, y, clip=0.7, norms=norms)
        some = np.array([4, 1])
        fewer = loss.gradients(w[some], X[some], y[some], clip=0.7, norms=norms[some])
        assert fewer.tobytes() == found[some].tobytes()
        for place in range(6):
            mine = X[place].copy(), y[place].copy()  # at another address, as at another site
            alone, _ = loss.gradient(w[place].copy(), *mine, clip=0.7, norms=norms[place].copy())
            assert alone.tobytes() == found[place].tobytes(), (rows, width, place)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.kind}-{loss.outputs}")
def test_a_row_that_is_no_number_is_left_out_of_its_own_batch_alone(loss: MarginLoss | Softmax) -> None:
    w, X, y, norms = _batches(np.random.default_rng(4), loss, 5, 9, 12)
    clean = loss.gradients(w, X, y, clip=0.7, norms=norms)
    X[1, 3, 2], y[2, 5] = np.nan, np.nan
    norms = np.sqrt(np.vecdot(X, X))
    found = loss.gradients(w, X, y, clip=0.7, norms=norms)
    for place in range(5):
        alone, _ = loss.gradient(w[place], X[place], y[place], clip=0.7, norms=norms[place])
        assert alone.tobytes() == found[place].tobytes()
        assert np.isfinite(found[place]).all()
        assert (found[place].tobytes() == clean[place].tobytes()) == (place not in (1, 2))


def test_one_model_for_all_batches_need_not_be_copied() -> None:
    loss = Softmax(classes=4)
    w, X, y, norms = _batches(np.random.default_rng(5), loss, 7, 11, 6)
    same = np.broadcast_to(w[0], w.shape)
    found = loss.gradients(same, X, y, clip=0.7, norms=norms)
    assert found.tobytes() == loss.gradients(same.copy(), X, y, clip=0.7, norms=norms).tobytes()


def test_stacks_that_do_not_fit_are_refused() -> None:
    loss = Logistic()
    w, X, y, norms = _batches(np.random.default_rng(6), loss, 4, 5, 3)
    with pytest.raises(ValueError, match="w must have a row of 3 parameters for each batch"):
        loss.gradients(w[:3], X, y, clip=0.7, norms=norms)
    with pytest.raises(ValueError, match=r"norms must have one entry per row, \(4, 5\)"):
        loss.gradients(w, X, y, clip=0.7, norms=norms[:, :4])
