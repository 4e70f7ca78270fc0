"""Exact composition by privacy-loss distributions: a certified lower and upper epsilon for everything released.

The curve is a multiset of laws; nothing is computed until a number is asked for, so adding a round costs nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from fedveil.core.errors import CannotCertify
from fedveil.privacy.mechanism import (
    ApproximateDP,
    ArsinhGaussian,
    Gaussian,
    IndependentGaussian,
    Laplace,
    LastIterate,
    Primitive,
    SampledGaussian,
    ShuffledGaussian,
    sensitivity,
)
from fedveil.theory.allocation import AllocationLaw, Summands, sparing_tail
from fedveil.theory.arsinh import LARGEST_SHIFT, ArsinhLaw
from fedveil.theory.composition import Bracket, Uses, worst_bracket, worst_delta, worst_upper
from fedveil.theory.concentrated import gaussian_epsilon, group_epsilon_delta
from fedveil.theory.divergence import log_gaussian_delta
from fedveil.theory.exchange import exchange_law
from fedveil.theory.fixed_size import ZeroedBatchLaw, follows_sharing, shared_batches
from fedveil.theory.loss import (
    LARGEST_GROUP,
    FiniteLaw,
    FixedSizeLaw,
    GaussianLaw,
    GroupLaw,
    LaplaceLaw,
    LossLaw,
    SampledLaw,
    SwappedLaw,
)
from fedveil.theory.numerics import LARGEST_EPSILON, ROUNDING, check_delta, check_epsilon
from fedveil.theory.sampled_poisson import group_exchange_law
from fedveil.theory.star_law import fixed_size_group

Counted = tuple[tuple[LossLaw, int], ...]


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Gaussian uses combined into one number, all others counted; in both directions of the neighbouring pair.

    ``bracketed`` is false if a part is only an upper bound of something unknown, so that no lower value can be given.
    ``known``: the same with every secret round counted as known, for losses that grids of secret rounds do not hold.
    """

    squared_mu: float = 0.0
    forward: Counted = ()
    backward: Counted = ()
    bracketed: bool = True
    known: "LossCurve | None" = None


def _no_hidden_runs(run: LastIterate) -> "FiniteLaw | LossCurve":
    raise CannotCertify("a hidden run enters a composition through its certified curve, which was not provided")


