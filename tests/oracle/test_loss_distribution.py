"""Composition against exact cases (Gaussian, binomial, quadrature) and against another library's brackets."""

import json
import math
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad

from fedveil.theory.composition import (
    Bracket,
    delta_bracket,
    epsilon_bracket,
    epsilon_upper,
    worst_bracket,
    worst_delta,
    worst_upper,
)
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import gaussian_delta
from fedveil.theory.loss import (
    FiniteLaw,
    FixedSizeLaw,
    GaussianLaw,
    GroupLaw,
    LaplaceLaw,
    LossLaw,
    SampledLaw,
    SwappedLaw,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dp_sgd.json").read_text(encoding="utf-8"))
CASES = [(case["rate"], case["noise"], case["rounds"], case) for case in GOLDEN["cases"]]
DELTA = GOLDEN["delta"]


def both_ways(rate: float, noise: float, rounds: int) -> list[list[tuple[LossLaw, int]]]:
    return [[(SampledLaw(1 / noise, rate, removal), rounds)] for removal in (True, False)]


def randomised_response(epsilon: float, lost: float = 0.0) -> FiniteLaw:
    yes, no = (1 - lost) / (1 + math.exp(-epsilon)), (1 - lost) / (1 + math.exp(epsilon))
    return FiniteLaw((-epsilon, epsilon), (no, yes), (yes, no))


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "case"), CASES, ids=lambda v: "" if isinstance(v, dict) else str(v)
)
def test_known_values_lie_in_a_narrow_bracket(rate: float, noise: float, rounds: int, case: dict[str, float]) -> None:
    lower, upper = worst_bracket(both_ways(rate, noise, rounds), DELTA)
    assert lower - 1e-4 <= case["reference"] <= upper + 1e-4
    assert upper - lower <= 0.005 * upper
    assert case["optimistic"] <= upper
    assert lower <= case["pessimistic"] <= 1.002 * upper
    assert lower <= worst_upper(both_ways(rate, noise, rounds), DELTA) <= 1.002 * upper


@pytest.mark.parametrize(("rate", "noise", "rounds"), [(0.1, 5.0, 100), (0.04, 4.0, 1000)])
def test_the_other_library_agrees_today(rate: float, noise: float, rounds: int) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    lower, upper = worst_bracket(both_ways(rate, noise, rounds), DELTA)
    theirs = pld.from_gaussian_mechanism(noise, sampling_prob=rate, use_connect_dots=True)
    assert lower <= theirs.self_compose(rounds).get_epsilon_for_delta(DELTA) <= 1.002 * upper
    below = pld.from_gaussian_mechanism(noise, sampling_prob=rate, pessimistic_estimate=False, use_connect_dots=False)
    assert below.self_compose(rounds).get_epsilon_for_delta(DELTA) <= upper


@pytest.mark.parametrize(
    ("law", "mu"),
    [
        (GaussianLaw(0.1), 0.1),
        (SampledLaw(0.1, 1.0), 0.1),
        (SampledLaw(0.1, 1.0, removal=False), 0.1),
        (FixedSizeLaw(0.1, 1.0), 0.1),
        (SwappedLaw(0.05, 1.0), 0.1),
        (GroupLaw(0.025, 1.0, 4), 0.1),
        (GroupLaw(0.025, 1.0, 4, removal=False), 0.1),
    ],
)
@pytest.mark.parametrize("rounds", [1, 30, 10_000])
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.05])
def test_without_sampling_it_is_the_gaussian(law: LossLaw, mu: float, rounds: int, delta: float) -> None:
    truth = gaussian_epsilon(mu * math.sqrt(rounds), delta)
    lower, upper = epsilon_bracket([(law, rounds)], delta)
    assert lower <= truth * (1 + 1e-8) <= upper * (1 + 2e-8)
    assert upper - lower <= 0.005 * upper
    exact = gaussian_delta(truth, mu * math.sqrt(rounds))
    low, high = delta_bracket([(law, rounds)], truth)
    assert low <= exact <= high


