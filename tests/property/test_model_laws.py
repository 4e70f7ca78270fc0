"""Laws of the losses: constants are never exceeded, and steps along clipped gradients bring models no further apart."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.core.values import Vector
from fedveil.models.adjusted import Adjusted
from fedveil.models.loss import Constants, Loss, with_l2
from fedveil.models.margin import Huber, Logistic, SmoothedHinge
from fedveil.models.rows import row_norms
from fedveil.models.softmax import Softmax

LOSSES: list[Loss] = [
    Logistic(),
    SmoothedHinge(0.3),
    SmoothedHinge(2.0),
    Huber(0.7),
    Softmax(2),
    Softmax(3),
    Softmax(7),
    Adjusted(Logistic(), class_weights=(3.0, 1.0)),
    Adjusted(Softmax(3), class_weights=(1.0, 0.1, 2.0)),
]
laws = pytest.mark.parametrize("loss", LOSSES, ids=repr)
seeds = st.integers(0, 2**32 - 1)
shares = st.floats(0.02, 1.5)  # of the clipping norm in the natural bound


def drawn(
    loss: Loss, seed: int, rows: int = 1, features: int = 3
) -> tuple[Vector, Vector, Vector, np.random.Generator]:
    """Parameters of any size, rows of norm at most 2, targets of every kind."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features))
    X *= (2.0 * rng.choice([1.0, rng.random()]) / row_norms(X))[:, None]
    y = rng.integers(0, loss.classes, rows).astype(float) if loss.classes else rng.normal(size=rows)
    w = rng.normal(size=loss.size(features)) * 10 ** rng.uniform(-1, 1)
    return w, X, y, rng


def gradients(loss: Loss, seed: int, share: float) -> tuple[Vector, Vector, Vector, Constants]:
    """Two parameters' difference, their gradients' difference, one gradient, and what is promised of them."""
    w, X, y, rng = drawn(loss, seed)
    natural = loss.constants(2.0, None).lipschitz
    promised = loss.constants(2.0, share * natural)
    here, _ = loss.gradient(w, X, y, clip=share * natural)
    along = here / max(float(np.linalg.norm(here)), 1e-300)  # where cutting to a norm fails to be monotone
    apart = (rng.choice([0.0, 3.0]) * along + 0.3 * rng.normal(size=w.size)) * 10 ** rng.uniform(-3, 1.5)
    there, _ = loss.gradient(w + apart, X, y, clip=share * natural)
    return apart, there - here, here, promised


@laws
@given(seed=seeds, share=shares)
def test_no_gradient_is_longer_than_promised(loss: Loss, seed: int, share: float) -> None:
    _, _, here, promised = gradients(loss, seed, share)
    assert np.linalg.norm(here) <= promised.lipschitz * (1 + 1e-12)


@laws
@given(seed=seeds, share=shares)
def test_clipped_gradients_are_monotone_and_cocoercive(loss: Loss, seed: int, share: float) -> None:
    """<dg, dw> >= |dg|^2 / smoothness: what makes steps up to 2 / smoothness bring no two models further apart."""
    apart, change, here, promised = gradients(loss, seed, share)
    assert promised.convex
    error = 1e-13 * (np.linalg.norm(here) + np.linalg.norm(change)) * (1 + promised.smoothness * 100)
    assert np.linalg.norm(change) <= promised.smoothness * np.linalg.norm(apart) + error
    assert apart @ change >= change @ change / promised.smoothness - error * np.linalg.norm(apart)


@laws
@given(seed=seeds, share=shares, step=st.floats(0.01, 1.0), l2=st.floats(0.0, 1.0))
def test_a_step_is_as_contractive_as_its_constants_say(
    loss: Loss, seed: int, share: float, step: float, l2: float
) -> None:
    apart, change, here, promised = gradients(loss, seed, share)
    whole = with_l2(promised, l2)
    size = step * 2 / whole.smoothness
    factor = max(abs(1 - size * whole.strong_convexity), abs(1 - size * whole.smoothness))
    after = apart - size * (change + l2 * apart)
    error = 1e-12 * (np.linalg.norm(apart) + size * np.linalg.norm(here) + 1)
    assert np.linalg.norm(after) <= factor * np.linalg.norm(apart) + error


