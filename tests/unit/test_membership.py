"""Curves and intervals, the likelihood-ratio scores, and the law of two normals, each against its definition."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedveil.audit.canary_estimate import cosines, estimate, normal_delta, normal_epsilon
from fedveil.audit.claim import Claim
from fedveil.audit.membership import Shadows, lira_offline, lira_online, membership_finding, roc
from fedveil.audit.record import Audit
from fedveil.core.errors import BadValue
from fedveil.report.audit_view import audit_view
from fedveil.theory.divergence import gaussian_delta


def test_the_curve_is_what_thresholds_give() -> None:
    generator = np.random.default_rng(0)
    inside, outside = generator.integers(0, 20, 50) / 4, generator.integers(-5, 15, 70) / 4
    curve = roc(inside, outside)
    for threshold in np.unique(np.append(inside, outside)):
        false, true = np.mean(outside >= threshold), np.mean(inside >= threshold)
        assert np.any(np.isclose(curve.false_positives, false) & np.isclose(curve.true_positives, true))
    assert (curve.false_positives[0], curve.true_positives[-1]) == (0.0, 1.0)
    assert curve.at(0.1) == max(
        np.mean(inside >= t) for t in np.append(np.unique(inside), np.inf) if np.mean(outside >= t) <= 0.1
    )
    assert roc(inside, inside).area == pytest.approx(0.5)
    with pytest.raises(ValueError, match="be numbers"):
        roc(np.array([np.nan]), outside)


def test_a_summary_says_what_is_allowed() -> None:
    claim = Claim(((1.0, 1e-3),))
    found = roc(np.linspace(10, 20, 2000), np.linspace(0, 9, 3000)).summary(claim, 0.05)
    row = found["rates"][0]
    assert row["true_positives"] == 1.0
    assert row["allowed"] == pytest.approx(np.e * 0.01 + 1e-3)
    assert row["exceeds"] is True
    assert len(found["roc"]["allowed"]) == len(found["roc"]["true_positives"]) <= 200
    luck = roc(np.linspace(0, 1, 500), np.linspace(0, 1, 500)).summary(claim, 0.05)
    assert not any(row["exceeds"] for row in luck["rates"])
    assert roc(np.ones(3), np.zeros(3)).summary(Claim(()), 0.05)["rates"][0]["allowed"] is None


@pytest.mark.parametrize("runs", [20, 200])
def test_online_lira_is_the_likelihood_ratio(runs: int) -> None:
    generator = np.random.default_rng(runs)
    coins = generator.random((runs, 30)) < 0.5
    coins[:2], coins[2:4] = True, False
    shadows = Shadows(np.where(coins, 1.5, 0.0) + generator.standard_normal(coins.shape), coins)
    new = generator.standard_normal(30)
    (inside, wide), (outside, narrow) = shadows.fits(True), shadows.fits(False)
    exact = norm.logpdf(new, inside, wide) - norm.logpdf(new, outside, narrow)
    assert np.allclose(lira_online(shadows, new), exact)
    offline = lira_offline(shadows, new)
    assert np.allclose(offline, -norm.logsf((new - outside) / narrow))
    own = len(np.unique(wide)) > 1
    assert own == (runs >= 64)
    column = shadows.confidence[coins[:, 0], 0]
    assert inside[0] == pytest.approx(column.mean())
    if own:
        assert wide[0] == pytest.approx(column.std(ddof=1))


def test_records_that_were_always_in_are_refused() -> None:
    with pytest.raises(BadValue, match="in and out at least twice"):
        Shadows(np.zeros((9, 3)), np.ones((9, 3), dtype=np.bool_))


def test_scores_that_know_the_coins_break_a_small_claim() -> None:
    coins = np.random.default_rng(0).random(300) < 0.5
    finding = membership_finding("all-knowing", 1.0 * coins, coins, Claim(((0.5, 1e-9),)), delta=1e-6)
    assert (finding.verdict, finding.kind) == ("broken", "lower-bound")
    assert finding.details["records"] == 300
    assert finding.details["rates"][1]["exceeds"] is True


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
@pytest.mark.parametrize(
    ("first", "second"),
    [((1.0, 1.0), (0.0, 1.0)), ((0.3, 0.5), (0.0, 1.0)), ((0.0, 2.0), (0.5, 1.0)), ((0.0, 1.0), (0.0, 1.0))],
)
def test_two_normals_by_integration(epsilon: float, first: tuple[float, float], second: tuple[float, float]) -> None:
    def excess(x: float) -> float:
        return float(max(norm.pdf(x, *first) - np.exp(epsilon) * norm.pdf(x, *second), 0.0))

    exact = quad(excess, -20, 20, limit=500, points=np.linspace(-6, 6, 25))[0]
    assert normal_delta(epsilon, first, second) == pytest.approx(exact, abs=1e-8)


def test_equal_spreads_are_the_gaussian_mechanism() -> None:
    assert normal_delta(1.0, (0.7, 1.0), (0.0, 1.0)) == pytest.approx(gaussian_delta(1.0, 0.7))
    found = normal_epsilon((0.0, 0.1), (0.1, 0.1), 1e-5)
    assert gaussian_delta(found, 1.0) <= 1e-5 <= gaussian_delta(found * (1 - 1e-6), 1.0)
    assert normal_epsilon((0.0, 1.0), (0.0, 1.0), 1e-5) == 0.0
    assert normal_epsilon((0.0, 1e-3), (10.0, 1e-3), 1e-5) == np.inf


def test_an_estimate_is_never_a_verdict() -> None:
    generator = np.random.default_rng(2)
    inside, outside = 1 + generator.standard_normal(4000), generator.standard_normal(4000)
    finding = estimate(inside, outside, adversary="final-model", certified=1.0, delta=1e-5)
    assert (finding.kind, finding.verdict) == ("estimate", "not-judged")
    assert finding.measured == pytest.approx(4.377, rel=0.15)  # mu = 1; its error here is 0.02 in one of them
    with pytest.raises(BadValue, match="at least 10 cosines"):
        estimate(inside[:5], outside, adversary="final-model", certified=None, delta=1e-5)


def test_the_largest_cosine_over_rounds_counts() -> None:
    seen = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert cosines(seen, np.array([[3.0, 4.0]])).tolist() == [0.8]


def test_a_curve_beside_no_promise_can_be_shown() -> None:
    found = membership_finding(
        "loss threshold", np.arange(20.0), np.arange(20) % 2 == 0, Claim(()), delta=1e-5, alarm=0.05
    )
    shown = audit_view(Audit(plan="p", run="r", findings=(found,)))
    assert set(shown.rocs[0].allowed) == {1.0}