def test_a_billion_rounds() -> None:
    lower, upper = epsilon_bracket([(GaussianLaw(1e-5), 10**9)], 1e-5)
    truth = gaussian_epsilon(1e-5 * math.sqrt(1e9), 1e-5)
    assert lower <= truth <= upper
    assert upper - lower <= 0.02 * upper


def binomial_delta(epsilon: float, lost: float, times: int, total: float) -> float:
    """k-fold randomised response that discloses all with probability ``lost``, in fifty digits."""
    with mpmath.workdps(50):
        yes = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        finite = mpmath.mpf(0)
        for count in range(times + 1):
            gain = 1 - mpmath.exp(total - epsilon * (2 * count - times))
            if gain > 0:
                finite += mpmath.binomial(times, count) * yes**count * (1 - yes) ** (times - count) * gain
        kept = (1 - mpmath.mpf(lost)) ** times
        return float(1 - kept + kept * finite)


@pytest.mark.parametrize(
    ("epsilon", "lost", "times"), [(1.0, 0.0, 100), (0.1, 1e-7, 50), (3.0, 0.0, 7), (0.5, 1e-6, 3)]
)
def test_pure_and_approximate_privacy_against_the_binomial(epsilon: float, lost: float, times: int) -> None:
    lower, upper = epsilon_bracket([(randomised_response(epsilon, lost), times)], 1e-5)
    assert upper - lower <= 0.002 * upper
    assert binomial_delta(epsilon, lost, times, upper) <= 1e-5 * (1 + 1e-9)
    assert lower == 0 or binomial_delta(epsilon, lost, times, lower) >= 1e-5 * (1 - 1e-9)
    for total in (0.0, 0.4 * upper, upper):
        low, high = delta_bracket([(randomised_response(epsilon, lost), times)], total)
        assert low <= binomial_delta(epsilon, lost, times, total) * (1 + 1e-9)
        assert binomial_delta(epsilon, lost, times, total) <= high * (1 + 1e-9)


def test_a_hundred_times_pure_epsilon_one() -> None:
    lower, upper = epsilon_bracket([(randomised_response(1.0), 100)], 1e-5)
    assert lower == pytest.approx(79.84, abs=0.01)
    assert upper == pytest.approx(79.84, abs=0.01)


def test_a_disclosure_is_never_forgotten() -> None:
    assert epsilon_bracket([(randomised_response(0.1, 1e-6), 20)], 1e-5).upper == math.inf
    assert epsilon_bracket([(randomised_response(0.1, 1e-6), 20)], 1e-5).lower == math.inf
    assert epsilon_bracket([(FiniteLaw((0.0,), (0.5,), (0.5,)), 1)], 0.4).upper == math.inf
    assert delta_bracket([(FiniteLaw((0.0,), (0.5,), (0.5,)), 3)], 2.0).lower == pytest.approx(0.875)


def two_laplace(r: float, epsilon: float) -> float:
    """Two uses: the closed form of one, averaged over the law of the other."""

    def one(e: float) -> float:
        if e < -r:
            return 1 - math.exp(e)
        return max(0.0, 1 - math.exp((e - r) / 2))

    def inside(loss: float) -> float:
        return 0.25 * math.exp(-(r - loss) / 2) * one(epsilon - loss)

    kinks = sorted({-r, r, *(x for x in (epsilon - r, epsilon + r) if -r < x < r)})
    smooth = sum(quad(inside, a, b, epsabs=1e-14)[0] for a, b in pairwise(kinks))
    return smooth + 0.5 * math.exp(-r) * one(epsilon + r) + 0.5 * one(epsilon - r)


