"""Find the least noise for a target, on the safe side: the returned mechanism meets the target as accounted.

References:
    Smith, Thakurta. Fully Adaptive Composition for Gaussian Differential Privacy. 2022.
    Koskela, Tobaben, Honkela. Individual Privacy Accounting with Gaussian Differential Privacy. ICLR 2023.
    Feldman, Zrnic. Individual Privacy Accounting via a Renyi Filter. NeurIPS 2021.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from fedveil.accounting.base import curve_of
from fedveil.accounting.compare import certified_law, certified_log_delta
from fedveil.accounting.loss_distribution import LossDistributionAccountant
from fedveil.accounting.sampled import certified_epsilon, guessed_epsilon
from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.core.values import number
from fedveil.privacy.mechanism import (
    ApproximateDP,
    ArsinhGaussian,
    Compose,
    FurtherRounds,
    Gaussian,
    IndependentGaussian,
    LastIterate,
    Mechanism,
    Numbers,
    Primitive,
    Repeat,
    alike,
    flatten,
)
from fedveil.theory.numerics import check_delta

_SMALLEST, _LARGEST = 1e-4, 1e8
_HINT = 0.01  # how close the quick relative of a slow account is followed
_BESIDE = 0.02  # how far beside its root a guess is looked at
_OVER = 0.02  # of a step: how much farther it leads, since a step too short costs another slow account
_NEAREST, _FARTHEST, _SPARE = 0.05, 0.4, 1.5  # steps of the factor's logarithm where an account is slow


def scaled(mechanism: Mechanism, factor: float) -> Mechanism:
    """Return the same mechanism with all its noise multiplied by ``factor``."""
    match mechanism:
        case Compose(parts=parts):
            return Compose(parts=tuple(scaled(part, factor) for part in parts))
        case Repeat(of=part, times=times):
            return Repeat(of=scaled(part, factor), times=times)
        case LastIterate(noise_std=noise, further=FurtherRounds(noise_std=later) as further):
            going_on = replace(further, noise_std=_times(later, factor))
            return replace(mechanism, noise_std=_times(noise, factor), further=going_on)
        case LastIterate(noise_std=noise):
            return replace(mechanism, noise_std=_times(noise, factor))
        case ApproximateDP():
            return mechanism
        case ArsinhGaussian(noise_multiplier=noise, scale=scale):  # the same noise, farther out
            return replace(mechanism, noise_multiplier=noise * factor, scale=scale * factor)
        case _:
            return replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)


def _times(noise: Numbers, factor: float) -> Numbers:
    return tuple(value * factor for value in noise) if isinstance(noise, tuple) else noise * factor


def calibrate(
    mechanism: Mechanism, *, epsilon: float, delta: float, tolerance: float = 1e-5
) -> tuple[float, Mechanism]:
    """Return the least factor on the mechanism's noise that meets (epsilon, delta), and the mechanism with that noise.

    >>> from fedveil.privacy.mechanism import Gaussian
    >>> round(calibrate(Gaussian(noise_multiplier=1.0), epsilon=1.0, delta=1e-5)[0], 3)
    3.731
    """
    require(isinstance(mechanism, Mechanism), "mechanism", "be a mechanism", mechanism)
    epsilon, delta = number("epsilon", epsilon), number("delta", delta)
    require(1e-9 <= epsilon <= 1e5, "epsilon", "lie in [1e-9, 1e5]", epsilon)
    check_delta(delta)
    require(1e-9 <= number("tolerance", tolerance) <= 1, "tolerance", "lie in [1e-9, 1]", tolerance)
    excess = _excess(alike(mechanism), epsilon, delta)
    if _exchanges(mechanism):
        left_out = _excess(alike(_without_exchange(mechanism)), epsilon, delta)
        factor = exchange_factor(excess, left_out, tolerance)
    elif isinstance(mechanism, LastIterate) and mechanism.sampled:
        factor = guided_factor(excess, drawn_guide(mechanism, epsilon, delta), tolerance)
    else:
        low, high = bracket(excess)
        factor = least_factor(excess, low, high, tolerance)
    return factor, scaled(mechanism, factor)


def _exchanges(mechanism: Mechanism) -> bool:
    """Return whether a pass of independent draws is in it whose records are exchanged: then every account is slow."""
    match mechanism:
        case Compose(parts=parts):
            return any(_exchanges(part) for part in parts)
        case Repeat(of=part):
            return _exchanges(part)
        case IndependentGaussian():
            return mechanism.neighbours == "replace-one"
        case LastIterate():
            return mechanism.order == "independent" and mechanism.neighbours == "replace-one"
        case _:
            return False


def _without_exchange(mechanism: Mechanism) -> Mechanism:
    """Return the same with records left out instead of exchanged in passes of independent draws."""
    match mechanism:
        case Compose(parts=parts):
            return Compose(parts=tuple(_without_exchange(part) for part in parts))
        case Repeat(of=part, times=times):
            return Repeat(of=_without_exchange(part), times=times)
        case IndependentGaussian() | LastIterate() if _exchanges(mechanism):
            return replace(mechanism, neighbours="zero-out")
        case _:
            return mechanism


def exchange_factor(excess: Callable[[float], float], left_out: Callable[[float], float], tolerance: float) -> float:
    """Return the least factor for an exchange, whose account is slow, beginning where its quick relative points to.

    ``left_out``: the excess if records are left out instead. Exchanged they move twice as far, so about twice the
    noise is needed: only there the slow account is asked, and it alone decides.
    """
    try:
        start = math.log(2) + math.log(few_factor(left_out, _HINT))
    except CannotCertify:  # then the exchange says so itself, from where it is
        start = 0.0
    return few_factor(lambda at: excess(at + start), tolerance, nearest=_HINT) * math.exp(start)


def few_factor(excess: Callable[[float], float], tolerance: float, nearest: float = _NEAREST) -> float:
    """Return the least factor in few evaluations, for an excess that is slow, most of all where noise is scarce.

    Steps of at least ``nearest`` lead to a bracket, and regula falsi (the value of an end that stays is halved) narrows
    it. The target was seen to be met at the returned factor.
    """
    at, value, missed, met = 0.0, _within_limits(excess, 0.0), None, None
    while missed is None or met is None:
        if value is None:
            if met is not None:
                return math.exp(met[0])  # even this little noise is enough
            raise CannotCertify("no amount of noise in reach meets the target; is part of the mechanism noiseless?")
        if value <= 0:
            met = (at, value)
        else:  # missed, or unknown
            missed = (at, value)
        if missed is None or met is None:
            if value <= 0:  # less noise, with care: epsilon grows at least as fast as noise falls
                at -= min(max(-1.1 * value, nearest), max(_FARTHEST, min(-value - _SPARE, 2.0)))
            else:
                at += max(1.1 * value, nearest) if math.isfinite(value) else 2 * _FARTHEST
            value = _within_limits(excess, at)
    (left, above), (right, below) = missed, met
    before = 0
    for turn in range(80):
        if right - left <= tolerance:
            break
        share = above / (above - below) if math.isfinite(above) and math.isfinite(below) and turn % 6 != 5 else 0.5
        beyond = tolerance / 3  # to the other side of the root than the last value
        aim = (right - left) * share + (-beyond if before < 0 else beyond)
        middle = left + min(max(aim, beyond), right - left - beyond)
        now = excess(middle)
        if now <= 0:
            right, below, above, before = middle, now, above / 2 if before < 0 else above, -1
        else:
            left, above, below, before = middle, now, below / 2 if before > 0 else below, 1
    return math.exp(right)


def drawn_guide(run: LastIterate, epsilon: float, delta: float) -> Callable[[float], float]:
    """Return a quick guess of how much a run whose units draw their own rounds exceeds epsilon, as a logarithm."""

    def guide(log_factor: float) -> float:
        value = guessed_epsilon(_run(scaled(run, math.exp(log_factor))), delta)
        return math.log(max(value, 1e-300)) - math.log(epsilon)

    return guide


def guided_factor(excess: Callable[[float], float], guide: Callable[[float], float], tolerance: float) -> float:
    """Return the least factor for an excess that is slow, in coordinates in which a quick guess of it is straight.

    The guess only says where to look: the target was seen to be met at the returned factor.
    """
    seen: dict[float, float] = {}

    def noted(at: float) -> float:
        seen[at] = guide(at)
        return seen[at]

    try:
        root = _secants(noted, _HINT)
    except CannotCertify:
        return math.exp(_secants(excess, tolerance))
    for beside in (root - _BESIDE, root + _BESIDE):
        noted(beside)
    places = np.array(sorted(at for at, value in seen.items() if math.isfinite(value)))
    levels = np.maximum.accumulate([-seen[at] for at in places])
    rising = np.append(True, np.diff(levels) > 0)
    places, levels = places[rising], levels[rising]
    if places.size < 2:
        return math.exp(_secants(excess, tolerance))
    ends = np.diff(places)[[0, -1]] / np.diff(levels)[[0, -1]]

    def place(level: float) -> float:
        inside = min(max(level, float(levels[0])), float(levels[-1]))
        return float(np.interp(inside, levels, places)) + (level - inside) * float(ends[0 if level < inside else 1])

    first = -seen[0.0] if abs(root) < _BESIDE else 0.0  # what is calibrated again is known where it is
    steep = max(2 * _BESIDE / max(place(_BESIDE) - place(-_BESIDE), 1e-9), 1.0)
    return math.exp(place(_secants(lambda level: excess(place(level)), tolerance * steep, first)))


def _secants(excess: Callable[[float], float], tolerance: float, start: float = 0.0) -> float:
    """Return the least logarithm by secants, for an excess that is expensive to compute and nearly linear.

    Each step aims slightly beyond the root. The target was seen to be met at what is returned; if the function bends
    too much, bisection takes over.
    """
    missed, met = -math.inf, math.inf
    at, slope, before = start, -1.0, (math.nan, math.nan)
    for turn in range(60):
        value = _within_limits(excess, at)
        if value is None:
            if met < math.inf:
                return met
            raise CannotCertify("no amount of noise in reach meets the target; is part of the mechanism noiseless?")
        missed, met = (missed, min(at, met)) if value <= 0 else (max(at, missed), met)
        if -tolerance <= value <= 0 or met - missed <= tolerance:
            break  # hardly less would do: epsilon grows at least as fast as noise falls
        if math.isfinite(value):
            if math.isfinite(before[1]) and at != before[0]:
                slope = min((value - before[1]) / (at - before[0]), -0.05)
            before = at, value
            at -= (value + tolerance / 2 + _OVER * abs(value)) / slope
        else:
            at += 0.7
        if met - missed < math.inf and (turn > 12 or not missed < at < met):
            at = (missed + met) / 2
    return met


def _excess(mechanism: Mechanism, epsilon: float, delta: float) -> Callable[[float], float]:
    """Return a function of the logarithm of the factor that is positive (or NaN) while the target is missed."""
    if isinstance(mechanism, LastIterate) and mechanism.sampled:

        def in_ratio(log_factor: float) -> float:
            value = certified_epsilon(_run(scaled(mechanism, math.exp(log_factor))), delta)
            return math.log(max(value, 1e-300)) - math.log(epsilon)

        return in_ratio
    if isinstance(mechanism, LastIterate):
        aim = epsilon * (1 - 1e-6)  # so that inverting the curve again stays below the target

        def in_delta(log_factor: float) -> float:
            return certified_log_delta(_run(scaled(mechanism, math.exp(log_factor))))(aim) - math.log(delta)

        return in_delta
    accountant = LossDistributionAccountant(certified_law)

    def in_epsilon(log_factor: float) -> float:
        noisy = scaled(mechanism, math.exp(log_factor))
        try:
            value = accountant.epsilon(curve_of(accountant, noisy), delta)
        except CannotCertify:  # with so little noise a hidden part certifies nothing
            return math.inf
        return math.log(max(value, 1e-300)) - math.log(epsilon)

    return in_epsilon


def _run(mechanism: Mechanism) -> LastIterate:
    if not isinstance(mechanism, LastIterate):
        raise TypeError("a hidden run was expected")
    return mechanism


def bracket(excess: Callable[[float], float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two logarithms of factors: the target is missed at the first and met at the second."""
    at, value = 0.0, excess(0.0)
    met = value <= 0
    step = -1.0 if met else 1.0
    while True:
        after = at + step
        now = _within_limits(excess, after)
        if now is None:
            if met:
                return (at, value), (at, value)  # even this little noise is enough
            raise CannotCertify("no amount of noise in reach meets the target; is part of the mechanism noiseless?")
        if (now <= 0) != met:
            return ((after, now), (at, value)) if met else ((at, value), (after, now))
        at, value, step = after, now, step * 1.6


