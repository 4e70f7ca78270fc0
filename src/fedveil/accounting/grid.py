"""Turn a guarantee of the ideal run into one of the run on the grid, for every bound by the same argument.

Theory page: grid-noise.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedveil.accounting.evaluator import least_of
from fedveil.core.errors import CannotCertify, require
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Answer, Bound, Moves
from fedveil.theory.grid import (
    LARGEST_STATE,
    LEAST_STEPS,
    MOST_STEPS,
    SAMPLER_DISTANCE,
    NoiseLaw,
    Slack,
    deeper_slack,
    displacement,
    distance,
    log_capped_cost,
    log_delta_left,
    log_delta_on_grid,
    slack_of,
)
from fedveil.theory.numerics import REPORTED_DELTA, SMALLEST_DELTA, check_delta, check_epsilon

# shares of delta reserved for the grid: first what costs nothing, then what is acceptable
_SHARES: Final = (1e-6, 1e-2, 0.5)
_USUAL: Final = 40.0  # below this epsilon the original rule is used
_FAR: Final = 5.0  # in deviations: releases that move farther may need samples that are exact in the far tail
_UNBOUNDED_STEPS: Final = 2.0**34  # grid steps per smallest noise without a radius: room for 2**18 times that noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How a run on multiples of 2**exponent differs from the ideal one.

    ``distance``: between the two trajectories' laws on one data set, in units of noise (Gaussian: mu; Laplace: a pure
    epsilon), including float errors. ``total_variation``: of all samples together from their law. ``mishap``: the
    chance of an event that depends on no record, such as masks that fail by chance, after which nothing is promised.
    """

    exponent: int
    dimension: int
    rounds: int
    distance: float
    total_variation: float
    law: NoiseLaw = "gaussian"
    mishap: float = 0.0

    def __post_init__(self) -> None:
        require(-1000 <= self.exponent <= 1000, "Grid.exponent", "lie in [-1000, 1000]", self.exponent)
        require(self.law in ("gaussian", "laplace"), "Grid.law", "be gaussian or laplace", self.law)
        right = self.dimension >= 1 and (self.law == "gaussian" or self.dimension == 1)
        require(right, "Grid.dimension", "be at least 1 (exactly 1 with Laplace noise)", self.dimension)
        require(self.rounds >= 1, "Grid.rounds", "be at least 1", self.rounds)
        require(self.distance >= 0, "Grid.distance", "be non-negative", self.distance)
        require(0 <= self.total_variation <= 1, "Grid.total_variation", "lie in [0, 1]", self.total_variation)
        require(0 <= self.mishap <= 1, "Grid.mishap", "lie in [0, 1]", self.mishap)

    @classmethod
    def of(
        cls,
        *,
        exponent: int,
        dimension: int,
        noise: Vector,
        lipschitz: Vector,
        errors: Vector,
        law: NoiseLaw = "gaussian",
    ) -> "Grid":
        """Return the grid of a run, from arrays over the rounds.

        ``noise``: deviation (or scale); ``lipschitz``: constant of the step; ``errors``: how far the step computed in
        floats may be from the true one. A step with unknown Lipschitz constant (``inf``) may amplify the rounding of
        the state, so there is no finite guarantee.
        """
        require(-1000 <= exponent <= 1000, "Grid.exponent", "lie in [-1000, 1000]", exponent)
        right = noise.ndim == 1 and noise.size >= 1 and np.all((noise > 0) & (noise < math.inf))
        require(right, "Grid noise", "be positive and finite in every round", noise.tolist()[:3])
        for name, values in (("lipschitz", lipschitz), ("errors", errors)):
            right = values.shape == noise.shape and np.all(values >= 0)
            require(right, f"Grid {name}", f"be non-negative, {noise.size} numbers", values.tolist()[:3])
        shares = displacement(2.0**exponent, dimension, lipschitz, errors) / noise
        return cls(
            exponent=exponent,
            dimension=dimension,
            rounds=noise.size,
            distance=distance(shares, law),
            total_variation=min(1.0, SAMPLER_DISTANCE * dimension * noise.size),
            law=law,
        )

    @property
    def slack(self) -> Slack:
        """Return the cost of the displacement, on each of the two data sets."""
        return slack_of(self.distance, self.law)

    def log_delta(self, epsilon: float, log_delta: float, slack: Slack, log_capped: float = math.inf) -> float:
        """Return log delta on the grid at epsilon plus twice the slack, from that of the ideal run at ``epsilon``.

        A mishap has the same chance on both data sets, so it is added once and not multiplied by exp(epsilon).
        """
        result = log_delta_on_grid(epsilon, log_delta, slack, self.total_variation, log_capped)
        if self.mishap == 0:
            return result
        return min(float(np.logaddexp(result, math.log(self.mishap))) + 1e-12, 0.0)

    def log_capped(self, moves: Moves | None) -> float:
        """Return the logarithm of the cost of imperfect samples if every release is seen.

        Infinite if ``moves`` is unknown.

        Means on the grid are displaced on both data sets, so every release may move by twice the distance more.
        """
        if moves is None or not self.distance < math.inf:
            return math.inf
        displaced = tuple((move + 2 * self.distance, count) for move, count in (*moves, (0.0, self.rounds)))
        return log_capped_cost(self.total_variation, displaced, self.law)


