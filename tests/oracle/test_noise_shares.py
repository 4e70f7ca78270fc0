"""Sums of rounded shares against exact laws: what the theorem says of them, how much noise there is, what breaks it."""

import itertools
import math

import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss
from scipy.special import ndtr

from fedveil.accounting.observers import Participation, Shares, observe_shares
from fedveil.noise.entropy import Entropy
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.trust import Trust
from fedveil.stages.noise_shares import share_deviation
from fedveil.theory.grid import halves_of, log_aliasing
from sides import share

Vector = np.ndarray


def rounded(steps: float, reach: int) -> Vector:
    """Probabilities of round(N(0, steps**2)) at -reach .. reach."""
    edges = (np.arange(-reach, reach + 2) - 0.5) / steps
    lower = ndtr(edges)
    return np.where(edges[1:] > 0, ndtr(-edges[:-1]) - ndtr(-edges[1:]), lower[1:] - lower[:-1])


def summed(steps: float, shares: int, reach: int) -> Vector:
    """The exact law of a sum of rounded shares, by adding one after another."""
    one, found = rounded(steps, reach), np.ones(1)
    for _ in range(shares):
        found = np.convolve(found, one)
    return found


def irwin_hall(x: Vector, count: int) -> Vector:
    """The density of a sum of ``count`` uniform numbers from (-1/2, 1/2)."""
    y = x + count / 2
    terms = [(-1) ** k * math.comb(count, k) * np.where(y > k, y - k, 0.0) ** (count - 1) for k in range(count + 1)]
    return np.sum(terms, axis=0) / math.factorial(count - 1)


def ideal(steps: float, shares: int, reach: int) -> Vector:
    """The law of round(N(0, shares * steps**2) + uniforms): an integral, without any Fourier series."""
    nodes, weights = leggauss(40)
    places = np.concatenate([nodes / 2 + k + 0.5 - shares / 2 for k in range(shares)])  # smooth between the knots
    mass = irwin_hall(places, shares) * np.tile(weights / 2, shares)
    wide = steps * math.sqrt(shares)
    far = np.arange(-reach, reach + 1)[:, None] - places[None, :]
    return np.exp(-((far / wide) ** 2) / 2) @ mass / (wide * math.sqrt(2 * math.pi))


@pytest.mark.parametrize(("steps", "shares"), [(1.0, 2), (1.0, 3), (1.0, 6), (1.3, 2), (1.3, 5), (1.6, 3)])
def test_sums_of_rounded_shares_have_the_law_of_the_theorem(steps: float, shares: int) -> None:
    reach = 16
    exact, promised = summed(steps, shares, reach), ideal(steps, shares, shares * reach)
    assert exact.sum() == pytest.approx(1, abs=1e-12)
    assert promised.sum() == pytest.approx(1, abs=1e-12)
    apart = np.abs(exact - promised).sum() / 2
    assert apart <= math.exp(log_aliasing(steps, shares)) + 1e-13
    if shares == 2:  # where two terms meet the bound is of the true order: nothing is left out
        assert apart >= 1e-3 * math.exp(-(math.pi**2) * steps**2)


def test_it_is_not_the_law_of_a_rounded_normal() -> None:
    """Rounding K shares spreads them by K/12 more: the uniforms of the theorem are really there."""
    places = np.arange(-48, 49)
    found = float(summed(1.3, 3, 16) @ places**2)
    assert found == pytest.approx(3 * (1.3**2 + 1 / 12), rel=1e-6)
    assert float(rounded(1.3 * math.sqrt(3), 48) @ places**2) == pytest.approx(3 * 1.3**2 + 1 / 12, rel=1e-6)