def _within_limits(excess: Callable[[float], float], at: float) -> float | None:
    """Return the excess; None if the factor, or the resulting noise, is out of range."""
    if not math.log(_SMALLEST) <= at <= math.log(_LARGEST):
        return None
    try:
        return excess(at)
    except BadValue:
        return None


def least_factor(
    excess: Callable[[float], float], low: tuple[float, float], high: tuple[float, float], tolerance: float
) -> float:
    """Narrow a bracket by regula falsi with a safeguard; return a factor at which the target was seen to be met."""
    (left, above), (right, below) = low, high
    for turn in range(80):
        if right - left <= tolerance / 2:
            break
        share = above / (above - below) if math.isfinite(above) and math.isfinite(below) and turn % 4 != 3 else 0.5
        # Aim slightly to the safe side, so that the bracket closes from above once the target is met.
        middle = left + (right - left) * min(max(share, 0.002), 0.998)
        middle = min(middle + tolerance / 4, right - tolerance / 8) if right - left > tolerance else middle
        value = excess(middle)
        if value <= 0:
            right, below, above = middle, value, above / 2
        else:
            left, above, below = middle, value, below / 2
    return math.exp(right)


# Mechanisms chosen one after another, each by what earlier ones released, inside a budget that was fixed beforehand.
#
# Two cases in which the budget alone is what the whole run costs, whatever is chosen (docs/theory/fixed-budget.md):
# plain Gaussian releases, whose inverse squared noise multipliers add up to the budget at most, and releases that are
# all alike, which are counted.

