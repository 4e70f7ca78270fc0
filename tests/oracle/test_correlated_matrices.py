"""Matrices of correlated noise against all patterns, dense linear algebra, and jax-privacy 2.0.0.

The frozen numbers are those of jax-privacy 2.0.0 with jax 0.10.2 and 64-bit floats, for 1000 rounds: the roots of
``toeplitz.loss`` after ``optimize_banded_toeplitz`` and of ``LossFn.loss`` after ``buffered_toeplitz.optimize``, and
``toeplitz.minsep_sensitivity_squared``. ``benchmarks/correlated.py`` asks for them again.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.optimize import minimize

from fedveil.accounting.compare import account_for
from fedveil.core.values import Matrix, Vector
from fedveil.privacy.mechanism import Repeat, SampledGaussian
from fedveil.theory.correlated import (
    Aim,
    Factor,
    best_bands,
    best_buffers,
    coefficients_of,
    inverse_of,
    sensitivity,
    squared_error,
    weights_of_last,
)
from fedveil.theory.divergence import gaussian_delta

ROUNDS = 1000


def dense(column: Vector) -> Matrix:
    return np.tril(toeplitz(column))


def patterns(rounds: int, most: int, apart: int) -> list[tuple[int, ...]]:
    every = (p for count in range(1, most + 1) for p in itertools.combinations(range(rounds), count))
    return [p for p in every if all(b - a >= apart for a, b in itertools.pairwise(p))]


def worst(column: Vector, most: int, apart: int) -> float:
    """The greatest |C u| over all patterns and all signs: the extreme points for contributions in one dimension."""
    matrix, found = dense(column), 0.0
    for pattern in patterns(column.size, most, apart):
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern)):
            found = max(found, float(np.linalg.norm(matrix[:, pattern] @ np.array(signs))))
    return found


COLUMNS = {
    "falling": [1.0, 0.7, 0.5, 0.2, 0.0, 0.0, 0.0, 0.0],
    "flat": [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "two bands": [1.0, -0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "buffers": Factor(scales=(0.3, 0.2), decays=(0.9, 0.5)).coefficients(8).tolist(),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("most", "apart"), [(1, 1), (2, 2), (3, 1), (3, 2), (2, 4), (8, 3), (2, 8)])
def test_the_closed_form_is_the_worst_of_all_patterns(name: str, most: int, apart: int) -> None:
    column = np.array(COLUMNS[name])
    found, exact = sensitivity(column, most, apart), worst(column, most, apart)
    assert found >= exact
    falls = bool(np.all(column >= 0) and np.all(np.diff(column) <= 0))
    if falls or np.count_nonzero(column) <= apart:
        assert found == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_coefficients_of_any_sign_are_bounded_from_above(seed: int) -> None:
    generator = np.random.default_rng(seed)
    column = np.concatenate([[1.0], generator.uniform(-1, 1, 6)])
    for most, apart in ((2, 1), (3, 2), (4, 1)):
        assert sensitivity(column, most, apart) >= worst(column, most, apart)


def test_vectors_move_it_no_farther_than_numbers() -> None:
    generator, column = np.random.default_rng(1), np.array(COLUMNS["falling"])
    matrix, most = dense(column), sensitivity(column, 3, 2)
    for pattern in patterns(8, 3, 2):
        pushes = np.zeros((8, 3))
        drawn = generator.normal(size=(len(pattern), 3))
        pushes[list(pattern)] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        assert np.linalg.norm(matrix @ pushes) <= most


def test_errors_are_row_norms_of_the_dense_product() -> None:
    column, momentum, rounds = np.array([1.0, 0.6, 0.3, 0.0, 0.0, 0.0, 0.0]), 0.5, 7
    steps = np.linspace(1.0, 0.2, rounds)
    speed = np.array([[momentum ** (r - s) if r >= s else 0.0 for s in range(rounds)] for r in range(rounds)])
    workload = np.tril(np.ones((rounds, rounds))) @ np.diag(steps) @ speed
    noise = workload @ np.linalg.inv(dense(column))
    last = squared_error(column, weights_of_last(steps, momentum), np.ones(rounds))
    assert last == pytest.approx(float(np.sum(noise[-1] ** 2)), rel=1e-12)
    alike = np.tril(np.ones((rounds, rounds))) @ speed @ np.linalg.inv(dense(column))
    aim = Aim.mean(weights_of_last(np.ones(rounds), momentum), 1, rounds)
    mean = squared_error(column, aim.weights, aim.counted)
    assert mean == pytest.approx(float(np.mean(np.sum(alike**2, axis=1))), rel=1e-12)
    assert np.allclose(dense(inverse_of(column)), np.linalg.inv(dense(column)))


@pytest.mark.parametrize(("most", "apart"), [(1, 12), (3, 4), (6, 2)])
@pytest.mark.parametrize("how", ["last", "mean"])
def test_no_dense_search_finds_a_better_banded_matrix(how: str, most: int, apart: int) -> None:
    rounds, bands = 12, 4
    aim = (Aim.mean if how == "mean" else Aim.last)(np.ones(rounds), most, apart)

    def loss(tail: Vector) -> float:
        column = np.concatenate([[1.0], np.clip(tail, 0, 1), np.zeros(rounds - bands)])
        column[:bands] = np.minimum.accumulate(column[:bands])
        errors = np.sum((np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(dense(column))) ** 2, axis=1)
        total = sum(np.roll(column, s) * (np.arange(rounds) >= s) for s in range(0, rounds, apart)[:most])
        return float(errors.mean() if how == "mean" else errors[-1]) * float(total @ total)

    found = aim.loss(coefficients_of(best_bands(aim, bands), rounds))
    starts = ([0.5, 0.4, 0.3], [0.9, 0.8, 0.7], [0.1, 0.1, 0.1])
    other = min(
        minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).fun for start in starts
    )
    assert found <= other * (1 + 1e-6)


PEER = {  # root of the loss; sensitivity for one participation and for 15 at least 64 rounds apart, scaled to norm 1
    ("mean", 1): (22.371857321197094, 3.872983346207417),
    ("mean", 8): (8.351642329405191, 3.872983346207417),
    ("mean", 64): (4.03486784154247, 3.8729833462074175),
    ("last", 1): (31.622776601683793, 3.872983346207417),
    ("last", 8): (11.577722126384376, 3.872983346207417),
    ("last", 64): (5.126136397061207, 3.872983346207417),
}


@pytest.mark.parametrize(("how", "bands"), PEER)
def test_banded_matrices_are_those_of_jax_privacy(how: str, bands: int) -> None:
    aim = (Aim.mean if how == "mean" else Aim.last)(np.ones(ROUNDS), 1, ROUNDS)
    column = coefficients_of(best_bands(aim, bands), ROUNDS)
    loss, many = PEER[how, bands]
    assert math.sqrt(aim.loss(column)) == pytest.approx(loss, rel=1e-6)
    one = sensitivity(column, 1, ROUNDS)
    assert sensitivity(column / one, 15, 64) == pytest.approx(many, abs=1e-9)


BUFFERED = {  # roots of the losses
    ("last", 1, 1000): 3.265379526094738,
    ("last", 10, 100): 14.883679044148646,
    ("mean", 1, 1000): 3.0498251298022607,
    ("mean", 10, 100): 12.193792692417777,
}


@pytest.mark.parametrize(("how", "most", "apart"), BUFFERED)
def test_buffered_matrices_are_as_good_as_those_of_jax_privacy(how: str, most: int, apart: int) -> None:
    aim = (Aim.mean if how == "mean" else Aim.last)(np.ones(ROUNDS), most, apart)
    scales, decays = best_buffers(aim, 4)
    found = math.sqrt(aim.loss(Factor(scales=scales, decays=decays).coefficients(ROUNDS)))
    assert found <= 1.01 * BUFFERED[how, most, apart]


def test_the_sensitivity_of_a_buffered_matrix_is_that_of_jax_privacy() -> None:
    scales = (0.12518669645510644, 0.12474771780802835, 0.24695480871901884, 0.01206953573054043)
    decays = (0.9816840424478778, 0.9816773973462679, 0.5898384506193739, 0.037011859798981576)
    column = Factor(scales=scales, decays=decays).coefficients(ROUNDS)
    assert sensitivity(column, 10, 100) == pytest.approx(6.175361765607835, abs=1e-9)


def simulated_delta(ratios: Vector, epsilon: float) -> tuple[float, float]:
    """Delta from log likelihood ratios drawn under the first law, and the standard error of that mean."""
    values = np.maximum(0.0, 1 - np.exp(epsilon - ratios))
    return float(values.mean()), float(values.std() / math.sqrt(values.size))


def test_classes_that_take_turns_cost_what_is_charged_by_enumeration_of_all_draws() -> None:
    """The law of all rounds is a mixture over the victim's coins; no use is made of its blocks."""
    rounds, classes, rate, noise, count = 6, 3, 0.4, 1.2, 200_000
    column = np.array([1.0, 0.7, 0.5, 0.0, 0.0, 0.0])
    matrix, generator = dense(column), np.random.default_rng(3)
    weights, means = [], []
    for coins in itertools.product((0, 1), repeat=2):  # a victim of the first class: rounds 0 and 3
        pushes = np.zeros(rounds)
        pushes[[0, classes]] = coins
        weights.append(math.prod(rate if coin else 1 - rate for coin in coins))
        means.append(matrix @ pushes)
    drawn = generator.choice(len(weights), size=count, p=weights)
    seen = np.array(means)[drawn] + noise * generator.normal(size=(count, rounds))
    logs = [math.log(w) + (seen @ m - m @ m / 2) / noise**2 for w, m in zip(weights, means, strict=True)]
    ratios = np.logaddexp.reduce(logs, axis=0)
    once = SampledGaussian(
        sampling="poisson",
        rate=rate,
        noise_multiplier=noise / float(np.linalg.norm(column)),
        neighbours="zero-out",
    )
    for epsilon in (0.5, 1.0, 2.0):
        found, error = simulated_delta(ratios, epsilon)
        charged = account_for(Repeat(of=once, times=2), epsilon=epsilon).delta
        assert found <= charged + 5.5 * error  # false alarms below 1e-7
        assert charged <= found + 5.5 * error + 2e-3  # and it is nearly all of it (the other direction may be larger)