def on_grid(grid: Grid, answer_at: Callable[[float], Answer], delta: float) -> Answer:
    """Return the smallest epsilon proved for the run on the grid at ``delta``; ``answer_at`` answers for the ideal run.

    The ideal run is evaluated at slightly less than ``delta``. A bound for which the rest does not pay for the grid
    becomes infinite. Another bound may still hold, at this share or a larger one; the least of all is taken.
    """
    check_delta(delta)
    shares = [math.exp(-grid.slack.epsilon) * (1 - share) * delta for share in _SHARES]
    if not shares[-1] >= SMALLEST_DELTA:  # too little is left to ask for, so there is no finite guarantee
        return _raised(grid, answer_at(delta), delta, delta)
    result = []
    for inner in shares:
        ideal = answer_at(inner)
        result.append(_raised(grid, ideal, inner, delta))
        kept = result[-1].epsilon < math.inf and result[-1].certified_by == ideal.certified_by
        if kept or ideal.epsilon == math.inf:
            break
    return min(reversed(result), key=lambda answer: answer.epsilon)


def _raised(grid: Grid, ideal: Answer, inner: float, delta: float) -> Answer:
    bounds = tuple(_raised_bound(grid, bound, inner, delta) for bound in ideal.bounds)
    epsilon = _raised_epsilon(grid, ideal.epsilon, inner, delta)
    if epsilon == math.inf and ideal.certified_by is not None:
        return least_of(bounds, delta, None)
    return Answer(epsilon=epsilon, delta=delta, certified_by=ideal.certified_by, bounds=bounds)


def _raised_bound(grid: Grid, bound: Bound, inner: float, delta: float) -> Bound:
    if bound.epsilon is None:
        return bound
    epsilon = _raised_epsilon(grid, bound.epsilon, inner, delta, bound.moves)
    lost = epsilon == math.inf and bound.epsilon < math.inf
    reason = bound.reason + (_lost(bound) if lost else "")
    return replace(bound, epsilon=epsilon, epsilon_lower=None, reason=reason)


def _lost(bound: Bound) -> str:
    """Return why a bound that holds for ideal noise says nothing about the noise that is drawn."""
    most = max((move for move, _ in bound.moves or ()), default=0.0)
    if most > _FAR:
        return (
            f"; one unit moves a release by {most:.3g} deviations of its noise, and noise is drawn only up to about 12 "
            "of them, so this cannot be promised: give that release more noise"
        )
    return "; the grid's share does not fit in delta: take a finer grid"


def _raised_epsilon(grid: Grid, epsilon: float, inner: float, delta: float, moves: Moves | None = None) -> float:
    """Return what the ideal (epsilon, inner) becomes on the grid at ``delta``.

    Infinity if the grid's cost does not fit.

    The first try uses the slack that serves all usual epsilons. Large epsilons use a deeper slack and, if every release
    is seen, a bound on the cost of imperfect samples that does not depend on epsilon.
    """
    if not (inner < delta and epsilon < math.inf):
        return math.inf
    slack, log_inner, log_delta = grid.slack, math.log(inner), math.log(delta)
    if not grid.log_delta(epsilon, log_inner, slack) <= log_delta:
        slack = deeper_slack(grid.distance, grid.law, epsilon)
        capped = grid.log_capped(moves)
        if not grid.log_delta(epsilon, log_inner, slack, capped) <= log_delta:
            return math.inf
    return (epsilon + 2 * slack.epsilon) * (1 + 2.0**-50)