def test_aliasing_vanishes_and_uniforms_stay_within_their_reach() -> None:
    assert log_aliasing(4.0, 1000) < -140
    assert log_aliasing(256.0, 10**9) < -600_000
    assert log_aliasing(256.0, 1) == -math.inf
    generator = np.random.default_rng(0)
    sums = np.abs(generator.uniform(-0.5, 0.5, size=(20000, 299)).sum(axis=1))
    assert 2 * sums.max() < halves_of(300) - 1  # at most 2 exp(-72) for each of them
    assert halves_of(100) == 100  # so few can all be off together


class TestExactCertificates:
    """One coordinate, one round: the server's view of a sum is worked out exactly, share by share."""

    run = LastIterate(rounds=1, batch=12, records=12, step_size=1.0, lipschitz=1.0, smoothness=1.0, noise_std=3.0)
    who = Participation(clients=12, every_round=False)
    trust = Trust(server="secure-aggregation", dropouts=3, colluders=3)
    grid, delta = 2.0**-9, 1e-5

    def excess(self, share_steps: float, shares: int, epsilon: float) -> float:
        """E_epsilon between two neighbours' sums: a whole number of steps apart, noised by so many rounded shares."""
        law = summed(share_steps, shares, math.ceil(9 * share_steps))
        gap = round(2 / 12 / self.grid)
        moved = np.concatenate([np.zeros(gap), law])
        return float(np.maximum(moved - math.exp(epsilon) * np.concatenate([law, np.zeros(gap)]), 0).sum())

    def promised(self) -> float:
        shares = Shares(cohort=12, dropouts=3, colluders=3, everyone=True)
        return observe_shares(self.run, "server-with-secure-aggregation", self.who, shares, delta=self.delta).epsilon

    def test_the_promise_holds_with_the_fewest_honest_clients_that_are_tolerated(self) -> None:
        planned, epsilon = 3.0 / math.sqrt(12), self.promised()
        each = share_deviation(planned, self.trust, 12) / self.grid
        found = self.excess(each, self.trust.honest(12), epsilon)
        assert 0.9 * self.delta < found <= self.delta * (1 + 1e-3)  # the gap is a whole number of steps, rounded

    def test_more_honest_clients_only_help(self) -> None:
        planned, epsilon = 3.0 / math.sqrt(12), self.promised()
        each = share_deviation(planned, self.trust, 12) / self.grid
        found = [self.excess(each, count, epsilon) for count in (6, 7, 9, 12)]
        assert all(after < before for before, after in itertools.pairwise(found))

    def test_shares_for_the_whole_cohort_break_it(self) -> None:
        """The faulty twin: each client adds 1/12 of the variance, and half of them are missing or tell."""
        planned, epsilon = 3.0 / math.sqrt(12), self.promised()
        faulty = share_deviation(planned, Trust(), 12) / self.grid
        assert self.excess(faulty, 12, epsilon) <= self.delta * (1 + 1e-3)  # unnoticed while everybody answers
        assert self.excess(faulty, self.trust.honest(12), epsilon) > 30 * self.delta

    def test_a_curious_client_that_takes_its_share_off(self) -> None:
        shares = Shares(cohort=12, dropouts=3, colluders=0, everyone=True)
        epsilon = observe_shares(self.run, "curious-client", self.who, shares, delta=self.delta).epsilon
        each = share_deviation(3.0 / math.sqrt(12), Trust(dropouts=3), 12) / self.grid
        assert 0.9 * self.delta < self.excess(each, 8, epsilon) <= self.delta * (1 + 1e-3)  # 9 answer, one is its own
        assert self.excess(each, 7, epsilon) > self.delta


def test_shares_are_their_own() -> None:
    """Shares of clients and rounds are independent: no two are alike, and correlations are small (6 deviations)."""
    entropy = Entropy.from_key(bytes(32))
    rows = [share(entropy, client, turn, 1000.0, 2000) for client in range(4) for turn in range(4)]
    again = share(entropy, 2, 3, 1000.0, 2000)
    assert np.array_equal(again, rows[11])
    link = np.corrcoef(np.stack(rows).astype(np.float64)) - np.eye(16)
    assert np.abs(link).max() < 6 / math.sqrt(2000)