@pytest.mark.parametrize("r", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_laplace_twice_against_quadrature(r: float, share: float) -> None:
    lower, upper = delta_bracket([(LaplaceLaw(r), 2)], 2 * r * share)
    assert lower <= two_laplace(r, 2 * r * share) + 1e-12
    assert two_laplace(r, 2 * r * share) <= upper + 1e-12
    assert upper - lower <= 0.01 * upper


def test_many_different_rounds_at_once() -> None:
    """A Gaussian of the same total composes exactly with sampled rounds; splitting it changes nothing."""
    sampled: list[tuple[LossLaw, int]] = [(SampledLaw(1.0, 0.01 + 0.0005 * k), 3) for k in range(20)]
    parts = [(GaussianLaw(float(mu)), 1) for mu in np.linspace(0.05, 0.15, 10)]
    whole = GaussianLaw(math.sqrt(sum(law.mu**2 for law, _ in parts)))
    split, joined = epsilon_bracket([*sampled, *parts], 1e-6), epsilon_bracket([*sampled, (whole, 1)], 1e-6)
    assert max(split.lower, joined.lower) <= min(split.upper, joined.upper)
    assert split.upper - split.lower <= 0.005 * split.upper


def test_the_worst_of_several_is_the_largest() -> None:
    weak, strong = [(GaussianLaw(0.1), 5)], [(GaussianLaw(0.2), 5)]
    lower, upper = worst_bracket([weak, strong], 1e-5)
    assert lower <= gaussian_epsilon(0.2 * math.sqrt(5), 1e-5) * (1 + 1e-8) <= upper * (1 + 2e-8)
    low, high = worst_delta([strong, weak], 0.5)
    assert low <= gaussian_delta(0.5, 0.2 * math.sqrt(5)) <= high
    assert worst_bracket([], 1e-5) == worst_bracket([[]], 1e-5) == worst_delta([[]], 1.0) == Bracket(0.0, 0.0)


EXTREMES: list[tuple[LossLaw, int, float]] = [
    (GaussianLaw(1e-5), 1, 1e-30),
    (GaussianLaw(1e3), 1, 1e-5),
    (SampledLaw(1e3, 1e-9), 1000, 1e-10),
    (SampledLaw(1e-5, 1e-9), 10**12, 0.9),
    (SampledLaw(2.0, 1e-17), 10**6, 1e-30),
    (SampledLaw(40.0, 1 - 1e-9, removal=False), 3, 1e-5),
    (SwappedLaw(100.0, 0.5), 2, 1e-5),
    (FixedSizeLaw(40.0, 1e-5), 10, 1e-12),
    (GroupLaw(0.5, 0.01, 200), 2, 1e-5),
    (LaplaceLaw(1e4), 3, 1e-5),
    (LaplaceLaw(1e-5), 10**9, 1e-5),
    (FiniteLaw((0.0,), (1.0,), (1.0,)), 10**6, 1e-30),
    (FiniteLaw((0.0,), (0.0,), (0.0,)), 1, 0.5),
]


@pytest.mark.parametrize(("law", "times", "delta"), EXTREMES, ids=str)
def test_extremes_are_answered_and_ordered(law: LossLaw, times: int, delta: float) -> None:
    lower, upper = epsilon_bracket([(law, times)], delta)
    assert 0 <= lower <= upper
    assert lower <= epsilon_upper([(law, times)], delta)
    for epsilon in (0.0, 1e4):
        low, high = delta_bracket([(law, times)], epsilon)
        assert 0 <= low <= high <= 1
        assert high > 0


@pytest.mark.parametrize("times", [-1, 1.5, math.nan, 10**16])
def test_a_senseless_count_is_refused(times: int) -> None:
    with pytest.raises(ValueError, match="times must be a whole number"):
        epsilon_bracket([(GaussianLaw(1.0), times)], 1e-5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_senseless_laws_are_refused_at_birth(bad: float) -> None:
    for make in (GaussianLaw, LaplaceLaw):
        with pytest.raises(ValueError, match="must lie in"):
            make(bad)
    for law in (SampledLaw, SwappedLaw, FixedSizeLaw):
        for mu, rate in ((bad, 0.5), (1.0, bad)):
            with pytest.raises(ValueError, match="must lie in"):
                law(mu, rate)
    with pytest.raises(ValueError, match=r"GroupLaw\.size"):
        GroupLaw(1.0, 0.5, 0)
    with pytest.raises(ValueError, match=r"FiniteLaw\.q must be p times exp"):
        FiniteLaw((1.0,), (0.5,), (0.5,))
