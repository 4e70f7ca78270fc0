r"""The noisy iteration $W_k = \mathrm{proj}(\psi_k(W_{k-1}) + N_k)$, $k = 1..T$, as plain arrays.

Rounds are counted from 0 here: entry ``k`` belongs to round ``k + 1``. Theory page: noisy-iteration.md.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Vector

Indices = NDArray[np.intp]

_DEEPEST = 276.0  # factors are kept within exp(+-276), about 1e120, so that their squares are finite
_UNIT = 2.0**-52  # two roundings of a float64


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    r"""What the bounds need to know of each round.

    ``noise``: standard deviation per coordinate (or Laplace scale); ``gap``: $\|\psi(w) - \psi'(w)\|$ if the
    round uses the victim; ``swap``: the same if one record there is exchanged for another; ``lipschitz``: of
    $\psi_k$, ``inf`` if unknown; ``image``: a bound on the distance of two images $\psi_k(w), \psi_k(w')$;
    ``diameter``: of the projection set.

    Worked out: ``contracts``, whether gaps can be followed through the maps (their Lipschitz constants are
    known and do not explode); ``factor``, the product of the later Lipschitz constants, or more; ``clock``,
    the noise of the first k rounds as the last one sees it; ``reach``, how far apart two images can be;
    ``deep``, whether some product was too small for a float and a larger constant stands for it.
    """

    noise: Vector
    gap: Vector
    swap: Vector
    lipschitz: Vector
    image: Vector
    diameter: float
    contracts: bool = field(init=False)
    deep: bool = field(init=False)
    factor: Vector = field(init=False)
    clock: Vector = field(init=False)
    reach: Vector = field(init=False)
    _rest: Vector = field(init=False, repr=False)
    _arriving: Vector = field(init=False, repr=False)  # of each round's noise, at the end

    def __post_init__(self) -> None:
        count = self.noise.size
        require(count >= 1, "Rounds", "have at least one round", count)
        for name in ("noise", "gap", "swap", "lipschitz", "image"):
            values: Vector = getattr(self, name)
            require(values.shape == (count,), f"Rounds.{name}", f"have {count} entries", values.shape)
            finite = np.all(values < math.inf) or name in ("lipschitz", "image")
            rule = "be non-negative" if name in ("lipschitz", "image") else "be finite and non-negative"
            require(np.all(values >= 0) and finite, f"Rounds.{name}", rule, _odd(values))
        require(np.all(self.noise > 0), "Rounds.noise", "be finite and positive", self.noise.min())
        require(self.diameter > 0, "Rounds.diameter", "be positive (inf without projection)", self.diameter)
        logs = self._log_factors()
        contracts = bool(np.all(logs <= _DEEPEST))
        factor = np.exp(logs) if contracts else np.ones(count)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            arriving = factor * self.noise
            weight = arriving**2
            reach = np.fmin(self.lipschitz * self.diameter, self.image)
        rest = np.append(np.cumsum(weight[::-1])[::-1], 0.0)
        parts = {"contracts": contracts, "factor": factor, "reach": reach, "_rest": rest, "_arriving": arriving}
        parts |= {"clock": np.append(0.0, np.cumsum(weight)), "deep": bool(np.any(logs <= -_DEEPEST))}
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    def _log_factors(self) -> Vector:
        """Return suffix sums of the logarithms, reflected at -276, so that each step is at least the true constant's.

        A plain cut at -276 would be wrong: after the cut, constants above 1 would count for less than they are.
        """
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(self.lipschitz), -_DEEPEST)
        sums = np.append(0.0, np.cumsum(logs[:0:-1]))  # from the last round backwards
        lifted = sums + np.maximum(0.0, -_DEEPEST - np.minimum.accumulate(sums))
        return np.asarray(np.maximum(lifted[::-1], -_DEEPEST), dtype=np.float64)

    @property
    def count(self) -> int:
        """Number of rounds."""
        return self.noise.size

    def span(self, before: Indices, after: Indices) -> Vector:
        """Return ``clock[after] - clock[before]``, never above the truth; 0 where ``after <= before``.

        A difference of sums loses what is small compared with what came before. So it is computed from both ends, minus
        its largest possible rounding error, and never below the noise of the interval's first and last round.
        """
        steps = after - before
        slack = (steps + 1) * _UNIT
        first, last = np.minimum(before, self.count - 1), np.maximum(after - 1, 0)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            ahead = self.clock[after] - self.clock[before] - slack * self.clock[after]
            back = self._rest[before] - self._rest[after] - slack * self._rest[before]
            ends = np.maximum(self._arriving[first], self._arriving[last]) ** 2
            known = np.fmax(np.fmax(ahead, back), ends)
        return np.asarray(np.where(steps > 0, known, 0.0), dtype=np.float64)

    def until(self, count: int) -> "Rounds":
        """Return the first ``count`` rounds alone, as if the state after them were the last."""
        noise, gap, swap = self.noise[:count], self.gap[:count], self.swap[:count]
        return Rounds(noise, gap, swap, self.lipschitz[:count], self.image[:count], self.diameter)

    def seen_at(self, count: int) -> "Rounds":
        """Return rounds whose factors apply to a release after ``count`` rounds.

        The first ones, if they can be followed.
        """
        part = self.until(count)
        return part if part.contracts else self


def _odd(values: Vector) -> float:
    """Return the entry to name in an error message: the first NaN, else the least, else the largest."""
    least = float(values.min())
    return least if not least >= 0 else float(values.max())