@final
@dataclass(frozen=True, slots=True)
class LossDistributionAccountant:
    """Composes everything; ``hidden`` supplies the certified law of a run whose updates are hidden.

    ``group`` records are protected together, exactly if the worst pair of a group is known.
    """

    hidden: Callable[[LastIterate], FiniteLaw | LossCurve] = _no_hidden_runs
    group: int = 1

    def primitive(self, mechanism: Primitive, /) -> LossCurve:
        """Return the dominating pair(s) of one use."""
        if self.group > 1:
            return _of_group(mechanism, self.group, self.hidden)
        match mechanism:
            case Gaussian() | ShuffledGaussian():
                return LossCurve(mechanism.mu**2)
            case IndependentGaussian():
                return _allocated(mechanism)
            case SampledGaussian(rate=1.0):
                pair = Gaussian(noise_multiplier=mechanism.noise_multiplier, neighbours=mechanism.neighbours)
                return LossCurve(pair.mu**2)
            case SampledGaussian(sampling="poisson", neighbours="zero-out"):
                removal = SampledLaw(mechanism.mu, mechanism.rate)
                return LossCurve(0.0, ((removal, 1),), ((SampledLaw(mechanism.mu, mechanism.rate, removal=False), 1),))
            case SampledGaussian(sampling="poisson"):
                return _symmetric(SwappedLaw(mechanism.mu, mechanism.rate))
            case SampledGaussian(neighbours="zero-out"):
                ahead, back = (ZeroedBatchLaw(mechanism.mu, mechanism.rate, removal=way) for way in (True, False))
                return LossCurve(0.0, ((ahead, 1),), ((back, 1),))
            case SampledGaussian():
                return _symmetric(FixedSizeLaw(2 * mechanism.mu, mechanism.rate))
            case Laplace():
                return _symmetric(LaplaceLaw(mechanism.r))
            case ArsinhGaussian():
                return _symmetric(ArsinhLaw(mechanism.ratio, mechanism.shift))
            case ApproximateDP():
                return _symmetric(_approximate(mechanism), bracketed=False)
            case LastIterate():
                law = self.hidden(mechanism)
                return law if isinstance(law, LossCurve) else _symmetric(law, bracketed=False)

    def compose(self, first: LossCurve, second: LossCurve, /) -> LossCurve:
        """Return the union of the multisets."""
        return LossCurve(
            first.squared_mu + second.squared_mu,
            _merge(first.forward, second.forward),
            _merge(first.backward, second.backward),
            first.bracketed and second.bracketed,
            None if first.known is second.known is None else self.compose(_known(first), _known(second)),
        )

    def repeat(self, once: LossCurve, times: int, /) -> LossCurve:
        """Multiply all counts by ``times``."""
        return LossCurve(
            once.squared_mu * times,
            tuple((law, count * times) for law, count in once.forward),
            tuple((law, count * times) for law, count in once.backward),
            once.bracketed,
            None if once.known is None else self.repeat(once.known, times),
        )

    def epsilon(self, curve: LossCurve, delta: float, /) -> float:
        """Return the upper end only, which is cheaper than :meth:`bracket`."""
        check_delta(delta)
        if not curve.forward:
            return gaussian_epsilon(math.sqrt(curve.squared_mu), delta)
        if (alone := _alone(curve)) is not None:
            return alone.epsilon(delta)
        try:
            epsilon = worst_upper(_alternatives(curve), delta)
        except OverflowError:  # a law beyond what its grid holds: nothing is promised by it
            epsilon = math.inf
        # Secret rounds never cost more than known ones, but their grid may give up more than this delta.
        return epsilon if curve.known is None else min(epsilon, self.epsilon(curve.known, delta))

    def delta(self, curve: LossCurve, epsilon: float, /) -> float:
        """Return the upper end at this epsilon."""
        check_epsilon(epsilon)
        if not curve.forward:
            return min(1.0, math.exp(log_gaussian_delta(epsilon, math.sqrt(curve.squared_mu)) + ROUNDING))
        if (alone := _alone(curve)) is not None:
            return min(1.0, math.exp(alone.log_delta(epsilon)))
        try:
            delta = worst_delta(_alternatives(curve), epsilon).upper
        except OverflowError:
            delta = 1.0
        return delta if curve.known is None else min(delta, self.delta(curve.known, epsilon))

    def alternatives(self, curve: LossCurve, /) -> list[Uses]:
        """Return the directions of the neighbouring pair that differ, each as laws with their counts."""
        return _alternatives(curve)

    def bracket(self, curve: LossCurve, delta: float, /) -> Bracket:
        """Return a certified lower and upper epsilon; the lower is 0 if a part is only an upper bound."""
        check_delta(delta)
        if not curve.forward:
            exact = gaussian_epsilon(math.sqrt(curve.squared_mu), delta)
            return Bracket(exact * (1 - 1e-8) if curve.bracketed else 0.0, exact)
        if not curve.bracketed:
            return Bracket(0.0, self.epsilon(curve, delta))
        if any(_known_between(law) for law, _ in curve.forward + curve.backward):
            return Bracket(_lower(curve, delta), self.epsilon(curve, delta))
        lower, upper = worst_bracket(_alternatives(curve), delta)
        # never above the value that was used to calibrate
        return Bracket(lower, min(upper, self.epsilon(curve, delta)))


def _allocated(mechanism: IndependentGaussian) -> LossCurve:
    """Return the curve of one pass of independent draws."""
    if mechanism.rounds == 1:
        disclosed = Gaussian(noise_multiplier=mechanism.noise_multiplier, neighbours=mechanism.neighbours)
        return LossCurve(disclosed.mu**2)
    summands: Summands = ((((mechanism.mu, 1 / mechanism.rounds),), mechanism.rounds),)
    tail = sparing_tail(summands)
    pair = [AllocationLaw(summands, way, tail=tail) for way in ("present", "null")]
    disclosed = Gaussian(noise_multiplier=mechanism.noise_multiplier, neighbours=mechanism.neighbours)
    known = LossCurve(disclosed.mu**2, bracketed=False)
    try:
        pair[0].reach(tail)
        if mechanism.neighbours == "zero-out":
            return LossCurve(0.0, ((pair[0], 1),), ((pair[1], 1),), known=known)
        return replace(_symmetric(exchange_law(pair[0]), bracketed=False), known=known)
    except OverflowError:  # so little noise that its grid would not fit: as if the round were known
        return known


def _alone(curve: LossCurve) -> ArsinhLaw | None:
    """Return the law of a single use of arsinh-transformed noise, which needs no grid; None for anything else."""
    if curve.squared_mu == 0 and len(curve.forward) == 1:
        law, times = curve.forward[0]
        return law if times == 1 and isinstance(law, ArsinhLaw) else None
    return None


def _known(curve: LossCurve) -> LossCurve:
    return curve if curve.known is None else curve.known


def _known_between(law: LossLaw) -> bool:
    """Return whether a law is bounded by one that dominates it and another that it dominates."""
    return isinstance(law, AllocationLaw | ZeroedBatchLaw)


