"""Arsinh-transformed noise: its numbers, its divergence against an integral of densities, and its refusals."""

import math
from pathlib import Path

import mpmath
import numpy as np
import pytest

from fedveil.accounting.calibrate import calibrate
from fedveil.accounting.compare import account_for
from fedveil.core.errors import BadValue
from fedveil.planning.study import study_of
from fedveil.privacy.mechanism import ArsinhGaussian, Compose, Gaussian, Repeat
from fedveil.privacy.mechanism_file import parse_mechanism
from fedveil.theory.arsinh import ArsinhLaw


def delta_by_integration(epsilon: float, sigma: float, a: float, shift: float) -> float:
    """The divergence from its definition, at many points of the densities, which come from a change of variables."""
    x = np.linspace(-60, 60, 400_001)

    def density(at: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            log = -((a * np.sinh(at / a) / sigma) ** 2) / 2 + np.log(np.cosh(at / a))
        return np.exp(np.nan_to_num(log, nan=-np.inf)) / (sigma * math.sqrt(2 * math.pi))

    return float(np.trapezoid(np.maximum(density(x - shift) - math.exp(epsilon) * density(x), 0.0), x))


@pytest.mark.parametrize(("scale", "epsilon"), [(8.0, 3.040), (4.0, 5.697), (1e8, 1.993)])
def test_the_numbers_of_the_page(scale: float, epsilon: float) -> None:
    found = account_for(ArsinhGaussian(noise_multiplier=2.0, scale=scale), delta=1e-5)
    assert round(found.epsilon, 3) == epsilon
    assert found.certified_by == "loss-distribution"


@pytest.mark.parametrize(("sigma", "a", "shift"), [(2.0, 8.0, 1.0), (2.0, 4.0, 1.0), (1.0, 1.0, 2.0), (3.0, 5.0, 0.5)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_the_divergence_is_the_integral(sigma: float, a: float, shift: float, epsilon: float) -> None:
    law = ArsinhLaw(a / sigma, shift / a)
    expected = delta_by_integration(epsilon, sigma, a, shift)
    assert math.exp(law.log_delta(epsilon)) == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_the_loss_is_the_ratio_of_densities_in_fifty_digits() -> None:
    law, k, d = ArsinhLaw(2.5, 0.3), mpmath.mpf("2.5"), mpmath.mpf("0.3")
    with mpmath.workdps(50):
        for t in (-2.0, -0.1, 0.0, 0.7, 3.0):
            x = t + d / 2
            log = [-((k * mpmath.sinh(y)) ** 2) / 2 + mpmath.log(mpmath.cosh(y)) for y in (x - d, x)]
            assert float(law.loss(np.array([t]))[0]) == pytest.approx(float(log[0] - log[1]), rel=1e-12, abs=1e-14)


def test_tails_are_those_of_the_loss_and_reach_holds_the_mass() -> None:
    law = ArsinhLaw(1.7, 0.4)
    normal = np.random.default_rng(0).normal(size=400_000)
    noise = 1.7 * np.arcsinh(normal / 1.7)  # in units of sigma = 1, so a = 1.7 and the shift is .68
    loss = law.loss((noise + 0.68) / 1.7 - 0.2)
    for level in (-0.5, 0.2, 1.5):
        found = law.tails(np.array([level]))
        share = float(np.mean(loss > level))
        assert found.p_above[0] == pytest.approx(share, abs=5.5 * 0.5 / math.sqrt(400_000))  # 5.5 deviations: 4e-8
        assert found.p_above[0] + found.p_below[0] == pytest.approx(1.0)
        assert found.q_above[0] <= found.p_above[0]
    low, high = law.reach(1e-9)
    assert law.tails(np.array([low])).p_below[0] <= 1.0001e-9
    assert law.tails(np.array([high])).p_above[0] <= 1.0001e-9


def test_wide_scales_are_gaussian_and_composition_holds_both() -> None:
    thin, plain = ArsinhGaussian(noise_multiplier=2.0, scale=1e7), Gaussian(noise_multiplier=2.0)
    for neighbours in ("zero-out", "replace-one"):
        pair = [type(m)(**{**_values(m), "neighbours": neighbours}) for m in (thin, plain)]
        both = [account_for(Repeat(of=one, times=5), delta=1e-5).epsilon for one in pair]
        assert both[0] == pytest.approx(both[1], rel=2e-3)
        mixed = account_for(Compose(parts=(pair[0], Repeat(of=pair[1], times=4))), delta=1e-5).epsilon
        assert mixed == pytest.approx(both[1], rel=2e-3)


def test_two_uses_lie_above_one_and_below_twice_one() -> None:
    once = ArsinhGaussian(noise_multiplier=2.0, scale=8.0)
    one, two = (account_for(Repeat(of=once, times=n), delta=1e-5).epsilon for n in (1, 2))
    assert one < two < 2 * account_for(once, delta=5e-6).epsilon
    assert account_for(once, delta=1e-5, group=2).epsilon > two


def test_calibration_moves_all_of_the_noise_and_delta_inverts_epsilon() -> None:
    once = ArsinhGaussian(noise_multiplier=2.0, scale=8.0)
    factor, found = calibrate(once, epsilon=1.0, delta=1e-5)
    assert isinstance(found, ArsinhGaussian)
    assert found.scale / found.noise_multiplier == pytest.approx(4.0)
    assert 0.99 < account_for(found, delta=1e-5).epsilon <= 1.0
    assert factor > 1
    epsilon = account_for(once, delta=1e-5).epsilon
    assert account_for(once, epsilon=epsilon).delta == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("noise_multiplier = 2.0", "mechanism.scale must be given for kind arsinh-gaussian"),
        ("noise_multiplier = 2.0\nscale = 1.0", "at least noise_multiplier, 2, got 1.0. Below that the noise has two"),
        ("noise_multiplier = 2.0\nscale = nan", "scale must"),
        ("noise_multiplier = 0.0\nscale = 1.0", "noise_multiplier must be finite and positive"),
    ],
)
def test_a_bad_file_gets_one_sentence(keys: str, sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        parse_mechanism(f'[mechanism]\nkind = "arsinh-gaussian"\n{keys}')


@pytest.mark.parametrize("kind", ["hidden", "dpsgd", "fedavg", "simfl", "auto"])
def test_training_refuses_it_with_the_reason(kind: str) -> None:
    tables = {
        "study": {"name": "trial"},
        "algorithm": {"kind": kind, "noise": "arsinh-gaussian"},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
    }
    with pytest.raises(BadValue, match=r"not be arsinh-gaussian in training.*costs more than it saves"):
        study_of(tables, base=Path(), data_given=True)


def _values(mechanism: Gaussian | ArsinhGaussian) -> dict[str, float]:
    names = ("noise_multiplier", "scale") if isinstance(mechanism, ArsinhGaussian) else ("noise_multiplier",)
    return {name: getattr(mechanism, name) for name in names}