def delta_on_grid(grid: Grid, answer_at: Callable[[float], Answer], epsilon: float) -> Answer:
    """Return the smallest delta proved for the run on the grid at ``epsilon``; ``answer_at`` answers for the ideal run.

    Below twice the grid's slack nothing is promised, and delta is 1.
    """
    check_epsilon(epsilon)
    slack = grid.slack if epsilon <= _USUAL else deeper_slack(grid.distance, grid.law, epsilon)
    inner = epsilon - 2 * slack.epsilon * (1 + 1e-12)
    if not inner >= 0:
        return Answer(epsilon=epsilon, delta=1.0, certified_by=None, bounds=())
    ideal = answer_at(inner)
    bounds = tuple(
        bound
        if bound.delta is None
        else replace(
            bound,
            epsilon=epsilon,
            delta=_raised_delta(grid, slack, inner, bound.delta, bound.moves),
            epsilon_lower=None,
        )
        for bound in ideal.bounds
    )
    direct = _raised_delta(grid, slack, inner, ideal.delta)
    best = least_of(bounds, None, epsilon)
    if best.delta < direct:  # a bound that counts every release as seen loses less at a large epsilon
        return best
    return Answer(epsilon=epsilon, delta=direct, certified_by=ideal.certified_by, bounds=bounds)


def _raised_delta(grid: Grid, slack: Slack, inner: float, delta: float, moves: Moves | None = None) -> float:
    log_ideal = math.log(max(delta, REPORTED_DELTA))
    capped = grid.log_capped(moves) if inner > _USUAL else math.inf
    return math.exp(grid.log_delta(inner, log_ideal, slack, capped))


def inner_target(grid: Grid, epsilon: float, delta: float) -> tuple[float, float]:
    """Return what the ideal run must meet so that the run on the grid meets (epsilon, delta)."""
    check_epsilon(epsilon)
    check_delta(delta)
    inner = epsilon - 2 * grid.slack.epsilon * (1 + 1e-12)
    room = delta - grid.mishap * (1 + 1e-9)
    left = log_delta_left(inner, room, grid.slack, grid.total_variation) if inner > 0 and room > 0 else -math.inf
    if left == -math.inf:
        raise CannotCertify(
            f"({epsilon:g}, {delta:g}) is out of reach on the grid of step 2**{grid.exponent}, which costs epsilon "
            f"{2 * grid.slack.epsilon:.3g} and delta {grid.total_variation:.3g} times exp(epsilon); take a finer grid"
        )
    return inner, math.exp(left)


def choose_grid(radius: float | None, smallest_noise: float, largest_noise: float | None = None) -> int:
    """Return the finest exponent at which float64 holds the state exactly and the sampler reaches the largest noise.

    Coordinates are cut to 2**52 steps around 0, which is beyond ``radius`` plus 16 deviations of the largest noise.
    Without a radius the smallest noise gets 2**34 to 2**35 steps; for more room, give the sum of all steps' lengths as
    a radius.

    >>> choose_grid(10.0, smallest_noise=0.001)
    -48
    """
    largest_noise = smallest_noise if largest_noise is None else largest_noise
    require(0 < smallest_noise < math.inf, "smallest noise", "be finite and positive", smallest_noise)
    require(smallest_noise <= largest_noise < math.inf, "largest noise", "be finite, not the smaller", largest_noise)
    require(radius is None or 0 < radius < math.inf, "radius", "be positive and finite, or absent", radius)
    finest = [_ceil_log2(largest_noise / MOST_STEPS)]
    if radius is None:
        finest.append(math.frexp(smallest_noise / _UNBOUNDED_STEPS)[1] - 1)
    else:
        finest.append(_ceil_log2((radius + 16 * largest_noise) / LARGEST_STATE))
    exponent = max(finest)
    steps = math.ldexp(smallest_noise, -exponent)
    hint = "Use a smaller radius, or noise that varies less between rounds."
    rule = f"hold at least 2**24 steps of the grid 2**{exponent}, the finest that float64 and the radius allow"
    require(steps >= LEAST_STEPS, "smallest noise of a round", rule, smallest_noise, hint)
    require(-1000 <= exponent <= 1000, "grid exponent", "lie in [-1000, 1000]", exponent)
    return exponent


def _ceil_log2(value: float) -> int:
    """Return the least k with value <= 2**k."""
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 else exponent