def _lower(curve: LossCurve, delta: float) -> float:
    """Return a lower bound from the laws from below, at a delta increased by their slack."""
    best = 0.0
    for uses in _alternatives(curve):
        under: list[tuple[LossLaw, int]] = []
        slack = 0.0
        for law, times in uses:
            if isinstance(law, AllocationLaw | ZeroedBatchLaw):
                try:
                    slack += times * law.under_slack
                except OverflowError:  # so little noise that nothing is seen from below
                    return 0.0
                under.append((law.under, times))
            else:
                under.append((law, times))
        if delta + slack < 1:
            best = max(best, worst_bracket([under], delta + slack).lower)
    return best


def _of_group(mechanism: Primitive, size: int, hidden: Callable[[LastIterate], FiniteLaw | LossCurve]) -> LossCurve:
    """Return the curve for a group, which moves a sum ``size`` times as far; a binomial number is Poisson sampled.

    Of an (epsilon, delta) mechanism, only its own promise to groups is known, and that is composed.
    """
    match mechanism:
        case Gaussian():
            return LossCurve((size * mechanism.mu) ** 2)
        case Laplace():
            return _symmetric(LaplaceLaw(size * mechanism.r))
        case ArsinhGaussian() if size * mechanism.shift <= LARGEST_SHIFT:
            return _symmetric(ArsinhLaw(mechanism.ratio, size * mechanism.shift))
        case ShuffledGaussian() if follows_sharing(size, mechanism.batches):
            return _symmetric(shared_batches(size, mechanism.batches, mechanism.size, mechanism.mu))
        case SampledGaussian(sampling="poisson", neighbours="zero-out", rate=rate) if size <= LARGEST_GROUP:
            removal, addition = (GroupLaw(mechanism.mu, rate, size, removal=way) for way in (True, False))
            return LossCurve(0.0, ((removal, 1),), ((addition, 1),))
        case SampledGaussian(sampling="poisson", rate=rate) if size <= LARGEST_GROUP:
            return _symmetric(group_exchange_law(mechanism.mu, rate, size))
        case SampledGaussian(rate=1.0):
            return LossCurve((size * sensitivity(mechanism.neighbours) * mechanism.mu) ** 2)
        case SampledGaussian(sampling="fixed-size", rate=rate) if size <= LARGEST_GROUP:
            exchanged = mechanism.neighbours == "replace-one"
            ahead, back = fixed_size_group(mechanism.mu, rate, size, exchanged=exchanged)
            return LossCurve(0.0, ((ahead, 1),), ((back, 1),), bracketed=False)
        case ApproximateDP():
            return _symmetric(_approximate(group_of(mechanism, size)), bracketed=False)
        case LastIterate():
            law = hidden(mechanism)
            return law if isinstance(law, LossCurve) else _symmetric(law, bracketed=False)
        case _:
            raise CannotCertify("the worst pair of a group is not known for this mechanism")


def group_of(mechanism: ApproximateDP, size: int) -> ApproximateDP:
    """Return what an (epsilon, delta) mechanism promises to groups of so many records."""
    epsilon, delta = group_epsilon_delta(mechanism.epsilon, mechanism.delta, size)
    if not (epsilon < LARGEST_EPSILON and delta < 1):
        raise CannotCertify(f"an (epsilon, delta) mechanism of the composition promises nothing to groups of {size}")
    return ApproximateDP(epsilon=epsilon, delta=delta)


def _symmetric(law: LossLaw, *, bracketed: bool = True) -> LossCurve:
    return LossCurve(0.0, ((law, 1),), ((law, 1),), bracketed)


def _merge(first: Counted, second: Counted) -> Counted:
    counts = dict(first)
    for law, count in second:
        counts[law] = counts.get(law, 0) + count
    return tuple(counts.items())


def _alternatives(curve: LossCurve) -> list[Uses]:
    gaussian: Counted = ((GaussianLaw(math.sqrt(curve.squared_mu)), 1),) if curve.squared_mu > 0 else ()
    both: list[Uses] = [curve.forward + gaussian]
    if curve.backward != curve.forward:
        both.append(curve.backward + gaussian)
    return both


def _approximate(mechanism: ApproximateDP) -> FiniteLaw:
    """Return the worst (epsilon, delta) mechanism: randomised response, or full disclosure with probability delta."""
    e, rest = mechanism.epsilon, 1 - mechanism.delta
    if mechanism.delta > 0:
        rest *= 1 - 8e-16  # rounding of sums near 1 must not remove a small delta
    if e == 0:
        return FiniteLaw((0.0,), (rest,), (rest,))
    yes = rest / (1 + math.exp(-e))
    no = rest / (1 + math.exp(min(e, 700.0)))
    return FiniteLaw((-e, e), (no, yes), (yes, no))
