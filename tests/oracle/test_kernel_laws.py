"""Laws of contraction: after <= nonlinear bound <= linear bound <= before, and no bound is better."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from fedveil.core.values import Vector
from fedveil.theory.blocks import raised_epsilon
from fedveil.theory.divergence import hockey_stick
from oracle.kernels import (
    FiniteKernel,
    GaussianKernel,
    Kernel,
    LaplaceKernel,
    contraction,
    log_contraction,
    log_nonlinear_contraction,
    nonlinear_contraction,
)

weights = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
epsilons = st.floats(0.0, 5.0)


def laws(size: int) -> st.SearchStrategy[Vector]:
    mass = arrays(np.float64, size, elements=weights).filter(lambda w: w.sum() > 1e-6)
    return mass.map(lambda w: w / w.sum())


def kernels(inputs: int, outputs: int) -> st.SearchStrategy[FiniteKernel]:
    return st.lists(laws(outputs), min_size=inputs, max_size=inputs).map(lambda rows: FiniteKernel(np.array(rows)))


noisy = st.one_of(
    st.builds(GaussianKernel, noise=st.floats(0.1, 10), diameter=st.floats(0, 10)),
    st.builds(LaplaceKernel, scale=st.floats(0.1, 10), diameter=st.floats(0, 10)),
)


@given(p=laws(4), q=laws(4), kernel=kernels(4, 3), epsilon=epsilons)
def test_the_chain_of_bounds(p: Vector, q: Vector, kernel: FiniteKernel, epsilon: float) -> None:
    before = min(hockey_stick(p, q, epsilon), 1.0)
    after = hockey_stick(kernel.push(p), kernel.push(q), epsilon)
    nonlinear = nonlinear_contraction(kernel, epsilon, before)
    linear = contraction(kernel, epsilon) * before
    assert after <= nonlinear + 1e-12
    assert nonlinear <= linear + 1e-12
    assert linear <= before + 1e-12


@given(kernel=kernels(4, 3), epsilon=epsilons, before=st.floats(1e-3, 1.0))
def test_the_nonlinear_bound_is_attained(kernel: FiniteKernel, epsilon: float, before: float) -> None:
    reached = 0.0
    for one in range(4):
        for two in range(4):
            q = np.eye(4)[two]
            p = before * np.eye(4)[one] + (1 - before) * q
            # Mixing q with the second input keeps p - exp(epsilon) q of the form the proof needs.
            if one != two:
                assert hockey_stick(p, q, epsilon) == pytest.approx(before)
            reached = max(reached, hockey_stick(kernel.push(p), kernel.push(q), epsilon))
    assert reached == pytest.approx(nonlinear_contraction(kernel, epsilon, before), abs=1e-12)


@given(first=kernels(3, 4), second=kernels(4, 3), epsilon=epsilons)
def test_coefficients_multiply_at_most(first: FiniteKernel, second: FiniteKernel, epsilon: float) -> None:
    both = contraction(first.then(second), epsilon)
    assert both <= contraction(first, epsilon) * contraction(second, epsilon) + 1e-12


@given(p=laws(3), first=kernels(3, 4), second=kernels(4, 2))
def test_pushing_twice_is_pushing_through_the_composition(p: Vector, first: FiniteKernel, second: FiniteKernel) -> None:
    assert np.allclose(second.push(first.push(p)), first.then(second).push(p), rtol=0, atol=1e-12)


@given(kernel=noisy, epsilon=epsilons, more=st.floats(0, 5))
def test_coefficients_fall_with_epsilon(kernel: Kernel, epsilon: float, more: float) -> None:
    assert contraction(kernel, epsilon + more) <= contraction(kernel, epsilon) + 1e-15


@given(kernel=noisy, epsilon=epsilons, before=st.floats(0, 1), more=st.floats(0, 1))
def test_an_upper_bound_may_be_inserted(kernel: Kernel, epsilon: float, before: float, more: float) -> None:
    larger = min(before + more, 1.0)
    small = nonlinear_contraction(kernel, epsilon, before)
    assert small <= nonlinear_contraction(kernel, epsilon, larger) * (1 + 1e-9) + 1e-300
    assert small <= contraction(kernel, epsilon) * before * (1 + 1e-12)


@settings(deadline=None, max_examples=25)
@given(noise=st.floats(0.3, 3), diameter=st.floats(0.1, 4), epsilon=st.floats(0, 2))
def test_binned_gaussian_noise_approaches_theta_from_below(noise: float, diameter: float, epsilon: float) -> None:
    edges = np.concatenate(([-np.inf], np.linspace(-9 * noise, diameter + 9 * noise, 20001), [np.inf]))
    ends = np.array([0.0, diameter / 2, diameter])
    rows = np.diff(norm.cdf(edges, loc=ends[:, None], scale=noise), axis=1)
    binned = contraction(FiniteKernel(rows), epsilon)
    exact = contraction(GaussianKernel(noise=noise, diameter=diameter), epsilon)
    assert exact - 1e-6 <= binned <= exact + 1e-12


@given(epsilon=st.floats(0, 1e4), log_before=st.floats(-1e5, 0))
def test_raised_epsilon_never_overflows_and_only_rises(epsilon: float, log_before: float) -> None:
    raised = float(raised_epsilon(epsilon, log_before))
    assert epsilon <= raised < math.inf
    assert raised <= epsilon - log_before + 1e-9  # 1 + (e^eps - 1)/a <= e^eps/a


@given(epsilon=st.floats(0, 20), before=st.floats(1e-6, 1))
def test_raised_epsilon_is_the_formula(epsilon: float, before: float) -> None:
    expected = math.log1p(math.expm1(epsilon) / before)
    assert float(raised_epsilon(epsilon, math.log(before))) == pytest.approx(expected, rel=1e-12, abs=1e-300)


def test_logarithms_go_where_numbers_cannot() -> None:
    kernel = GaussianKernel(noise=1.0, diameter=1.0)
    assert log_contraction(kernel, 1e3) == pytest.approx(-499514.859451841, rel=1e-12)
    assert contraction(kernel, 1e3) == 0.0
    assert -math.inf < log_nonlinear_contraction(kernel, 1.0, -5000.0) < -1e6
    assert log_nonlinear_contraction(kernel, 1.0, -math.inf) == -math.inf


def test_no_bounded_set_no_contraction() -> None:
    assert contraction(GaussianKernel(noise=1.0, diameter=math.inf), 1.0) == 1.0
    assert contraction(LaplaceKernel(scale=1.0, diameter=math.inf), 1.0) == 1.0
    assert contraction(GaussianKernel(noise=1.0, diameter=0.0), 0.0) == 0.0
    assert contraction(FiniteKernel(np.eye(2)), 800.0) == 1.0
