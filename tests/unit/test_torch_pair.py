"""The adversarial pair: records move the judge alone, and the answer is a function of the model and the round."""

import numpy as np
import pytest

from fedveil.core.values import Vector
from fedveil.models.torch.criteria import OWN, pair_name
from fedveil.models.torch.loss import TorchLoss

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

FEATURES, CLASSES, LATENT, UNITS = 2, 2, 2, 6
LOSS = TorchLoss(module=pair_name(FEATURES, CLASSES, LATENT, UNITS), classes=CLASSES, criterion=OWN)
JUDGE = (FEATURES + CLASSES + 1) * UNITS + UNITS + 1  # its parameters, which come first


def records(count: int, seed: int = 4) -> tuple[Vector, Vector]:
    """Two clusters, one for each class."""
    draw = np.random.default_rng(seed)
    kinds = np.arange(count) % 2
    return np.where(kinds, 0.6, -0.6)[:, None] + 0.1 * draw.normal(size=(count, 2)), kinds.astype(np.float64)


def test_records_move_the_judge_alone_and_add_the_same_bits_in_any_company() -> None:
    w = np.random.default_rng(1).normal(size=LOSS.size(FEATURES)) / 2
    rows, targets = records(40)
    total, _ = LOSS.gradient(w, rows, targets, clip=0.1, grain=2.0**-40)
    assert not total[JUDGE:].any()
    assert total[:JUDGE].any()
    each = [
        LOSS.gradient(w, rows[i : i + 1], targets[i : i + 1], clip=0.1, grain=2.0**-40)[0] for i in range(len(rows))
    ]
    assert np.array_equal(np.sum(each, axis=0), total)
    assert max(np.linalg.norm(one) for one in each) <= 0.1


def test_the_answer_is_a_function_of_model_and_round_and_replaces_what_no_record_moves() -> None:
    """So it is the same for neighbouring records, and noise never reaches the maker by itself."""
    draw = np.random.default_rng(2)
    w, one, other = (draw.normal(size=LOSS.size(FEATURES)) for _ in range(3))
    first = LOSS.add_answer(w, one, FEATURES, turn=3, clip=0.5)
    second = LOSS.add_answer(w, other, FEATURES, turn=3, clip=0.5)
    np.testing.assert_allclose((first - one)[:JUDGE], (second - other)[:JUDGE], atol=1e-12)
    assert np.array_equal(first[JUDGE:], second[JUDGE:])
    assert np.linalg.norm((first - one)[:JUDGE]) <= 0.5 + 1e-9
    assert not np.array_equal(LOSS.add_answer(w, one, FEATURES, turn=4, clip=0.5), first)


def test_the_answers_are_the_slopes_of_the_two_losses_by_differences() -> None:
    w = np.random.default_rng(3).normal(size=LOSS.size(FEATURES)) / 2
    way = np.random.default_rng(5).normal(size=w.size)

    def losses(at: Vector) -> tuple[float, float]:
        judged, made = LOSS.module_at(at, FEATURES).answer(torch.Generator().manual_seed(0))
        return float(judged.detach()), float(made.detach())

    found = LOSS.add_answer(w, np.zeros(w.size), FEATURES, turn=0, clip=1e9)
    for part, which in ((slice(0, JUDGE), 0), (slice(JUDGE, None), 1)):
        step = np.zeros(w.size)
        step[part] = 1e-6 * way[part]
        slope = losses(w + step)[which] - losses(w - step)[which]
        assert found @ step == pytest.approx(slope / 2, rel=1e-5)


def test_without_noise_the_maker_comes_to_draw_where_the_records_are() -> None:
    """A fixed seed: the drawn classes end on the sides of their records."""
    rows, targets = records(200)
    w, mean, squares = (np.zeros(LOSS.size(FEATURES)) for _ in range(3))
    for turn in range(250):
        total, _ = LOSS.gradient(w, rows, targets, clip=1.0)
        pull = LOSS.add_answer(w, total / len(rows), FEATURES, turn, clip=1.0)
        mean, squares = 0.5 * mean + 0.5 * pull, 0.999 * squares + 0.001 * pull**2
        w -= 0.02 * mean / (np.sqrt(squares / (1 - 0.999 ** (turn + 1))) + 1e-8)
    drawn = LOSS.sampler(w, FEATURES)(np.repeat([0, 1], 200), 1)
    assert drawn[:200].mean() < -0.2
    assert drawn[200:].mean() > 0.2