def test_whoever_chooses_what_to_send_by_what_was_seen_gains_nothing() -> None:
    """Theorem 1 for adaptive sums: contributions turn with the releases before them, and the loss stays below."""
    rounds, noise, count = 8, 1.5, 200_000
    column = Factor(scales=(0.3, 0.2), decays=(0.9, 0.5)).coefficients(rounds)
    generator, matrix = np.random.default_rng(4), dense(column)
    bound = sensitivity(column, 4, 2) / noise
    pushes, ratios = np.zeros((count, rounds)), np.zeros(count)
    past = np.zeros(count)
    for turn in range(rounds):
        if turn % 2 == 0:  # after a large release it pushes ahead, otherwise it may turn back
            pushes[:, turn] = np.where(past >= -0.5, 1.0, -1.0)
        moved = pushes @ matrix[turn]
        seen = moved + noise * generator.normal(size=count)
        ratios += (seen * moved - moved**2 / 2) / noise**2
        past = seen
    for epsilon in (0.5, 1.0, 3.0):
        found, error = simulated_delta(ratios, epsilon)
        assert found <= gaussian_delta(epsilon, bound) + 5.5 * error


@pytest.mark.parametrize(("rounds", "groups"), [(3, 2), (10, 3), (40, 5), (40, 50), (100, 20)])
@pytest.mark.parametrize("momentum", [0.0, 0.95])
def test_as_many_bands_as_groups_are_never_worse_than_independent_noise(
    rounds: int, groups: int, momentum: float
) -> None:
    apart = min(rounds, groups)
    aim = Aim.last(weights_of_last(np.ones(rounds), momentum), -(-rounds // groups), apart)
    alone, found = (coefficients_of(column, rounds) for column in ((1.0,), best_bands(aim, apart)))
    assert aim.loss(found) < 0.999 * aim.loss(alone)