_UP = 1 + 2.0**-40


def costs_of(candidates: Sequence[Mechanism]) -> tuple[Fraction, ...]:
    """Return what each candidate takes of the budget, as an exact number.

    Refused are candidates for which neither case holds.

    >>> costs_of([Gaussian(noise_multiplier=2.0, neighbours="zero-out")])
    (Fraction(1, 4),)
    """
    result = [_one(mechanism) for mechanism in candidates]
    first, _ = result[0]
    plain = [(one, count) for one, count in result if isinstance(one, Gaussian)]
    if len(plain) == len(result) and len({one.neighbours for one, _ in plain}) == 1:
        return tuple(count / Fraction(one.noise_multiplier) ** 2 for one, count in plain)
    hint = "Only clip, step and rounds may differ then; or take shuffled batches, which may differ in their noise too."
    alike = all(one == first for one, _ in result)
    rule = "be alike in rate and noise where batches are sampled and a rule chooses"
    require(alike, "algorithm.segments", rule, [str(one) for one, _ in result][:3], hint)
    return tuple(Fraction(count) for _, count in result)


def at_most(candidates: Sequence[Mechanism], budget: float) -> Mechanism:
    """Return one mechanism that dominates every run whose chosen candidates cost at most ``budget`` together."""
    one, _ = _one(candidates[0])
    if isinstance(one, Gaussian):
        return Gaussian(noise_multiplier=1 / (math.sqrt(budget) * _UP), neighbours=one.neighbours)
    times = math.floor(budget)
    require(times >= 1, "The budget of all segments", "pay for one round at least", budget)
    return Repeat(of=one, times=times)


def _one(mechanism: Mechanism) -> tuple[Primitive, int]:
    """The release that a candidate repeats, and how often."""
    parts = flatten(mechanism)
    require(len(parts) == 1, "A segment to choose", "release the same in all of its rounds", len(parts))
    return parts[0]
