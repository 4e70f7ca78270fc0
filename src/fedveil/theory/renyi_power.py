r"""What an (alpha, zeta)-RDP guarantee means for a test: the greatest power at a level.

A test turns the two outputs into coins. By data processing, the Renyi divergences of the coins, in both directions, are
at most zeta; and any pair of coins within that is itself a mechanism with the guarantee, so the answer cannot be
improved. Theory page: renyi-conversion.md.
"""

import math

from fedveil.core.checks import require


def greatest_power(alpha: float, zeta: float, level: float) -> float:
    """Return the largest chance to detect the record, for a test with false-alarm probability ``level``; rounded up.

    >>> round(greatest_power(10.0, 0.5, 0.05), 4)
    0.1057
    """
    require(1 < alpha < math.inf, "alpha", "be finite and above 1", alpha)
    require(0 <= zeta < math.inf, "zeta", "be finite and non-negative", zeta)
    require(0 < level < 1, "level", "lie strictly between 0 and 1", level)
    low, high = level, 1.0
    if _within(alpha, zeta, 1.0, level):
        return 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _within(alpha, zeta, middle, level) else (low, middle)
    return min(1.0, high * (1 + 1e-9))


def _within(alpha: float, zeta: float, power: float, level: float) -> bool:
    """Return whether coins with these probabilities keep the guarantee in both directions."""
    return max(_divergence(alpha, power, level), _divergence(alpha, level, power)) <= zeta


def _divergence(alpha: float, p: float, q: float) -> float:
    r"""$\frac{1}{\alpha-1} \ln (p^\alpha q^{1-\alpha} + (1-p)^\alpha (1-q)^{1-\alpha})$."""
    terms = []
    for one, other in ((p, q), (1 - p, 1 - q)):
        if one > 0:
            if other <= 0:
                return math.inf
            terms.append(alpha * math.log(one) + (1 - alpha) * math.log(other))
    top = max(terms)
    return (top + math.log(math.fsum(math.exp(term - top) for term in terms))) / (alpha - 1)
