"""A senseless kernel is refused at birth, a senseless question when asked."""

import math

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from oracle.kernels import (
    FiniteKernel,
    GaussianKernel,
    LaplaceKernel,
    contraction,
    log_nonlinear_contraction,
    nonlinear_contraction,
)

COIN = FiniteKernel(np.array([[0.75, 0.25], [0.25, 0.75]]))
NAN = math.nan


@pytest.mark.parametrize(
    "rows",
    [
        [[0.5, 0.4]],
        [[1.5, -0.5]],
        [[NAN, 1.0]],
        [[math.inf, 0.0]],
    ],
)
def test_rows_must_be_laws(rows: list[list[float]]) -> None:
    with pytest.raises(BadValue, match=r"FiniteKernel\.rows must be non-negative with rows summing to 1"):
        FiniteKernel(np.array(rows))


@pytest.mark.parametrize("shape", [(2,), (0, 2), (2, 0), (1, 2, 2)])
def test_rows_must_be_a_matrix(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadValue, match="one row for each input"):
        FiniteKernel(np.ones(shape))


@pytest.mark.parametrize("p", [[1.0], [0.5, 0.6], [NAN, 1.0], [-1.0, 2.0], [[1.0, 0.0]]])
def test_only_a_law_on_the_inputs_is_pushed(p: list[float]) -> None:
    with pytest.raises(BadValue, match="p must be a"):
        COIN.push(np.array(p))


def test_kernels_must_fit() -> None:
    with pytest.raises(BadValue, match="other must take 2 inputs"):
        COIN.then(FiniteKernel(np.eye(3)))


@pytest.mark.parametrize("noise", [0.0, -1.0, NAN, math.inf])
def test_noise_must_be_positive(noise: float) -> None:
    with pytest.raises(BadValue, match=r"GaussianKernel\.noise must be finite and positive"):
        GaussianKernel(noise=noise, diameter=1.0)
    with pytest.raises(BadValue, match=r"LaplaceKernel\.scale must be finite and positive"):
        LaplaceKernel(scale=noise, diameter=1.0)


@pytest.mark.parametrize("diameter", [-1.0, NAN])
def test_diameters_are_not_negative(diameter: float) -> None:
    with pytest.raises(BadValue, match="diameter must be non-negative"):
        GaussianKernel(noise=1.0, diameter=diameter)
    with pytest.raises(BadValue, match="diameter must be non-negative"):
        LaplaceKernel(scale=1.0, diameter=diameter)


@pytest.mark.parametrize("epsilon", [-0.1, NAN, math.inf])
def test_epsilon_is_checked(epsilon: float) -> None:
    with pytest.raises(BadValue, match="epsilon must be finite"):
        contraction(COIN, epsilon)
    with pytest.raises(BadValue, match="epsilon must be finite"):
        nonlinear_contraction(COIN, epsilon, 0.5)


@pytest.mark.parametrize("before", [-0.1, 1.1, NAN])
def test_a_divergence_lies_between_zero_and_one(before: float) -> None:
    with pytest.raises(BadValue, match="before must lie between 0 and 1"):
        nonlinear_contraction(COIN, 1.0, before)


@pytest.mark.parametrize("log_before", [0.1, NAN, math.inf])
def test_its_logarithm_is_not_positive(log_before: float) -> None:
    with pytest.raises(BadValue, match="log_before must be at most 0"):
        log_nonlinear_contraction(COIN, 1.0, log_before)


def test_a_kernel_cannot_be_changed() -> None:
    rows = np.eye(2)
    kernel = FiniteKernel(rows)
    rows[0, 0] = 5.0
    assert kernel.rows[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        kernel.rows[0, 0] = 5.0
