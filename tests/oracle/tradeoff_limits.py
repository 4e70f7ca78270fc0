r"""Gaussian approximations of DP-SGD's trade-off function: for figures and rules of thumb, never certified.

They are values of their own type, so nothing that certifies can take one for a guarantee by mistake.

References:
    van Dijk and Nguyen 2023, section 4.7.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from fedveil.core.errors import require
from oracle.tradeoff import GaussianTradeOff
from oracle.tradeoff_ops import check_count


@final
@dataclass(frozen=True, slots=True)
class Approximation:
    """A Gaussian trade-off function near the true one, on an unknown side of it."""

    curve: GaussianTradeOff
    source: str
    certified: ClassVar[Literal[False]] = False


def shuffled_passes(noise_multiplier: float, passes: float, members: int = 1) -> tuple[Approximation, Approximation]:
    r"""$G_{\sqrt{(1 \pm 1/\sqrt{2E})E}/\sigma}$ for ``E`` passes, the pessimistic one first; groups: ``gE``.

    >>> [round(side.curve.mu, 4) for side in shuffled_passes(noise_multiplier=4.0, passes=8)]
    [0.7906, 0.6124]
    """
    x = _inverse_noise("noise_multiplier", noise_multiplier)
    require(1 <= passes < math.inf, "passes", "be finite and at least 1", passes)
    check_count("members", members)
    uses = members * passes
    spread = 1 / math.sqrt(2 * uses)
    below, above = (GaussianTradeOff(x * math.sqrt((1 + sign * spread) * uses)) for sign in (1, -1))
    return Approximation(below, "lower"), Approximation(above, "upper")


def quieter_last_pass(
    noise_multiplier: float, passes: int, last_noise_multiplier: float, members: int = 1
) -> Approximation:
    r"""$\mu = \sqrt{g}\sqrt{(E-1)/\sigma^2 + 1/\sigma'^2}$: the last of ``E`` passes with its own noise.

    >>> quieter_last_pass(noise_multiplier=2.0, passes=5, last_noise_multiplier=1.0).curve.mu ** 2
    2.0000000000000004
    """
    x = _inverse_noise("noise_multiplier", noise_multiplier)
    last = _inverse_noise("last_noise_multiplier", last_noise_multiplier)
    check_count("passes", passes)
    check_count("members", members)
    mu = math.sqrt(members) * math.hypot(x * math.sqrt(passes - 1), last)
    return Approximation(GaussianTradeOff(mu), "quieter last pass")


def _inverse_noise(name: str, noise: float) -> float:
    hint = "With less noise than 0.04 the approximation means nothing."
    require(0.04 <= noise < math.inf, name, "be finite and at least 0.04", noise, hint)
    return 1 / noise
