r"""Private selection: what releasing the best of a random number of runs costs.

A base run gives a model and a score. $K$ is drawn at random, the base runs $K$ times, and the run of the best score is
released, and nothing else. With $\phi(x) = E[K x^{K-1}]$ and $F(y)$ the chance that a run scores no better than ``y``,
the release has the density $p(y)\,\phi(F_P(y))$. Theory page: selection.md.

``eta``, ``gamma``: of the truncated negative binomial law; ``delta(eps)``: the base's privacy profile, both directions.

References:
    [PS22] Papernot, Steinke. Hyperparameter Tuning with Renyi Differential Privacy. ICLR 2022.
    [KRW24] Koskela, Redberg, Wang. Privacy Profiles for Private Selection. ICML 2024.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.numerics import check_delta

Profile = Callable[[float], float]  # an upper bound on delta at an epsilon
_WIDEST = 600.0  # exp of it is still a number
_SHARES = (1e-3, 0.05, 0.5)  # of delta, for numbers of trials that are cut off
_UP = 1 + 1e-12
_CUT = 10**6  # most trials of a law that is cut off


@final
@dataclass(frozen=True, slots=True)
class TruncatedNegativeBinomial:
    r"""$P(K = k) \propto (1-\gamma)^k \prod_{l<k} (l + \eta)/(l + 1)$ for $k \ge 1$  [PS22].

    ``eta`` 1 is the geometric law, 0 the logarithmic one; a smaller ``eta`` costs less and has a longer tail.

    >>> round(TruncatedNegativeBinomial.of_mean(1.0, 10.0).gamma, 12)
    0.1
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        require(-1 < self.eta <= 10, "eta", "lie in (-1, 10]", self.eta)
        require(0 < self.gamma < 1, "gamma", "lie in (0, 1)", self.gamma)

    @classmethod
    def of_mean(cls, eta: float, mean: float) -> Self:
        """Return the law of this mean."""
        require(-1 < eta <= 10, "eta", "lie in (-1, 10]", eta)
        require(1 < mean <= 1e6, "The expected number of trials", "lie above 1, up to 1e6", mean)
        low, high = 1e-300, 1 - 1e-15
        for _ in range(200):
            middle = math.sqrt(low * high) if low * 4 < high else (low + high) / 2
            low, high = (middle, high) if cls(eta, middle).mean > mean else (low, middle)
        return cls(eta, high)

    @property
    def mean(self) -> float:
        """The expected number of trials, phi(1)."""
        eta, gamma = self.eta, self.gamma
        if abs(eta) < 1e-12:
            return (1 / gamma - 1) / -math.log(gamma)
        return eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))

    def masses(self, most: int) -> Vector:
        """Return the probabilities of 1 to ``most`` trials."""
        require(1 <= most <= _CUT, "The most trials", f"lie between 1 and {_CUT}", most)
        counts = np.arange(1, most, dtype=np.float64)
        steps = (1 - self.gamma) * (counts + self.eta) / (counts + 1)
        return np.asarray(self._first() * np.concatenate([[1.0], np.cumprod(steps)]))

    def tail(self, most: int) -> float:
        """Return an upper bound on the chance of more than ``most`` trials.

        From there on each mass is at most ``ratio`` times the one before.
        """
        last = float(self.masses(most)[-1])
        ratio = (1 - self.gamma) * max(1.0, (most + self.eta) / (most + 1))
        return min(1.0, last * ratio / (1 - ratio) * _UP) if ratio < 1 else 1.0

    def cut(self, tail: float) -> int:
        """Return a number of trials that is exceeded with a chance of at most ``tail``."""
        require(tail > 0, "The chance of more trials", "be positive", tail)
        high = 1
        while self.tail(high) > tail:
            high *= 2
            hint = "Ask for fewer trials, or take a larger eta."
            require(high <= _CUT, "The most trials", f"be at most {_CUT}", high, hint)
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.tail(middle) <= tail else (middle, high)
        return high

    def log_spread(self, epsilon: float, delta: float) -> float:
        r"""$(\eta+1)\ln(e^{\epsilon_1} + \frac{1-\gamma}{\gamma}\delta(\epsilon_1))$  [KRW24]."""
        return (self.eta + 1) * float(np.logaddexp(epsilon, math.log(max(delta, 1e-300) * (1 / self.gamma - 1))))

    def _first(self) -> float:
        """The probability of one trial."""
        if abs(self.eta) < 1e-12:
            return (1 - self.gamma) / -math.log(self.gamma)
        return self.eta * (1 - self.gamma) / math.expm1(-self.eta * math.log(self.gamma))


def least_spread(profile: Profile, law: TruncatedNegativeBinomial, most: float) -> float:
    """Return the least ``log_spread`` over epsilons from 0 to ``most``; each of them holds, so a search may stop."""
    at = np.linspace(0.0, most, 65)
    result = [law.log_spread(float(e), profile(float(e))) for e in at]
    best = int(np.argmin(result))
    low, high = float(at[max(best - 1, 0)]), float(at[min(best + 1, at.size - 1)])
    fine = [law.log_spread(float(e), profile(float(e))) for e in np.linspace(low, high, 33)]
    return max(0.0, min(*result, *fine))


def selected_epsilon(profile: Profile, law: TruncatedNegativeBinomial, delta: float, most: int, slip: float) -> float:
    r"""Return an epsilon that is proved for the best of $\min(K, most)$ runs at ``delta``; infinite if there is none.

    $\delta_{selected}(\epsilon) \le E[K]\,\delta(\epsilon - \ln C) + (1 + e^\epsilon)\tau$ with $\ln C$ the least
    spread and $\tau$ the chance that the number of trials is not as ideal: cut off, or drawn imperfectly (``slip``).
    """
    check_delta(delta)
    off = law.tail(most) + slip
    for share in _SHARES:
        base = smallest_at(profile, (1 - share) * delta / (law.mean * _UP))
        if base == math.inf:
            continue
        result = (base + least_spread(profile, law, base)) * _UP
        if result < _WIDEST and (1 + math.exp(result)) * off <= share * delta:
            return result
    return math.inf


def smallest_at(profile: Profile, delta: float) -> float:
    """Return the least epsilon, from above, at which a falling profile is at most ``delta``; infinite if none is."""
    if profile(0.0) <= delta:
        return 0.0
    high = 1e-3
    while not profile(high) <= delta:
        high *= 2
        if high > _WIDEST:
            return math.inf
    low = high / 2 if high > 1e-3 else 0.0
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if profile(middle) <= delta else (middle, high)
    return high
