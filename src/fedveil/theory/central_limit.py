r"""The central limit of DP-SGD: its trade-off function is nearly that of one Gaussian. Never certified.

Reference:
    [DRS22] Dong, Roth, Su. Gaussian Differential Privacy. J. R. Stat. Soc. B 84(1), 2022. Corollary 5.4.
"""

import math

import numpy as np
import scipy

from fedveil.core.errors import require


def central_limit(noise_multiplier: float, rate: float, rounds: int) -> float:
    r"""Return $\mu$ with $C_p(G_{1/\sigma})^{\otimes T} \approx G_\mu$ [DRS22]:
    $\mu = p\sqrt{T}\sqrt{2(e^{1/\sigma^2}\Phi(3/2\sigma)+3\Phi(-1/2\sigma)-2)}$.

    Good when ``rate * sqrt(rounds)`` is moderate and ``rate`` small; it may promise too much.

    >>> round(central_limit(noise_multiplier=1.0, rate=0.01, rounds=1000), 6)
    0.540795
    """
    hint = "With less noise than 0.04 the approximation means nothing."
    enough = 0.04 <= noise_multiplier < math.inf
    require(enough, "noise_multiplier", "be finite and at least 0.04", noise_multiplier, hint)
    require(0 <= rate <= 1, "rate", "lie between 0 and 1", rate, "Is it a batch size?")
    whole = isinstance(rounds, int | np.integer) and rounds >= 1
    require(whole, "rounds", "be a whole number, at least 1", rounds)
    x = 1 / noise_multiplier
    # The constants -2 + 1/2 + 3/2 are cancelled by hand, so that much noise loses no digits.
    erf = scipy.special.erf
    odd = 0.5 * float(erf(1.5 * x / math.sqrt(2))) - 1.5 * float(erf(0.5 * x / math.sqrt(2)))
    inside = math.expm1(x * x) * float(scipy.special.ndtr(1.5 * x)) + odd
    return rate * math.sqrt(2 * rounds * inside)