@pytest.mark.parametrize(
    ("loss", "scores", "target"),
    [
        (Logistic(), [-40.0], 1.0),
        (SmoothedHinge(0.5), [-3.0], 1.0),
        (Huber(0.7), [9.0], 0.0),
        (Softmax(4), [0.0, 40.0, 0.0, 0.0], 0.0),
    ],
    ids=repr,
)
def test_the_lipschitz_constant_is_attained(loss: Loss, scores: list[float], target: float) -> None:
    X, w = np.array([[0.0, 2.0]]), np.zeros(loss.size(2))
    w[-len(scores) :] = np.array(scores) / 2.0
    found, _ = loss.gradient(w, X, np.array([target]), clip=100.0)
    assert np.linalg.norm(found) == pytest.approx(loss.constants(2.0, None).lipschitz, rel=1e-12)


@pytest.mark.parametrize(
    ("loss", "scores", "move"),
    [
        (Logistic(), [0.0], [1.0]),
        (SmoothedHinge(0.5), [0.8], [1.0]),
        (Huber(0.7), [0.9], [1.0]),
        (Softmax(3), [0.0, 0.0, -60.0], [1.0, -1.0, 0.0]),
    ],
    ids=repr,
)
def test_the_smoothness_is_attained(loss: Loss, scores: list[float], move: list[float]) -> None:
    X, y = np.array([[2.0]]), np.array([1.0])
    w, apart = np.array(scores) / 2.0, 1e-5 * np.array(move)
    change = loss.gradient(w + apart, X, y, clip=100.0)[0] - loss.gradient(w - apart, X, y, clip=100.0)[0]
    promised = loss.constants(2.0, None).smoothness
    assert np.linalg.norm(change) / np.linalg.norm(2 * apart) == pytest.approx(promised, rel=1e-6)


def test_cutting_softmax_gradients_to_a_norm_would_drive_models_apart() -> None:
    """Why the missing probability is cut instead: the exact example of docs/theory/losses.md."""

    def cut_to_norm(z: Vector) -> Vector:
        q = np.exp(z) / np.exp(z).sum() - np.array([1.0, 0.0, 0.0])
        return q * min(1.0, 0.6 / float(np.linalg.norm(q)))

    z, apart = np.log([4.0, 3.0, 1.0]), 1e-4 * np.array([-4.0, 1.0, 0.0])
    change = cut_to_norm(z + apart) - cut_to_norm(z - apart)
    length = math.sqrt(26) / 8
    assert change @ apart / 2e-8 == pytest.approx(-9 / 208 * 0.6 / length, rel=1e-5)
    for step in (0.01, 0.1, 1.0):
        assert np.linalg.norm(2 * apart - step * change) > np.linalg.norm(2 * apart)

    loss, X, y = Softmax(3), np.ones((1, 1)), np.zeros(1)
    ours = loss.gradient(z + apart, X, y, clip=0.6)[0] - loss.gradient(z - apart, X, y, clip=0.6)[0]
    assert ours @ apart >= -1e-20


@laws
@given(seed=seeds, share=shares)
def test_sums_split_and_weights_count(loss: Loss, seed: int, share: float) -> None:
    w, X, y, rng = drawn(loss, seed, rows=6)
    clip = share * loss.constants(2.0, None).lipschitz
    weights = rng.integers(0, 4, 6).astype(float)
    whole, _ = loss.gradient(w, X, y, clip=clip, weights=weights, norms=row_norms(X))
    copies = np.repeat(np.arange(6), weights.astype(int))
    repeated, _ = loss.gradient(w, X[copies], y[copies], clip=clip)
    np.testing.assert_allclose(whole, repeated, rtol=1e-12, atol=1e-12 * clip)


@given(seed=seeds, share=shares)
def test_two_classes_are_logistic(seed: int, share: float) -> None:
    """Softmax of two classes sees the logistic loss of the difference, clipped alike."""
    w, X, y, _ = drawn(Softmax(2), seed, rows=5)
    pair = w.reshape(3, 2)
    two, _ = Softmax(2).gradient(w, X, y, clip=math.sqrt(2) * share)
    one, _ = Logistic().gradient(pair[:, 1] - pair[:, 0], X, y, clip=share)
    np.testing.assert_allclose(two.reshape(3, 2), np.stack([-one, one], axis=1), rtol=1e-10, atol=1e-12)
