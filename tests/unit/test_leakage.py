"""Rows read out of gradients in closed form: exact without noise, worse with more of it, refused where senseless."""

import json
import math

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedveil.audit.leakage import rank_one_share, read_classes, read_layer, read_linear, read_outer
from fedveil.audit.pictures import at_best_scale, cosine, greys, psnr, square
from fedveil.core.errors import BadValue
from fedveil.models.margin import Huber, Logistic
from fedveil.models.softmax import Softmax

PIXELS, LABELS = load_digits(return_X_y=True)
ROWS = np.hstack([PIXELS / 16, np.ones((len(PIXELS), 1))])  # a constant 1 stands last
Vector = np.ndarray


def some_model(size: int, seed: int = 0) -> Vector:
    return np.random.default_rng(seed).normal(size=size) * 0.1


@pytest.mark.parametrize("record", [0, 7, 100, 1500])
def test_a_softmax_gradient_gives_row_and_label_away(record: int) -> None:
    loss = Softmax(10)
    gradient, _ = loss.gradient(some_model(650), ROWS[[record]], LABELS[[record]].astype(float), clip=0.3)
    found = read_linear(gradient, 65, 10, constant=1.0)
    np.testing.assert_allclose(found.row, ROWS[record, :-1], atol=1e-12)
    assert found.label == LABELS[record]
    assert found.scaled
    assert found.rank_one == pytest.approx(1.0)


@pytest.mark.parametrize("loss", [Logistic(), Huber()])
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_one_score_gives_the_row_away(loss: Logistic | Huber, target: float) -> None:
    gradient, _ = loss.gradient(some_model(65, 3), ROWS[[5]], np.array([target]), clip=0.1)
    found = read_linear(gradient, 65, 1, constant=1.0)
    np.testing.assert_allclose(found.row, ROWS[5, :-1], atol=1e-10)
    if loss.classes:
        assert found.label == target


def test_without_a_constant_the_direction_is_left() -> None:
    gradient, _ = Softmax(10).gradient(some_model(640), ROWS[[9], :-1].copy(), np.array([9.0]), clip=1.0)
    found = read_linear(gradient, 64, 10, constant=0.0)
    assert cosine(ROWS[9, :-1], found.row) == pytest.approx(1.0, abs=1e-12)
    assert not found.scaled
    assert found.label == 9


def test_a_batch_is_a_mixture() -> None:
    gradient, _ = Softmax(10).gradient(some_model(650), ROWS[:20], LABELS[:20].astype(float), clip=1e9)
    found = read_linear(gradient, 65, 10, constant=1.0)
    assert found.rank_one < 0.9
    assert max(psnr(row, found.row) for row in PIXELS[:20]) < 20


def test_a_record_alone_in_its_class_falls_out_of_a_batch() -> None:
    chosen = [0, 1, 2, 3, 13]  # digits 0, 1, 2, 3 and 3 again
    gradient, _ = Softmax(10).gradient(np.zeros(650), ROWS[chosen], LABELS[chosen].astype(float), clip=1e9)
    found = read_classes(gradient, 65, 10, records=5, constant=1.0)
    for record in (0, 1, 2):
        np.testing.assert_allclose(found[record], ROWS[record, :-1], atol=1e-12)
    np.testing.assert_allclose(found[3], ROWS[[3, 13], :-1].sum(axis=0), atol=1e-12)
    assert psnr(PIXELS[3], found[3]) < 30


def test_with_every_class_present_the_common_part_is_missing() -> None:
    gradient, _ = Softmax(10).gradient(np.zeros(650), ROWS[:10], LABELS[:10].astype(float), clip=1e9)
    found = read_classes(gradient, 65, 10, records=10, constant=1.0)
    for record in range(10):
        expected = ROWS[record, :-1] - ROWS[:10, :-1].sum(axis=0) / 10
        np.testing.assert_allclose(found[int(LABELS[record])], expected, atol=1e-12)


def test_two_classes_share_one_difference() -> None:
    gradient, _ = Logistic().gradient(np.zeros(65), ROWS[:2], np.array([0.0, 1.0]), clip=1e9)
    found = read_classes(gradient, 65, 1, records=2, constant=1.0)
    np.testing.assert_allclose(found[1], (ROWS[1] - ROWS[0])[:-1] / 2, atol=1e-12)
    np.testing.assert_array_equal(found[0], -found[1])


def test_likeness_falls_with_noise() -> None:
    """Means over 200 digits: levels are tenfold apart (20 dB) and the error of a mean is below 0.3 dB."""
    generator, loss = np.random.default_rng(1), Softmax(10)
    means, angles = [], []
    for noise in (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        found = []
        for record in range(200):
            gradient, _ = loss.gradient(np.zeros(650), ROWS[[record]], LABELS[[record]].astype(float), clip=0.5)
            noised = gradient + noise * generator.normal(size=650)
            row = read_linear(noised, 65, 10, constant=1.0).row
            found.append((psnr(PIXELS[record], row), cosine(PIXELS[record], row)))
        mean = np.mean(found, axis=0)
        means.append(mean[0])
        angles.append(mean[1])
    assert means == sorted(means, reverse=True)
    assert angles == sorted(angles, reverse=True)
    assert means[0] > 100
    assert means[-1] < 8


def test_a_silent_bias_leaves_the_direction() -> None:
    weight = np.outer([1.0, 2.0], [3.0, 4.0])
    found = read_layer(weight, np.zeros(2))
    assert not found.scaled
    assert cosine(np.array([3.0, 4.0]), found.row) == pytest.approx(1.0)
    assert rank_one_share(np.zeros((2, 2))) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_senseless_gradients_are_refused(bad: float) -> None:
    with pytest.raises(BadValue, match="gradient must be finite"):
        read_linear(np.full(6, bad), 3, 2, constant=1.0)
    with pytest.raises(BadValue, match="gradient must hold 3 times 2 numbers"):
        read_linear(np.ones(5), 3, 2, constant=1.0)
    with pytest.raises(BadValue, match="bias must have one entry an output"):
        read_layer(np.ones((2, 3)), np.ones(3))
    with pytest.raises(BadValue, match="gradient must be a matrix"):
        read_outer(np.ones(3))
    with pytest.raises(BadValue, match="guess must be finite"):
        psnr(np.array([0.0, 1.0]), np.array([0.0, bad]))


def test_likeness_knows_no_scale() -> None:
    truth = PIXELS[3]
    for scale in (-7.0, 1e-9, 1e9):
        assert psnr(truth, scale * truth) > 100
        np.testing.assert_allclose(at_best_scale(truth, scale * truth), truth)
    assert cosine(truth, np.zeros(64)) == 0.0
    expected = 10 * math.log10((truth.max() - truth.min()) ** 2 / np.mean(truth**2))
    assert psnr(truth, np.zeros(64)) == pytest.approx(expected)
    with pytest.raises(BadValue, match="more than one grey"):
        psnr(np.ones(4), np.ones(4))


def test_pictures_are_small_whole_numbers() -> None:
    found = greys(PIXELS[0], (8, 8), (0.0, 16.0))
    assert json.loads(json.dumps(found)) == found
    assert np.array_equal(np.array(found), np.rint(PIXELS[0] * 255 / 16).reshape(8, 8))
    assert [square(size) for size in (64, 63, 1, 784)] == [(8, 8), None, None, (28, 28)]
    with pytest.raises(BadValue, match="row must fill a picture of 8 by 8"):
        greys(PIXELS[0][:-1], (8, 8), (0.0, 1.0))
    with pytest.raises(BadValue, match="span must rise"):
        greys(PIXELS[0], (8, 8), (1.0, 1.0))
