"""Privacy guarantees: what is promised, against whom, and whether it is proved."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, get_args

from fedveil.core.errors import require

Neighbours = Literal["replace-one", "zero-out"]
Adversary = Literal["final-model", "curious-client", "every-model", "server-with-secure-aggregation", "server"]
ADVERSARIES: Final[tuple[Adversary, ...]] = get_args(Adversary)
Unit = Literal["record", "client", "person"]
NAMELESS: Final[tuple[Unit, ...]] = ("record", "client")  # units of jobs that read no column of persons
Status = Literal["certified", "numerical", "comparison", "does-not-apply"]
# (how far one unit moves a noisy release, in units of its noise; how many such releases)
Moves = tuple[tuple[float, int], ...]
_POINTS = 48  # certified (epsilon, delta) from which a trade-off function is drawn
_FARTHEST = 500.0  # epsilon up to which they are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One way to bound the privacy loss: its numbers, whether they are proved, and why it does or does not apply.

    ``moves`` is given by bounds that count every noisy release as seen. It bounds how far each release can move.

    >>> Bound(name="gaussian", status="certified", reason="the noise is Gaussian", epsilon=1.0, delta=1e-5).epsilon
    1.0
    """

    name: str
    status: Status
    reason: str
    epsilon: float | None = None
    delta: float | None = None
    epsilon_lower: float | None = None
    moves: Moves | None = None

    def __post_init__(self) -> None:
        require(self.status in get_args(Status), "Bound.status", f"be one of {get_args(Status)}", self.status)
        for name in ("epsilon", "delta", "epsilon_lower"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"Bound.{name}", "be absent or non-negative", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The smallest (epsilon, delta) that is proved, the bound that proves it, and all other bounds for comparison.

    ``delta_at``: the certified delta at any other epsilon, where the mechanism is known.

    >>> answer = Answer(epsilon=1.0, delta=1e-5, certified_by=None, bounds=())
    >>> round(answer.trade_off(0.01), 4)  # a test with 1% false alarms misses at least so many
    0.9728
    """

    epsilon: float
    delta: float
    certified_by: str | None
    bounds: tuple[Bound, ...]
    delta_at: Callable[[float], float] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.epsilon >= 0, "Answer.epsilon", "be non-negative", self.epsilon)
        require(0 <= self.delta <= 1, "Answer.delta", "lie in [0, 1]", self.delta)

    def trade_off(self, alpha: float) -> float:
        r"""Return the certified trade-off function at ``alpha``: no test with so many false alarms misses less often.

        The greatest of $f_{\varepsilon,\delta}(\alpha) = \max\{0, 1 - \delta - e^\varepsilon\alpha,
        e^{-\varepsilon}(1 - \delta - \alpha)\}$ over many certified (epsilon, delta), so never above the true one.
        """
        require(0 <= alpha <= 1, "alpha", "lie in [0, 1]", alpha)
        points = [(self.epsilon, self.delta)] if self.delta_at is None else _profile(self.delta_at)
        misses = 0.0
        for epsilon, delta in points:
            if epsilon < math.inf:
                rest = 1 - delta
                misses = max(misses, rest - math.exp(min(epsilon, 700.0)) * alpha, math.exp(-epsilon) * (rest - alpha))
        return misses

    def _repr_html_(self) -> str:
        """Return the answer and all bounds for a notebook."""
        from fedveil.core.notebook import html_table  # only a notebook needs it

        shown = "no guarantee" if self.epsilon == math.inf else f"epsilon {math.ceil(self.epsilon * 1e6) / 1e6:g}"
        rows = [{"bound": b.name, "epsilon": b.epsilon, "status": b.status, "reason": b.reason} for b in self.bounds]
        rows = [row | {"epsilon": "no guarantee"} if row["epsilon"] == math.inf else row for row in rows]
        proof = f", proved by {self.certified_by}" if self.certified_by else ""
        return html_table(rows, f"{shown} at delta {self.delta:g}{proof}")

    def __getitem__(self, name: str) -> Bound:
        """Return the bound of this name."""
        for bound in self.bounds:
            if bound.name == name:
                return bound
        raise KeyError(f"{name!r} is not among the bounds: {', '.join(bound.name for bound in self.bounds)}")


@lru_cache(maxsize=8)
def _profile(delta_at: Callable[[float], float]) -> Sequence[tuple[float, float]]:
    """Return certified points from epsilon 0 until delta is below a millionth; denser where delta falls."""
    last = 0.25
    while delta_at(last) > 1e-6 and last < _FARTHEST:
        last *= 2
    return [(epsilon, delta_at(epsilon)) for epsilon in (last * (k / _POINTS) ** 2 for k in range(_POINTS + 1))]


def finite_or_none(value: float | None) -> float | None:
    """Return None for an infinite value, since JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
